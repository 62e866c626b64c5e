/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_BOX_H
#define TT_CHECKPOINT_FORMAT_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A box: the part of a tensor that starts at offset and has shape, in elements, per dimension. Checkpoint chunks are
 * boxes; titan writes whole rows, PyTorch may also write tiles. A scalar has ndim 0 and volume 1.
 */
enum { TT_BOX_DIMS = 8 };

struct tt_box {
    int ndim;
    int64_t offset[TT_BOX_DIMS];
    int64_t shape[TT_BOX_DIMS];
};

/** The whole of a tensor. */
struct tt_box tt_box_whole(int ndim, const int64_t *shape);

/** Rows [row_begin, row_begin + rows) of dim 0. A scalar has the one row 0, which is the whole. */
struct tt_box tt_box_rows(int ndim, const int64_t *shape, int64_t row_begin, int64_t rows);

/** Elements in the box. The caller knows that it does not overflow (see tt_box_checked_volume). */
int64_t tt_box_volume(const struct tt_box *box);

/** Product of n sizes; false when one is negative or the product does not fit. */
bool tt_box_checked_volume(const int64_t *shape, int n, int64_t *ret_volume);

bool tt_box_equal(const struct tt_box *a, const struct tt_box *b);

/** The common part of two boxes of one tensor; false when it is empty. ret_common may be NULL. */
bool tt_box_intersect(const struct tt_box *a, const struct tt_box *b, struct tt_box *ret_common);

/** "[0:3, 0:512]" into buf; returns buf. */
char *tt_box_text(char *buf, size_t buf_size, const struct tt_box *box);

/**
 * Reads what the box `stored` (packed row-major in the file from byte `begin`) has of the box `want` into `bytes`, which
 * is packed as `want`. Parts of `want` outside `stored` stay untouched. item: bytes per element. path is for messages.
 */
int tt_box_read(int fd, const char *path, int64_t begin, const struct tt_box *stored, const struct tt_box *want,
                size_t item, void *bytes) TT_MUST_CHECK;

/**
 * Whether boxes tile the tensor of that shape: each in bounds, pairwise disjoint, no element missing. n may be 0 for a
 * tensor without elements. Sorts the boxes. On failure the two boxes at fault (or the missing part) are in ret_a, ret_b.
 */
enum tt_cover { TT_COVER_EXACT, TT_COVER_OUTSIDE, TT_COVER_OVERLAP, TT_COVER_MISSING };
enum tt_cover tt_box_cover(int ndim, const int64_t *shape, struct tt_box *box, int n, struct tt_box *ret_a,
                           struct tt_box *ret_b);

#endif
