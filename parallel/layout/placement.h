/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_PLACEMENT_H
#define TT_PARALLEL_LAYOUT_PLACEMENT_H

#include <stdint.h>

#include "core/math/box.h"
#include "parallel/layout/mesh.h"

/**
 * Which rank holds which part of a tensor: the arithmetic of struct tt_placement (core/program/layout.h), for training
 * and for checkpoints. A placement cuts a tensor into parts, each one box; the parts are numbered, the places in the
 * last cut first, and every part has as many copies as the group of copies has ranks.
 *
 * A cut over n ranks is torch.chunk's: ceil(size / n) rows (or columns, or experts) each, the last ranks short or
 * empty. On the wire and in the buffers of collectives every rank of the last cut has the full chunk (padded); files
 * and digests have the valid elements only. Pure functions, the same on every rank. shape has ndim sizes; a scalar
 * (ndim 0) belongs to part 0.
 */

/**
 * What part i of a dimension of `size` cut into n parts has of it: *ret_begin in [0, size], *ret_count in [0,
 * ceil(size / n)].
 */
void tt_chunk(int64_t size, int n, int i, int64_t *ret_begin, int64_t *ret_count);

/** How many parts there are, and how many ranks hold each of them. */
int tt_placement_parts(const struct tt_mesh *mesh, const struct tt_placement *placement);
int tt_placement_copies(const struct tt_mesh *mesh, const struct tt_placement *placement);

/** The part that a rank holds, and the number of its copy. */
int tt_placement_part(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank);
int tt_placement_copy(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank);

/** The rank that holds a copy of a part. */
int tt_placement_rank(const struct tt_mesh *mesh, const struct tt_placement *placement, int part, int copy);

/** The rank that holds a part of the copy that `rank` has a part of. */
int tt_placement_holder(const struct tt_mesh *mesh, const struct tt_placement *placement, int rank, int part);

/** The elements of a part; none has volume 0. */
struct tt_box tt_placement_box(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                               const int64_t *shape, int part);

/** Elements of a part with its padding. */
int64_t tt_placement_padded(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                            const int64_t *shape, int part);

/** The part that has the element with these indices, one per dimension. */
int tt_placement_find(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim, const int64_t *shape,
                      const int64_t *index);

#endif
