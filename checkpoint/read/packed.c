/* SPDX-License-Identifier: MIT
 *
 * Packed rows of weights: as the files store them, if they have the same blocks, or packed from their elements.
 */
#include <string.h>

#include "checkpoint/format/gguf.h"
#include "checkpoint/read/map.h"
#include "checkpoint/read/weights.h"
#include "core/base/mem.h"

/*
 * --- rows as they are stored ---
 *
 * titan's rows are the rows of a file in another order, or of another tensor. The functions that map elements say
 * which: they get rows whose elements are all the number of the row in a list. If a row comes out with different
 * elements, it is not a row of the file.
 */

struct stored_row {
    int number; /* of the parameter, or of the tensor in w->gguf */
    int64_t row;
};

struct listing {
    const struct tt_weights *w;
    struct stored_row *row;
    int64_t n, cap;
};

enum { MOST_ROWS = 1 << 24 /* numbers that a float represents */ };

static int list_rows(void *arg, int number, int64_t row, int64_t n, float *data)
{
    struct listing *list = arg;
    const struct tt_weights *w = list->w;
    const struct tt_hf_stored *stored =
        w->kind == TT_WEIGHTS_FROM_GGUF ? &w->stored[number] : &w->stored[w->first[number]];
    int64_t width = tt_row_width(stored->ndim, stored->shape);

    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < width; c++)
            data[r * width + c] = (float)list->n;
        TT_PUSH(list->row, list->n, list->cap) = (struct stored_row){number, row + r};
    }
    return 0;
}

/* The stored rows of rows [row, row + n) of a weight; *ret_rows is NULL if they are not rows of the file. */
static int find_rows(const struct tt_weights *w, const struct tt_weight *weight, int64_t row, int64_t n,
                     struct stored_row **ret_rows)
{
    int64_t width = weight->shape[1];
    float *numbers = tt_calloc_for((size_t)(n * width), sizeof *numbers, weight->name);
    struct stored_row *rows = tt_calloc((size_t)n + 1, sizeof *rows);
    struct listing list = {.w = w};
    bool are_rows = true;
    int rc = numbers ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    if (w->kind == TT_WEIGHTS_FROM_GGUF)
        TT_TRY(tt_gguf_import(w->model, w->gguf, w->n_gguf, weight->number, list_rows, &list, row, n, numbers));
    else
        TT_TRY(tt_hf_import(w->model, weight->number, list_rows, &list, row, n, numbers));
    are_rows = list.n < MOST_ROWS;
    for (int64_t r = 0; r < n && are_rows; r++) {
        const float *at = numbers + r * width;

        for (int64_t c = 1; c < width && are_rows; c++)
            are_rows = at[c] == at[0];
        if (are_rows)
            rows[r] = list.row[(int64_t)at[0]];
    }
    if (are_rows) {
        *ret_rows = rows;
        rows = NULL;
    }
out:
    tt_free(list.row);
    tt_free(numbers);
    tt_free(rows);
    return rc;
}

bool tt_weights_keep_packing(const struct tt_weights *w, const struct tt_weight *weight, enum tt_packing_choice packing)
{
    const struct tt_hf_stored *stored;
    bool found = false;

    if (w->kind == TT_WEIGHTS_FROM_HF) {
        stored = &w->stored[w->first[weight->number]];
        return stored->bnb && tt_bnb_is_packed(stored->bnb, packing);
    }
    for (int i = 0; i < w->n_gguf && w->kind == TT_WEIGHTS_FROM_GGUF; i++)
        for (int k = 0; k < w->gguf[i].n_params && !w->gguf[i].is_copy; k++) {
            const struct tt_manifest_tensor *t = w->stored[i].values;

            if (w->gguf[i].param[k] != weight->number)
                continue;
            found = true;
            if (!t || !t->packing || tt_gguf_packing(t->packing) != packing)
                return false;
        }
    return found;
}

/* Reads n stored rows, which are one after the other in one tensor. */
static int read_stored(struct tt_weights *w, const struct stored_row *first, int64_t n, char *to)
{
    const struct tt_hf_stored *stored;
    int rc = 0;

    if (w->kind == TT_WEIGHTS_FROM_HF) {
        stored = &w->stored[w->first[first->number]];
        return tt_bnb_read_packed(w->source, stored->bnb, first->row, n, to);
    }
    stored = &w->stored[first->number];
    TT_TRY(tt_weights_check_pieces(w, stored->values));
    rc = tt_source_read_rows(w->source, stored->values, first->row, n, stored->values->dtype, to);
out:
    return rc;
}

static int read_rows(struct tt_weights *w, const struct stored_row *rows, int64_t n, int64_t bytes, char *to)
{
    int rc = 0;

    for (int64_t at = 0, some; at < n && rc == 0; at += some) {
        for (some = 1;
             at + some < n && rows[at + some].number == rows[at].number && rows[at + some].row == rows[at].row + some;)
            some++;
        rc = read_stored(w, &rows[at], some, to + at * bytes);
    }
    return rc;
}

/* --- rows packed from elements --- */

/* A matrix: of an import, or as it is stored. */
struct matrix {
    const char *name;
    int64_t rows, width;
    struct tt_weights *weights;
    const struct tt_weight *weight;
    struct tt_source *source;
    const struct tt_manifest_tensor *tensor;
};

static int read_elements(const struct matrix *m, int64_t row, int64_t n, float *to)
{
    return m->weights ? tt_weights_read(m->weights, m->weight, row, n, TT_F32, to)
                      : tt_source_read_rows(m->source, m->tensor, row, n, TT_F32, to);
}

/* Of the model there is never more than one matrix in full. */
static int pack_rows(const struct matrix *m, enum tt_packing_choice packing, int64_t row, int64_t n, void *to)
{
    bool all = tt_packing_needs_whole(packing);
    int64_t begin = all ? 0 : row, rows = all ? m->rows : n;
    float *elements = tt_calloc_for((size_t)(rows * m->width), sizeof *elements, m->name);
    int rc = elements ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(read_elements(m, begin, rows, elements));
    tt_pack(packing, elements, rows, m->width, row - begin, n, to);
out:
    tt_free(elements);
    return rc;
}

static int read_part(const struct matrix *m, enum tt_packing_choice packing, const struct tt_box *part, void *data)
{
    int64_t row = part->offset[0], n = part->shape[0], columns = part->shape[1];
    int64_t bytes = tt_packing_row_bytes(packing, m->width);
    struct stored_row *rows = NULL;
    char *whole = data;
    int rc = 0;

    if (columns < m->width && !(whole = tt_calloc_for((size_t)n, (size_t)bytes, m->name)))
        return TT_ENOMEM;
    if (m->weights && tt_weights_keep_packing(m->weights, m->weight, packing))
        TT_TRY(find_rows(m->weights, m->weight, row, n, &rows));
    TT_TRY(rows ? read_rows(m->weights, rows, n, bytes, whole) : pack_rows(m, packing, row, n, whole));
    for (int64_t r = 0; r < n && whole != data; r++)
        tt_packing_cut(packing, whole + r * bytes, m->width, part->offset[1], columns,
                       (char *)data + r * tt_packing_row_bytes(packing, columns));
out:
    if (whole != data)
        tt_free(whole);
    tt_free(rows);
    return rc;
}

int tt_weights_read_packed(struct tt_weights *weights, const struct tt_weight *weight, enum tt_packing_choice packing,
                           const struct tt_box *part, void *data)
{
    const struct matrix m = {.name = weight->name,
                             .rows = weight->shape[0],
                             .width = weight->shape[1],
                             .weights = weights,
                             .weight = weight};

    return read_part(&m, packing, part, data);
}

int tt_source_read_packed(struct tt_source *source, const struct tt_manifest_tensor *tensor,
                          enum tt_packing_choice packing, const struct tt_box *part, void *data)
{
    const struct matrix m = {
        .name = tensor->name, .rows = tensor->shape[0], .width = tensor->shape[1], .source = source, .tensor = tensor};

    return read_part(&m, packing, part, data);
}
