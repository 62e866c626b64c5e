/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_BOX_H
#define TT_MATH_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * A box: the part of a tensor with the given offset and shape, in elements per dimension. A rank's part of a tensor is
 * a box, and so is a chunk of a checkpoint. A scalar has ndim 0 and volume 1. A packed box is an array of its elements
 * in row-major order.
 */
enum { TT_BOX_DIMS = 8 };

struct tt_box {
    int ndim;
    int64_t offset[TT_BOX_DIMS];
    int64_t shape[TT_BOX_DIMS];
};

/** The whole of a tensor. */
struct tt_box tt_box_whole(int ndim, const int64_t *shape);

/** An empty part of a tensor. Since a scalar has volume 1, the empty part of a scalar is a box with one dimension of
 * size 0. */
static inline struct tt_box tt_box_empty(int ndim)
{
    return (struct tt_box){.ndim = ndim > 0 ? ndim : 1};
}

/** Rows [row_begin, row_begin + rows) of dim 0. A scalar has a single row, 0, which is the whole. */
struct tt_box tt_box_rows(int ndim, const int64_t *shape, int64_t row_begin, int64_t rows);

/** Elements in the box. The caller must know that the product does not overflow (see tt_box_checked_volume). */
int64_t tt_box_volume(const struct tt_box *box);

/** Product of n sizes; false when one is negative or the product does not fit. */
bool tt_box_checked_volume(const int64_t *shape, int n, int64_t *ret_volume);

bool tt_box_equal(const struct tt_box *a, const struct tt_box *b);

/** The common part of two boxes of one tensor; false if it is empty. ret_common may be NULL. */
bool tt_box_intersect(const struct tt_box *a, const struct tt_box *b, struct tt_box *ret_common);

/** "[0:3, 0:512]" into buf; returns buf. */
char *tt_box_text(char *buf, size_t buf_size, const struct tt_box *box);

/** Elements of one row: the product of all dimensions except the first. */
int64_t tt_box_row_elements(const struct tt_box *box);

/**
 * Where a packed box `inner` lies in a packed box `outer` that contains it: element number `at` of inner is element
 * number tt_box_position of outer, and runs of tt_box_run elements of inner are contiguous in outer too.
 */
int64_t tt_box_position(const struct tt_box *inner, int64_t at, const struct tt_box *outer);
int64_t tt_box_run(const struct tt_box *inner, const struct tt_box *outer);

/** Copies the elements of `to` (`item` bytes each), packed, out of the packed box `from` that contains it. */
void tt_box_copy(const struct tt_box *to, void *to_bytes, const struct tt_box *from, const void *from_bytes,
                 size_t item);

/**
 * Whether boxes tile a tensor of the given shape: each box is in bounds, boxes are pairwise disjoint, no element is
 * missing. n may be 0 for a tensor without elements. Sorts the boxes. On failure the two boxes at fault (or the missing
 * part) are in ret_a, ret_b.
 */
enum tt_cover { TT_COVER_EXACT, TT_COVER_OUTSIDE, TT_COVER_OVERLAP, TT_COVER_MISSING };
enum tt_cover tt_box_cover(int ndim, const int64_t *shape, struct tt_box *box, int n, struct tt_box *ret_a,
                           struct tt_box *ret_b);

#endif
