/* SPDX-License-Identifier: MIT
 *
 * Boxes of tensors: their intersection, the position of one packed box in another, and the check that a set of boxes
 * tiles a tensor.
 */
#include "core/math/box.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tt_box tt_box_whole(int ndim, const int64_t *shape)
{
    struct tt_box box = {.ndim = ndim};

    for (int d = 0; d < ndim; d++)
        box.shape[d] = shape[d];
    return box;
}

struct tt_box tt_box_rows(int ndim, const int64_t *shape, int64_t row_begin, int64_t rows)
{
    struct tt_box box = tt_box_whole(ndim, shape);

    if (ndim) {
        box.offset[0] = row_begin;
        box.shape[0] = rows;
    }
    return box;
}

int64_t tt_box_volume(const struct tt_box *box)
{
    int64_t volume = 1;

    for (int d = 0; d < box->ndim; d++)
        volume *= box->shape[d];
    return volume;
}

bool tt_box_checked_volume(const int64_t *shape, int n, int64_t *ret_volume)
{
    int64_t volume = 1;
    bool empty = false;

    for (int d = 0; d < n; d++) {
        if (shape[d] < 0)
            return false;
        if (shape[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(volume, shape[d], &volume))
            return false;
    }
    *ret_volume = empty ? 0 : volume;
    return true;
}

bool tt_box_equal(const struct tt_box *a, const struct tt_box *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] != b->offset[d] || a->shape[d] != b->shape[d])
            return false;
    return true;
}

bool tt_box_intersect(const struct tt_box *a, const struct tt_box *b, struct tt_box *ret_common)
{
    struct tt_box common = {.ndim = a->ndim};

    for (int d = 0; d < a->ndim; d++) {
        int64_t a_end = a->offset[d] + a->shape[d], b_end = b->offset[d] + b->shape[d];
        int64_t begin = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t end = a_end < b_end ? a_end : b_end;

        if (begin >= end)
            return false;
        common.offset[d] = begin;
        common.shape[d] = end - begin;
    }
    if (ret_common)
        *ret_common = common;
    return true;
}

char *tt_box_text(char *buf, size_t buf_size, const struct tt_box *box)
{
    size_t used = 1;

    (void)snprintf(buf, buf_size, "[");
    for (int d = 0; d < box->ndim && used < buf_size; d++)
        used += (size_t)snprintf(buf + used, buf_size - used, "%s%" PRId64 ":%" PRId64, d ? ", " : "", box->offset[d],
                                 box->offset[d] + box->shape[d]);
    if (used < buf_size)
        (void)snprintf(buf + used, buf_size - used, "]");
    return buf;
}

int64_t tt_box_row_elements(const struct tt_box *box)
{
    int64_t elements = 1;

    for (int d = 1; d < box->ndim; d++)
        elements *= box->shape[d];
    return elements;
}

int64_t tt_box_position(const struct tt_box *inner, int64_t at, const struct tt_box *outer)
{
    int64_t position = 0, stride = 1;

    for (int d = inner->ndim - 1; d >= 0; d--) {
        position += (inner->offset[d] - outer->offset[d] + at % inner->shape[d]) * stride;
        at /= inner->shape[d];
        stride *= outer->shape[d];
    }
    return position;
}

int64_t tt_box_run(const struct tt_box *inner, const struct tt_box *outer)
{
    int64_t run = 1;

    /* A run continues into the next dimension as long as inner covers all of outer in the dimensions within. */
    for (int d = inner->ndim - 1; d >= 0; d--) {
        run *= inner->shape[d];
        if (inner->shape[d] != outer->shape[d])
            break;
    }
    return run;
}

void tt_box_copy(const struct tt_box *to, void *to_bytes, const struct tt_box *from, const void *from_bytes,
                 size_t item)
{
    int64_t run = tt_box_run(to, from), n = tt_box_volume(to);

    for (int64_t at = 0; at < n; at += run)
        memcpy((char *)to_bytes + (size_t)at * item,
               (const char *)from_bytes + (size_t)tt_box_position(to, at, from) * item, (size_t)run * item);
}

static int compare_offsets(const void *pa, const void *pb)
{
    const struct tt_box *a = pa, *b = pb;

    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] != b->offset[d])
            return a->offset[d] < b->offset[d] ? -1 : 1;
    return 0;
}

/* The first rows that no box touches; if every row is touched but elements are missing, the whole tensor. */
static struct tt_box missing_part(int ndim, const int64_t *shape, const struct tt_box *sorted, int n)
{
    int64_t row = 0;

    if (ndim == 0)
        return tt_box_whole(0, shape);
    for (int i = 0; i < n; i++) {
        int64_t end = sorted[i].offset[0] + sorted[i].shape[0];

        if (sorted[i].offset[0] > row)
            return tt_box_rows(ndim, shape, row, sorted[i].offset[0] - row);
        if (end > row)
            row = end;
    }
    return row < shape[0] ? tt_box_rows(ndim, shape, row, shape[0] - row) : tt_box_whole(ndim, shape);
}

enum tt_cover tt_box_cover(int ndim, const int64_t *shape, struct tt_box *box, int n, struct tt_box *ret_a,
                           struct tt_box *ret_b)
{
    struct tt_box whole = tt_box_whole(ndim, shape);
    int64_t volume = 0;
    bool fits = true;

    for (int i = 0; i < n; i++) {
        for (int d = 0; d < ndim; d++) {
            if (box[i].offset[d] >= 0 && box[i].shape[d] >= 0 && box[i].offset[d] <= shape[d] &&
                box[i].shape[d] <= shape[d] - box[i].offset[d])
                continue;
            *ret_a = box[i];
            *ret_b = whole;
            return TT_COVER_OUTSIDE;
        }
        fits = fits && !__builtin_add_overflow(volume, tt_box_volume(&box[i]), &volume);
    }
    if (n)
        qsort(box, (size_t)n, sizeof *box, compare_offsets);
    for (int i = 0; i < n; i++) {
        for (int j = i + 1; j < n; j++) {
            if (ndim && box[j].offset[0] >= box[i].offset[0] + box[i].shape[0])
                break; /* boxes are sorted by row, so no later box can touch box i */
            if (!tt_box_intersect(&box[i], &box[j], NULL))
                continue;
            *ret_a = box[i];
            *ret_b = box[j];
            return TT_COVER_OVERLAP;
        }
    }
    if (!fits || volume != tt_box_volume(&whole)) {
        *ret_a = missing_part(ndim, shape, box, n);
        *ret_b = whole;
        return TT_COVER_MISSING;
    }
    return TT_COVER_EXACT;
}
