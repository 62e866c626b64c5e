/* SPDX-License-Identifier: MIT
 *
 * Boxes of tensors: intersection, reading one packed box into another, and the check that a set of boxes tiles a tensor.
 */
#include "checkpoint/format/box.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/os/file.h"

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

/* Position, in elements, of the first element of `part` in the packed box `in`. */
static int64_t position(const struct tt_box *part, const struct tt_box *in)
{
    int64_t at = 0;

    for (int d = 0; d < part->ndim; d++)
        at = at * in->shape[d] + (part->offset[d] - in->offset[d]);
    return at;
}

int tt_box_read(int fd, const char *path, int64_t begin, const struct tt_box *stored, const struct tt_box *want,
                size_t item, void *bytes)
{
    struct tt_box common, run;
    int64_t length = 1;
    int outer = stored->ndim, d = 0, rc = 0;

    if (!tt_box_intersect(stored, want, &common))
        return 0;
    /* A run may go on into dimension outer - 1 as long as all dimensions behind it are whole on both sides. */
    while (outer > 0) {
        outer--;
        length *= common.shape[outer];
        if (common.shape[outer] != stored->shape[outer] || common.shape[outer] != want->shape[outer])
            break;
    }
    run = common;
    for (;;) {
        char *to = (char *)bytes + (size_t)position(&run, want) * item;

        TT_TRY(tt_file_pread(fd, path, to, (size_t)length * item, begin + position(&run, stored) * (int64_t)item));
        for (d = outer - 1; d >= 0; d--) {
            if (++run.offset[d] < common.offset[d] + common.shape[d])
                break;
            run.offset[d] = common.offset[d];
        }
        if (d < 0)
            break;
    }
out:
    return rc;
}

static int compare_offsets(const void *pa, const void *pb)
{
    const struct tt_box *a = pa, *b = pb;

    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] != b->offset[d])
            return a->offset[d] < b->offset[d] ? -1 : 1;
    return 0;
}

/* The first rows that no box touches; when all rows are touched (tiles are missing), the whole tensor. */
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
                break; /* sorted by row: nothing further can touch box i */
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
