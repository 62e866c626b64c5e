/* SPDX-License-Identifier: MIT
 *
 * Parts of tensors: chunks, boxes, and the ranks that hold them.
 */
#include "parallel/layout/placement.h"

#include "core/math/round.h"

void tt_chunk(int64_t size, int n, int i, int64_t *ret_begin, int64_t *ret_count)
{
    int64_t each = tt_div_up(size, n), begin = each * i < size ? each * i : size;

    *ret_begin = begin;
    *ret_count = each < size - begin ? each : size - begin;
}

int tt_placement_parts(const struct tt_mesh *mesh, const struct tt_placement *placement)
{
    int parts = 1;

    for (int c = 0; c < placement->n_cuts; c++)
        parts *= tt_mesh_size(mesh, placement->cut[c].group);
    return parts;
}

int tt_placement_copies(const struct tt_mesh *mesh, const struct tt_placement *placement)
{
    return tt_mesh_size(mesh, placement->copies);
}

int tt_placement_part(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank)
{
    int part = 0;

    for (int c = 0; c < placement->n_cuts; c++) {
        struct tt_place place = tt_mesh_place(mesh, rank, placement->cut[c].group);

        part = part * place.n + place.index;
    }
    return part;
}

int tt_placement_copy(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank)
{
    return tt_mesh_place(mesh, rank, placement->copies).index;
}

/* The places of a part in each of the cuts. */
static void places_of(const struct tt_mesh *mesh, const struct tt_placement *placement, int part,
                      struct tt_place places[TT_PLACEMENT_CUTS])
{
    for (int c = placement->n_cuts - 1; c >= 0; c--) {
        int n = tt_mesh_size(mesh, placement->cut[c].group);

        places[c] = (struct tt_place){n, part % n};
        part /= n;
    }
}

int tt_placement_holder(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank, int part)
{
    struct tt_place places[TT_PLACEMENT_CUTS];

    places_of(mesh, placement, part, places);
    rank = tt_mesh_member(mesh, rank, TT_GROUP_PP, placement->pp);
    for (int c = 0; c < placement->n_cuts; c++)
        rank = tt_mesh_member(mesh, rank, placement->cut[c].group, places[c].index);
    return rank;
}

int tt_placement_rank(const struct tt_mesh *mesh, const struct tt_placement *placement, int part, int copy)
{
    return tt_placement_holder(mesh, placement, tt_mesh_member(mesh, 0, placement->copies, copy), part);
}

/* A tensor that is being cut. */
struct cutting {
    struct tt_box box;  /* extent of this part, so far */
    struct tt_box most; /* extent of the first part, which is the largest */
};

/* The largest share of the dimension of cut c that a rank gets. It is the same in all parts that the previous cuts
 * left, even in smaller ones, so that a gather over any of these parts leaves no gaps. */
static int64_t share_of(const struct tt_placement *placement, int c, int n, const struct cutting *cutting)
{
    int64_t size = cutting->most.shape[placement->cut[c].dim], step = placement->cut[c].step;
    int grains = placement->cut[c].grains ? placement->cut[c].grains : n;

    return tt_round_up(tt_div_up(size, grains), step ? step : 1) * (grains / n);
}

static void cut(const struct tt_placement *placement, int c, struct tt_place place, struct cutting *cutting)
{
    struct tt_box *box = &cutting->box;
    int dim = placement->cut[c].dim;
    int64_t size = box->shape[dim], share = share_of(placement, c, place.n, cutting);
    int64_t begin = share * place.index < size ? share * place.index : size;

    box->offset[dim] += begin;
    box->shape[dim] = share < size - begin ? share : size - begin;
    if (share < cutting->most.shape[dim])
        cutting->most.shape[dim] = share;
}

/* The box of a part after the first n_cuts cuts. */
static struct tt_box box_after(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                               const int64_t *shape, int part, int n_cuts)
{
    struct tt_place places[TT_PLACEMENT_CUTS];
    struct cutting cutting = {tt_box_whole(ndim, shape), tt_box_whole(ndim, shape)};

    places_of(mesh, placement, part, places);
    for (int c = 0; c < n_cuts; c++)
        cut(placement, c, places[c], &cutting);
    return cutting.box;
}

struct tt_box tt_placement_box(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                               const int64_t *shape, int part)
{
    if (ndim == 0)
        return part == 0 ? tt_box_whole(0, NULL) : tt_box_empty(0);
    return box_after(mesh, placement, ndim, shape, part, placement->n_cuts);
}

struct tt_box tt_placement_gathered(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                                    const int64_t *shape, int part)
{
    return box_after(mesh, placement, ndim, shape, part, ndim == 0 ? 0 : placement->n_cuts - 1);
}

int64_t tt_placement_padded(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                            const int64_t *shape)
{
    struct tt_box box = tt_placement_box(mesh, placement, ndim, shape, 0);

    return tt_box_volume(&box);
}

int tt_placement_find(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim, const int64_t *shape,
                      const int64_t *index)
{
    struct cutting cutting = {tt_box_whole(ndim, shape), tt_box_whole(ndim, shape)};
    int part = 0;

    for (int c = 0; c < placement->n_cuts && ndim > 0; c++) {
        int dim = placement->cut[c].dim, n = tt_mesh_size(mesh, placement->cut[c].group);
        int i = (int)((index[dim] - cutting.box.offset[dim]) / share_of(placement, c, n, &cutting));

        cut(placement, c, (struct tt_place){n, i}, &cutting);
        part = part * n + i;
    }
    return part;
}
