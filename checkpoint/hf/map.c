/* SPDX-License-Identifier: MIT
 *
 * Makes rows of titan's parameters from Hugging Face's tensors, and the reverse. With llama, the rows of q and k are
 * ordered differently in every head: RoPE pairs are (2i, 2i+1) in titan and (i, i + E/2) in Hugging Face's files. So
 * whole heads are read and their rows reordered. With gpt2, matrices are stored [in, out], so blocks of rows are read
 * and columns taken from them.
 *
 * Experts have a tensor each in their files, and are one parameter (experts, rows, columns) here. With gpt-oss theirs
 * is one tensor too, and the matrix of each expert is stored [in, out].
 *
 * A parameter is part hf_part of hf_parts equal parts of a tensor, one after the other along titan's first dimension.
 */
#include "checkpoint/hf/map.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"

enum { BLOCK_ELEMENTS = 1 << 18 };

static int64_t n_parts(const struct tt_param *param)
{
    return param->hf_parts > 1 ? param->hf_parts : 1;
}

static int64_t width_of(const struct tt_param *param)
{
    return param->ndim == 1 ? 1 : param->shape[param->ndim - 1];
}

int64_t tt_hf_tensors_of(const struct tt_param *param)
{
    return param->hf_transform == TT_HF_EXPERTS ? param->shape[0] : 1;
}

char *tt_hf_expert_name(const char *name, int64_t expert)
{
    const char *star = strchr(name, '*');

    return tt_format("%.*s%lld%s", (int)(star - name), name, (long long)expert, star + 1);
}

bool tt_hf_is_name(const struct tt_param *param, const char *name)
{
    const char *star = param->hf_transform == TT_HF_EXPERTS ? strchr(param->hf_name, '*') : NULL;
    long long expert;
    char *end;

    if (!param->hf_name)
        return false;
    if (!star)
        return strcmp(param->hf_name, name) == 0;
    if (strncmp(name, param->hf_name, (size_t)(star - param->hf_name)) != 0)
        return false;
    name += star - param->hf_name;
    expert = strtoll(name, &end, 10);
    return end > name && expert >= 0 && expert < param->shape[0] && strcmp(end, star + 1) == 0;
}

struct tt_hf_tensor tt_hf_tensor_of(const struct tt_model *model, int param)
{
    const struct tt_param *p = &model->params[param];
    struct tt_hf_tensor t = {.name = p->hf_name, .ndim = p->ndim, .n_params = 1, .param = {param}};

    memcpy(t.shape, p->shape, sizeof t.shape);
    if (p->hf_transform == TT_HF_EXPERTS) {
        t.ndim = 2;
        t.shape[0] = p->shape[1];
        t.shape[1] = p->shape[2];
        t.shape[2] = 0;
        return t;
    }
    t.shape[0] *= n_parts(p);
    if (p->hf_transform == TT_HF_TRANSPOSE) {
        t.shape[1] = t.shape[0];
        t.shape[0] = p->shape[1];
    }
    if (p->hf_transform == TT_HF_EXPERTS_TRANSPOSE) {
        t.shape[1] = p->shape[2];
        t.shape[2] = p->shape[1];
    }
    return t;
}

/* The parameter that holds part `part` of the tensor `name`. */
static int find_part(const struct tt_model *model, const char *name, int part)
{
    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].hf_part == part && model->params[p].hf_name && strcmp(model->params[p].hf_name, name) == 0)
            return p;
    return TT_NONE;
}

/* The list, with room for the names of experts behind it. */
static struct tt_hf_tensor *new_list(const struct tt_model *model, char **ret_names)
{
    enum { DIGITS = 20 };
    struct tt_hf_tensor *list;
    int64_t n = 0;
    size_t bytes = 0;

    for (int p = 0; p < model->n_params; p++) {
        n += tt_hf_tensors_of(&model->params[p]);
        if (model->params[p].hf_transform == TT_HF_EXPERTS)
            bytes += (size_t)model->params[p].shape[0] * (strlen(model->params[p].hf_name) + DIGITS);
    }
    list = tt_calloc(1, (size_t)n * sizeof *list + bytes + 1);
    *ret_names = (char *)(list + n);
    return list;
}

/* Adds the tensors of a parameter's experts; returns how many. */
static int add_experts(const struct tt_model *model, int param, struct tt_hf_tensor *list, char **names)
{
    int n = (int)tt_hf_tensors_of(&model->params[param]);

    for (int e = 0; e < n; e++) {
        char *name = tt_hf_expert_name(model->params[param].hf_name, e);

        list[e] = tt_hf_tensor_of(model, param);
        list[e].expert = e;
        list[e].name = memcpy(*names, name, strlen(name) + 1);
        *names += strlen(name) + 1;
        tt_free(name);
    }
    return n;
}

struct tt_hf_tensor *tt_hf_tensors(const struct tt_model *model, bool adapters, int *ret_n)
{
    char *names;
    struct tt_hf_tensor *list = new_list(model, &names);
    int n = 0;

    for (int p = 0; p < model->n_params; p++) {
        struct tt_hf_tensor *t = &list[n];

        if (model->params[p].adapter != adapters || model->params[p].hf_part > 0 || !model->params[p].hf_name)
            continue; /* a part is listed with the first one of its tensor */
        if (model->params[p].hf_transform == TT_HF_EXPERTS) {
            n += add_experts(model, p, t, &names);
            continue;
        }
        *t = tt_hf_tensor_of(model, p);
        t->n_params = (int)n_parts(&model->params[p]);
        for (int part = 0; part < t->n_params; part++)
            t->param[part] = find_part(model, t->name, part);
        n++;
    }
    *ret_n = n;
    return list;
}

/* The row of a head in the layout that is read, for `row` of the layout that is written. */
static int64_t head_row(int64_t row, int64_t head_dim, bool import)
{
    int64_t half = head_dim / 2;

    return import ? row % 2 * half + row / 2 : row % half * 2 + row / half;
}

static int copy_heads(const struct tt_param *p, int param, tt_hf_read_fn read, void *arg, int64_t row, int64_t n,
                      bool import, float *data)
{
    int64_t width = width_of(p), head_dim = p->shape[0] / p->hf_heads, end = row + n;
    float *head = tt_calloc_for((size_t)(head_dim * width), sizeof *head, p->name);
    int rc = head ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    for (int64_t h = row / head_dim; h * head_dim < end; h++) {
        TT_TRY(read(arg, param, h * head_dim, head_dim, head));
        for (int64_t i = 0; i < head_dim; i++) {
            int64_t at = h * head_dim + i;

            if (at >= row && at < end)
                memcpy(data + (at - row) * width, head + head_row(i, head_dim, import) * width,
                       (size_t)width * sizeof *head);
        }
    }
out:
    tt_free(head);
    return rc;
}

/* Columns [column, column + n) of a stored (rows, width) matrix, each written as a row of data, `stride` apart. */
static int copy_columns(int param, tt_hf_read_fn read, void *arg, int64_t rows, int64_t width, int64_t column,
                        int64_t n, int64_t stride, float *data)
{
    int64_t step = width < BLOCK_ELEMENTS ? BLOCK_ELEMENTS / width : 1;
    float *block = tt_calloc_for((size_t)((step < rows ? step : rows) * width), sizeof *block, "a transposed tensor");
    int rc = block ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    for (int64_t first = 0; first < rows; first += step) {
        int64_t have = rows - first < step ? rows - first : step;

        TT_TRY(read(arg, param, first, have, block));
        for (int64_t c = 0; c < n; c++)
            for (int64_t r = 0; r < have; r++)
                data[c * stride + first + r] = block[r * width + column + c];
    }
out:
    tt_free(block);
    return rc;
}

/* Experts [expert, expert + n): each of their matrices, stored (rows, columns), is written as (columns, rows). */
static int transpose_experts(int param, tt_hf_read_fn read, void *arg, int64_t rows, int64_t columns, int64_t expert,
                             int64_t n, float *data)
{
    float *matrix = tt_calloc_for((size_t)(rows * columns), sizeof *matrix, "the matrix of an expert");
    int rc = matrix ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    for (int64_t e = 0; e < n; e++) {
        float *to = data + e * rows * columns;

        TT_TRY(read(arg, param, expert + e, 1, matrix));
        for (int64_t c = 0; c < columns; c++)
            for (int64_t r = 0; r < rows; r++)
                to[c * rows + r] = matrix[r * columns + c];
    }
out:
    tt_free(matrix);
    return rc;
}

int tt_hf_import(const struct tt_model *model, int param, tt_hf_read_fn read, void *arg, int64_t row, int64_t n,
                 float *data)
{
    const struct tt_param *p = &model->params[param];
    int64_t first = p->hf_part * p->shape[0] + row; /* as if all parts were one parameter */

    if (n == 0)
        return 0;
    switch (p->hf_transform) {
    case TT_HF_SAME:
        return read(arg, param, first, n, data);
    case TT_HF_ROPE_PAIRS:
        return copy_heads(p, param, read, arg, row, n, true, data);
    case TT_HF_TRANSPOSE:
        return copy_columns(param, read, arg, p->shape[1], n_parts(p) * p->shape[0], first, n, p->shape[1], data);
    case TT_HF_EXPERTS:
        return read(arg, param, row * p->shape[1], n * p->shape[1], data);
    case TT_HF_EXPERTS_TRANSPOSE:
        return transpose_experts(param, read, arg, p->shape[2], p->shape[1], row, n, data);
    }
    return tt_fail(TT_EINTERNAL, "parameter %s has a layout that cannot be read", p->name);
}

/* Writes the rows of each part that lie in [row, row + n). */
static int export_rows(const struct tt_model *model, const struct tt_hf_tensor *t, tt_hf_read_fn read, void *arg,
                       int64_t row, int64_t n, float *data)
{
    int rc = 0;

    for (int k = 0; k < t->n_params; k++) {
        const struct tt_param *p = &model->params[t->param[k]];
        int64_t base = k * p->shape[0], from = row > base ? row - base : 0;
        int64_t to = row + n - base < p->shape[0] ? row + n - base : p->shape[0];

        if (from < to)
            TT_TRY(read(arg, t->param[k], from, to - from, data + (base + from - row) * width_of(p)));
    }
out:
    return rc;
}

/* Rows of an expert's matrix, which is one row of the parameter. */
static int export_expert(const struct tt_param *p, const struct tt_hf_tensor *t, tt_hf_read_fn read, void *arg,
                         int64_t row, int64_t n, float *data)
{
    int64_t rows = p->shape[1], width = p->shape[2];
    float *whole;
    int rc = 0;

    if (n == rows)
        return read(arg, t->param[0], t->expert, 1, data);
    whole = tt_calloc_for((size_t)(rows * width), sizeof *whole, t->name);
    if (!whole)
        return TT_ENOMEM;
    TT_TRY(read(arg, t->param[0], t->expert, 1, whole));
    memcpy(data, whole + row * width, (size_t)(n * width) * sizeof *data);
out:
    tt_free(whole);
    return rc;
}

int tt_hf_export(const struct tt_model *model, const struct tt_hf_tensor *t, tt_hf_read_fn read, void *arg, int64_t row,
                 int64_t n, float *data)
{
    const struct tt_param *p = &model->params[t->param[0]];
    int rc = 0;

    switch (p->hf_transform) {
    case TT_HF_SAME:
        return export_rows(model, t, read, arg, row, n, data);
    case TT_HF_ROPE_PAIRS:
        return copy_heads(p, t->param[0], read, arg, row, n, false, data);
    case TT_HF_TRANSPOSE:
        for (int k = 0; k < t->n_params; k++)
            TT_TRY(copy_columns(t->param[k], read, arg, p->shape[0], p->shape[1], row, n, t->shape[1],
                                data + k * p->shape[0]));
        return 0;
    case TT_HF_EXPERTS:
        return export_expert(p, t, read, arg, row, n, data);
    case TT_HF_EXPERTS_TRANSPOSE:
        return transpose_experts(t->param[0], read, arg, p->shape[1], p->shape[2], row, n, data);
    }
    rc = tt_fail(TT_EINTERNAL, "parameter %s has a layout that cannot be written", p->name);
out:
    return rc;
}
