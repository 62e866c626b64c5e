/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_PLACEMENT_H
#define TT_PARALLEL_LAYOUT_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/math/box.h"
#include "parallel/layout/mesh.h"

/**
 * The shards of a tensor and their ranks: the arithmetic of struct tt_placement (core/program/layout.h), for training
 * and for checkpoints. A placement cuts a tensor into parts, each of which is one box. Parts are numbered so that the
 * place in the last cut changes fastest. Each rank of the copy group holds one copy of a part.
 *
 * A cut over n ranks works like torch.chunk: each rank has ceil(size / n) rows (or columns, or experts), and the last
 * ranks have fewer or none. A cut with grains gives each rank the same number of grains of ceil(size / grains), so any
 * number of ranks that divides the grains cuts at borders of grains. A step rounds these sizes up, so that no rank gets
 * a part of a block (core/math/dynamic.h). In collectives every part is padded to the size of
 * the first. Files and digests contain only the valid elements. All functions are pure, so every rank gets the same
 * result. shape has ndim sizes; a scalar (ndim 0) belongs to part 0.
 *
 * In a pipeline, only the ranks at the placement's place of TT_GROUP_PP have parts. Parts and copies have the same
 * numbers at every place, so a rank at another place has a part number too, but not the elements.
 */

/**
 * The range of part i of a dimension of `size` elements that is cut into n parts: *ret_begin in [0, size], *ret_count
 * in [0, ceil(size / n)].
 */
void tt_chunk(int64_t size, int n, int i, int64_t *ret_begin, int64_t *ret_count);

/** The number of parts, and of copies of each. */
int tt_placement_parts(const struct tt_mesh *mesh, const struct tt_placement *placement);
int tt_placement_copies(const struct tt_mesh *mesh, const struct tt_placement *placement);

/** Whether a rank has a part, that is, whether it is at the placement's place in the pipeline. */
static inline bool tt_placement_has(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank)
{
    return tt_mesh_coordinate(mesh, rank, TT_MESH_PP) == placement->pp;
}

/** The number of a rank's part, and the number of its copy. A rank without a part (tt_placement_has) gets the numbers
 * of the rank with the same place in all other dimensions. */
int tt_placement_part(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank);
int tt_placement_copy(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank);

/** The rank that holds copy number `copy` of a part. */
int tt_placement_rank(const struct tt_mesh *mesh, const struct tt_placement *placement, int part, int copy);

/** The rank that holds a part and belongs to the same copy as `rank`; `rank` may be anywhere in a pipeline. */
int tt_placement_holder(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank, int part);

/** The elements of a part; an empty part is a box of volume 0. */
struct tt_box tt_placement_box(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                               const int64_t *shape, int part);

/** The elements that the ranks of the last cut hold together, that is, the result of a gather. */
struct tt_box tt_placement_gathered(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                                    const int64_t *shape, int part);

/** The number of elements of the first part, to which all other parts are padded. */
int64_t tt_placement_padded(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                            const int64_t *shape);

/** The part that contains the element with these indices, one per dimension. */
int tt_placement_find(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim, const int64_t *shape,
                      const int64_t *index);

#endif
