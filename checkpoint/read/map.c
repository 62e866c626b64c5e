/* SPDX-License-Identifier: MIT
 *
 * Maps names and layouts of parameters between titan and Hugging Face's or GGUF files, and copies rows, one block at a
 * time.
 *
 * Hugging Face: with llama, the rows of q and k are ordered differently in every head: RoPE pairs are (2i, 2i+1) in
 * titan and (i, i + E/2) in Hugging Face's files. So whole heads are read and their rows reordered. With gpt2, matrices
 * are stored [in, out], so blocks of rows are read and columns taken from them. Each expert is a tensor in their files;
 * here all experts are one parameter (experts, rows, columns). For gpt-oss, they are one tensor there too, with the
 * matrix of each expert stored [in, out]. A parameter is part hf_part of hf_parts of a tensor, one after the other
 * along titan's first dimension; it begins at hf_row.
 *
 * GGUF: each parameter has a row in a table, here or in the row of its family. Experts are one tensor of three
 * dimensions, as in titan. Rows of q and k of `llama`, `granite` and `smollm3` are ordered for pairs (2i, 2i+1), like
 * titan's llama3. Mixtral is a `llama` there, but titan orders its rows for halves. Where titan's norm computes with 1
 * + w, the file stores the sum.
 */
#include "checkpoint/read/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/models/gguf.h"

enum { BLOCK_ELEMENTS = 1 << 18 };

/* --- rows of both --- */

int64_t tt_row_width(int ndim, const int64_t *shape)
{
    int64_t width = 1;

    for (int d = 1; d < ndim; d++)
        width *= shape[d];
    return width;
}

/* Rows [row, row + n) of a tensor that contains n_params parameters, one after the other along the first dimension. */
static int join_params(const struct tt_model *model, const int *params, int n_params, tt_hf_read_fn read, void *arg,
                       int64_t row, int64_t n, float *data)
{
    int64_t base = 0;
    int rc = 0;

    for (int k = 0; k < n_params; base += model->params[params[k++]].shape[0]) {
        const struct tt_param *p = &model->params[params[k]];
        int64_t from = row > base ? row - base : 0;
        int64_t to = row + n - base < p->shape[0] ? row + n - base : p->shape[0];

        if (from < to)
            TT_TRY(read(arg, params[k], from, to - from, data + (base + from - row) * tt_row_width(p->ndim, p->shape)));
    }
out:
    return rc;
}

/*
 * Rows [row, row + n) of array `number`, with the rows of each head reordered: RoPE rotates pairs, which are (2i, 2i+1)
 * in one order and (i, i + E/2) in the other. Reads whole heads.
 */
static int order_heads(int64_t head_dim, int64_t width, int number, tt_hf_read_fn read, void *arg, int64_t row,
                       int64_t n, bool to_pairs, float *data)
{
    int64_t half = head_dim / 2;
    float *head = tt_calloc_for((size_t)(head_dim * width), sizeof *head, "the rows of a head");
    int rc = head ? 0 : TT_ENOMEM;

    for (int64_t h = row / head_dim; h * head_dim < row + n && rc == 0; h++) {
        rc = read(arg, number, h * head_dim, head_dim, head);
        for (int64_t i = 0; i < head_dim && rc == 0; i++) {
            int64_t at = h * head_dim + i, from = to_pairs ? i % 2 * half + i / 2 : i % half * 2 + i / half;

            if (at >= row && at < row + n)
                memcpy(data + (at - row) * width, head + from * width, (size_t)width * sizeof *head);
        }
    }
    tt_free(head);
    return rc;
}

/* --- Hugging Face --- */

/* The rows of a parameter's tensor, in titan's order of dimensions. */
static int64_t rows_of_tensor(const struct tt_param *param)
{
    return param->hf_parts > 1 ? param->hf_rows : param->shape[0];
}

int64_t tt_hf_output(const struct tt_param *p, int64_t row)
{
    int64_t of_head = p->hf_heads ? p->shape[0] / p->hf_heads : 1, head = row / of_head, at = row % of_head;

    if (p->hf_transform == TT_HF_ROPE_PAIRS)
        return head * of_head + at % 2 * (of_head / 2) + at / 2;
    if (p->hf_transform == TT_HF_HEADS_IN_TURN)
        return (head * p->hf_parts + p->hf_part) * of_head + at;
    return p->hf_row + row;
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
    t.shape[0] = rows_of_tensor(p);
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

/* Allocates the list, with room for the names of experts after it. */
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

/* Adds the tensors of a parameter's experts; returns the number of tensors. */
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
            continue; /* each tensor is listed once, with its first part */
        if (model->params[p].hf_transform == TT_HF_EXPERTS) {
            n += add_experts(model, p, t, &names);
            continue;
        }
        *t = tt_hf_tensor_of(model, p);
        t->n_params = model->params[p].hf_parts > 1 ? model->params[p].hf_parts : 1;
        for (int k = 0; k < model->n_params; k++) /* finds the parameter of each part */
            if (model->params[k].hf_name && strcmp(model->params[k].hf_name, t->name) == 0)
                t->param[model->params[k].hf_part] = k;
        n++;
    }
    *ret_n = n;
    return list;
}

/* Columns [column, column + n) of a stored (rows, width) matrix, each written as a row of `data`; the rows are `stride`
 * apart. */
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

/* Reads experts [expert, expert + n). Their matrices are stored as (rows, columns) and written as (columns, rows). */
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

/* Rows [row, row + n) of part p, from a tensor in which the heads of all parts alternate. */
static int pick_heads(const struct tt_param *p, int param, tt_hf_read_fn read, void *arg, int64_t row, int64_t n,
                      float *data)
{
    int64_t width = tt_row_width(p->ndim, p->shape), of_head = p->shape[0] / p->hf_heads, each;
    int rc = 0;

    for (int64_t r = row; r < row + n && rc == 0; r += each) {
        int64_t head = r / of_head, left = of_head - r % of_head;

        each = left < row + n - r ? left : row + n - r;
        rc =
            read(arg, param, (head * p->hf_parts + p->hf_part) * of_head + r % of_head, each, data + (r - row) * width);
    }
    return rc;
}

/* Rows [row, row + n) of such a tensor. */
static int join_heads(const struct tt_param *p, const int *params, tt_hf_read_fn read, void *arg, int64_t row,
                      int64_t n, float *data)
{
    int64_t width = tt_row_width(p->ndim, p->shape), of_head = p->shape[0] / p->hf_heads, each;
    int rc = 0;

    for (int64_t r = row; r < row + n && rc == 0; r += each) {
        int64_t block = r / of_head, left = of_head - r % of_head;

        each = left < row + n - r ? left : row + n - r;
        rc = read(arg, params[block % p->hf_parts], block / p->hf_parts * of_head + r % of_head, each,
                  data + (r - row) * width);
    }
    return rc;
}

int tt_hf_import(const struct tt_model *model, int param, tt_hf_read_fn read, void *arg, int64_t row, int64_t n,
                 float *data)
{
    const struct tt_param *p = &model->params[param];
    int64_t first = p->hf_row + row; /* the heads of all parts, as if they were one parameter */

    if (n == 0)
        return 0;
    switch (p->hf_transform) {
    case TT_HF_SAME:
        return read(arg, param, first, n, data);
    case TT_HF_ROPE_PAIRS:
        return order_heads(p->shape[0] / p->hf_heads, tt_row_width(p->ndim, p->shape), param, read, arg, row, n, true,
                           data);
    case TT_HF_TRANSPOSE:
        return copy_columns(param, read, arg, p->shape[1], rows_of_tensor(p), first, n, p->shape[1], data);
    case TT_HF_EXPERTS:
        return read(arg, param, row * p->shape[1], n * p->shape[1], data);
    case TT_HF_HEADS_IN_TURN:
        return pick_heads(p, param, read, arg, row, n, data);
    case TT_HF_EXPERTS_TRANSPOSE:
        return transpose_experts(param, read, arg, p->shape[2], p->shape[1], row, n, data);
    }
    return tt_fail(TT_EINTERNAL, "parameter %s has a layout that cannot be read", p->name);
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
        return join_params(model, t->param, t->n_params, read, arg, row, n, data);
    case TT_HF_ROPE_PAIRS:
        return order_heads(p->shape[0] / p->hf_heads, tt_row_width(p->ndim, p->shape), t->param[0], read, arg, row, n,
                           false, data);
    case TT_HF_TRANSPOSE:
        for (int k = 0; k < t->n_params; k++)
            TT_TRY(copy_columns(t->param[k], read, arg, model->params[t->param[k]].shape[0], p->shape[1], row, n,
                                t->shape[1], data + model->params[t->param[k]].hf_row));
        return 0;
    case TT_HF_EXPERTS:
        return export_expert(p, t, read, arg, row, n, data);
    case TT_HF_HEADS_IN_TURN:
        return join_heads(p, t->param, read, arg, row, n, data);
    case TT_HF_EXPERTS_TRANSPOSE:
        return transpose_experts(t->param[0], read, arg, p->shape[1], p->shape[2], row, n, data);
    }
    rc = tt_fail(TT_EINTERNAL, "parameter %s has a layout that cannot be written", p->name);
out:
    return rc;
}

/* --- GGUF --- */

/* The names that families share; a family's row (gguf_names) may replace them. */
static const struct tt_gguf_name names[] = {
    {.ours = "tok_embeddings.weight", .theirs = "token_embd.weight"},
    {.ours = "pos_embeddings.weight", .theirs = "position_embd.weight"},
    {.ours = "norm.weight", .theirs = "output_norm.weight"},
    {.ours = "norm.bias", .theirs = "output_norm.bias"},
    {.ours = "output.weight", .theirs = "output.weight"},
    {.ours = "attention_norm.weight", .theirs = "attn_norm.weight"},
    {.ours = "attention_norm.bias", .theirs = "attn_norm.bias"},
    {.ours = "attention.wq.weight", .theirs = "attn_q.weight"},
    {.ours = "attention.wq.bias", .theirs = "attn_q.bias"},
    {.ours = "attention.wk.weight", .theirs = "attn_k.weight"},
    {.ours = "attention.wk.bias", .theirs = "attn_k.bias"},
    {.ours = "attention.wv.weight", .theirs = "attn_v.weight"},
    {.ours = "attention.wv.bias", .theirs = "attn_v.bias"},
    {.ours = "attention.wo.weight", .theirs = "attn_output.weight"},
    {.ours = "attention.wo.bias", .theirs = "attn_output.bias"},
    {.ours = "attention.q_norm.weight", .theirs = "attn_q_norm.weight"},
    {.ours = "attention.k_norm.weight", .theirs = "attn_k_norm.weight"},
    {.ours = "attention.sinks", .theirs = "attn_sinks.weight"},
    {.ours = "attention.wq_a.weight", .theirs = "attn_q_a.weight"},
    {.ours = "attention.wq_b.weight", .theirs = "attn_q_b.weight"},
    {.ours = "attention.wkv_a.weight", .theirs = "attn_kv_a_mqa.weight"},
    {.ours = "attention.kv_norm.weight", .theirs = "attn_kv_a_norm.weight"},
    {.ours = "attention_post_norm.weight", .theirs = "post_attention_norm.weight"},
    {.ours = "ffn_post_norm.weight", .theirs = "post_ffw_norm.weight"},
    {.ours = "ffn_norm.weight", .theirs = "ffn_norm.weight"},
    {.ours = "ffn_norm.bias", .theirs = "ffn_norm.bias"},
    {.ours = "feed_forward.w1.weight", .theirs = "ffn_gate.weight"},
    {.ours = "feed_forward.w2.weight", .theirs = "ffn_down.weight"},
    {.ours = "feed_forward.w3.weight", .theirs = "ffn_up.weight"},
    {.ours = "feed_forward.w1.bias", .theirs = "ffn_gate.bias"},
    {.ours = "feed_forward.w2.bias", .theirs = "ffn_down.bias"},
    {.ours = "feed_forward.w3.bias", .theirs = "ffn_up.bias"},
    {.ours = "moe.router.gate.weight", .theirs = "ffn_gate_inp.weight"},
    {.ours = "moe.router.gate.bias", .theirs = "ffn_gate_inp.bias"},
    {.ours = "moe.experts.w1", .theirs = "ffn_gate_exps.weight"},
    {.ours = "moe.experts.w2", .theirs = "ffn_down_exps.weight"},
    {.ours = "moe.experts.w3", .theirs = "ffn_up_exps.weight"},
    {.ours = "moe.shared_experts.gate.weight", .theirs = "ffn_gate_inp_shexp.weight", .layout = TT_GGUF_ROW},
    {.ours = "moe.shared_experts.w1.weight", .theirs = "ffn_gate_shexp.weight"},
    {.ours = "moe.shared_experts.w2.weight", .theirs = "ffn_down_shexp.weight"},
    {.ours = "moe.shared_experts.w3.weight", .theirs = "ffn_up_shexp.weight"},
};

/* The name of a parameter without its layer. */
static const char *rest_of(const struct tt_param *param)
{
    const char *dot = param->block >= 0 ? strchr(param->name, '.') : NULL;

    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? dot + 1 : param->name;
}

/* The GGUF name of a parameter that follows `last` (NULL: the first one); NULL: there is none. A family may give a
 * parameter several names. */
static const struct tt_gguf_name *next_name(const struct tt_model *model, const char *rest,
                                            const struct tt_gguf_name *last)
{
    const struct tt_model_row *row = model->row;
    bool is_own = false;

    for (const struct tt_gguf_name *n = row->gguf_names; n < row->gguf_names + row->n_gguf_names; n++) {
        if (strcmp(n->ours, rest) != 0)
            continue;
        is_own = true;
        if (!last || n > last)
            return n;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && !is_own && !last; i++)
        if (strcmp(names[i].ours, rest) == 0)
            return &names[i];
    return NULL;
}

/* --- shapes --- */

/* The number of rows of wkv_b that compute the keys of a head. */
static int64_t key_rows(const struct tt_model *model)
{
    return model->dims.head_dim - model->dims.mla.rope_dim;
}

static void set_shape(const struct tt_model *model, const struct tt_param *param, struct tt_gguf_part *part)
{
    const struct tt_model_dims *d = &model->dims;

    part->ndim = param->ndim;
    memcpy(part->shape, param->shape, sizeof part->shape);
    if (part->layout == TT_GGUF_EVEN || part->layout == TT_GGUF_ODD)
        part->shape[1] /= 2;
    if (part->layout == TT_GGUF_ROW) {
        part->ndim = 1;
        part->shape[0] = param->shape[1];
        part->shape[1] = 0;
    }
    if (part->layout != TT_GGUF_KEYS && part->layout != TT_GGUF_VALUES)
        return;
    part->ndim = 3;
    part->shape[0] = d->n_heads;
    part->shape[1] = part->layout == TT_GGUF_KEYS ? d->mla.kv_rank : d->mla.value_dim;
    part->shape[2] = part->layout == TT_GGUF_KEYS ? key_rows(model) : d->mla.kv_rank;
}

/* Whether a tensor is F32 in every file, as in llama.cpp's converter: everything except weight matrices, and the
 * routers of experts. */
static bool stays_wide(const struct tt_gguf_part *part)
{
    return part->ndim == 1 || !tt_text_ends(part->name, ".weight") || tt_text_ends(part->name, "_norm.weight") ||
           tt_text_ends(part->name, "ffn_gate_inp.weight") || strcmp(part->name, "position_embd.weight") == 0;
}

/* The parameter that is part `part` of a tensor; families list all parts of a tensor. */
static int find_gguf_part(const struct tt_model *model, int block, const char *theirs, int part)
{
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_gguf_name *name = NULL;

        while (model->params[p].block == block && (name = next_name(model, rest_of(&model->params[p]), name)))
            if (name->part == part && strcmp(name->theirs, theirs) == 0)
                return p;
    }
    return TT_NONE;
}

static void add_part(const struct tt_model *model, int p, const struct tt_gguf_name *name, struct tt_gguf_part *part)
{
    const struct tt_param *param = &model->params[p];
    int parts = name->parts ? name->parts : 1;

    *part = (struct tt_gguf_part){.layout = name->layout, .n_params = parts, .param = {p}};
    if (param->block >= 0)
        (void)snprintf(part->name, sizeof part->name, "blk.%d.%s", param->block, name->theirs);
    else
        (void)snprintf(part->name, sizeof part->name, "%s", name->theirs);
    if (model->row->norm == TT_NORM_RMS_OFFSET && tt_text_ends(param->name, "norm.weight"))
        part->layout = TT_GGUF_OFFSET;
    set_shape(model, param, part);
    for (int k = 1; k < parts; k++) {
        part->param[k] = find_gguf_part(model, param->block, name->theirs, k);
        part->shape[0] += model->params[part->param[k]].shape[0];
    }
    part->stays_wide = stays_wide(part);
}

/* A tensor of RoPE factors, one per pair. */
static struct tt_gguf_part factors_part(const struct tt_model *model, const char *name, enum tt_gguf_layout layout)
{
    const struct tt_model_dims *d = &model->dims;
    struct tt_gguf_part part = {
        .layout = layout, .ndim = 1, .shape = {(d->rotary_dim ? d->rotary_dim : d->head_dim) / 2}, .stays_wide = true};

    (void)snprintf(part.name, sizeof part.name, "%s", name);
    return part;
}

int tt_gguf_parts(const struct tt_model *model, struct tt_gguf_part **ret_parts, int *ret_n)
{
    struct tt_gguf_part *part = tt_calloc(2 * (size_t)model->n_params + 4, sizeof *part);
    int n = 0, rc = 0;

    if (model->row->n_archs == 0)
        rc = tt_fail(TT_EDATA, "titan writes no GGUF files of %s models\nhelp: --format hf writes it for transformers",
                     model->row->name);
    for (int p = 0; p < model->n_params && rc == 0; p++) {
        const struct tt_param *param = &model->params[p];
        const struct tt_gguf_name *name = NULL;
        /* the biases of experts are buffers; llama.cpp stores them only for some families */
        bool found = param->adapter || param->buffer;

        while (!param->adapter && (name = next_name(model, rest_of(param), name))) {
            found = true;
            if (name->part == 0)
                add_part(model, p, name, &part[n++]);
        }
        if (!found)
            rc = tt_fail(TT_EDATA, "'%s' of a %s model cannot be stored in a GGUF file", param->name, model->row->name);
    }
    if (tt_gguf_has_rope_factors(model))
        part[n++] = factors_part(model, "rope_freqs.weight", TT_GGUF_FACTORS);
    if (tt_rope_is_long(&model->dims.rope)) {
        part[n++] = factors_part(model, "rope_factors_long.weight", TT_GGUF_LONG_FACTORS);
        part[n++] = factors_part(model, "rope_factors_short.weight", TT_GGUF_SHORT_FACTORS);
    }
    if (tt_gguf_copies_head(model)) {
        part[n] = part[0];
        part[n].is_copy = true;
        (void)snprintf(part[n++].name, sizeof part->name, "output.weight");
    }
    *ret_parts = rc == 0 ? part : NULL;
    *ret_n = n;
    if (rc < 0)
        tt_free(part);
    return rc;
}

/* --- values --- */

/* Reads rows by `read` and adds a number to them. */
static int add_number(int number, float plus, tt_hf_read_fn read, void *arg, int64_t row, int64_t n, float *data)
{
    int rc = read(arg, number, row, n, data);

    for (int64_t i = 0; i < n && rc == 0; i++) /* norms have one dimension */
        data[i] += plus;
    return rc;
}

/* Elements [first, first + n) of a parameter that is one row of `width` elements. */
static int take_part(int number, int64_t width, tt_hf_read_fn read, void *arg, int64_t first, int64_t n, float *data)
{
    float *whole = tt_calloc_for((size_t)width, sizeof *whole, "a row");
    int rc = whole ? read(arg, number, 0, 1, whole) : TT_ENOMEM;

    if (rc == 0)
        memcpy(data, whole + first, (size_t)n * sizeof *data);
    tt_free(whole);
    return rc;
}

/* Takes rows `which`, which + 2, ... of the `rows` rows of each of experts [expert, expert + n); a row has `width`
 * elements. */
static int take_rows(int number, int64_t rows_of, int64_t width, int which, tt_hf_read_fn read, void *arg,
                     int64_t expert, int64_t n, float *data)
{
    float *whole = tt_calloc_for((size_t)(rows_of * width), sizeof *whole, "the matrix of an expert");
    int rc = whole ? 0 : TT_ENOMEM;

    for (int64_t e = 0; e < n && rc == 0; e++) {
        float *to = data + e * rows_of / 2 * width;

        rc = read(arg, number, expert + e, 1, whole);
        for (int64_t r = which; r < rows_of && rc == 0; r += 2)
            memcpy(to + r / 2 * width, whole + r * width, (size_t)width * sizeof *whole);
    }
    tt_free(whole);
    return rc;
}

/* Heads [head, head + n) of wkv_b: the rows for keys, transposed, or the rows for values. */
static int take_head(const struct tt_model *model, const struct tt_gguf_part *part, tt_hf_read_fn read, void *arg,
                     int64_t head, int64_t n, float *data)
{
    int64_t keys = key_rows(model), values = model->dims.mla.value_dim, rank = model->dims.mla.kv_rank;
    float *matrix;
    int rc = 0;

    for (int64_t h = 0; h < n && part->layout == TT_GGUF_VALUES; h++)
        TT_TRY(read(arg, part->param[0], (head + h) * (keys + values) + keys, values, data + h * values * rank));
    if (part->layout == TT_GGUF_VALUES)
        return 0;
    matrix = tt_calloc_for((size_t)((keys + values) * rank), sizeof *matrix, part->name);
    rc = matrix ? 0 : TT_ENOMEM;
    for (int64_t h = 0; h < n && rc == 0; h++) {
        /* reads all rows of a head, so that the digest covers the whole parameter */
        rc = read(arg, part->param[0], (head + h) * (keys + values), keys + values, matrix);
        for (int64_t c = 0; c < rank && rc == 0; c++)
            for (int64_t r = 0; r < keys; r++)
                data[(h * rank + c) * keys + r] = matrix[r * rank + c];
    }
    tt_free(matrix);
out:
    return rc;
}

int tt_gguf_export(const struct tt_model *model, const struct tt_gguf_part *part, tt_hf_read_fn read, void *arg,
                   int64_t row, int64_t n, float *data)
{
    const struct tt_param *p = &model->params[part->param[0]];
    int64_t width = tt_row_width(part->ndim, part->shape);

    switch (part->layout) {
    case TT_GGUF_SAME:
        return join_params(model, part->param, part->n_params, read, arg, row, n, data);
    case TT_GGUF_PAIRS:
        return order_heads(model->dims.head_dim, width, part->param[0], read, arg, row, n, true, data);
    case TT_GGUF_EVEN:
    case TT_GGUF_ODD:
        return take_rows(part->param[0], p->shape[1], p->ndim > 2 ? p->shape[2] : 1, part->layout == TT_GGUF_ODD, read,
                         arg, row, n, data);
    case TT_GGUF_KEYS:
    case TT_GGUF_VALUES:
        return take_head(model, part, read, arg, row, n, data);
    case TT_GGUF_OFFSET:
        return add_number(part->param[0], 1.0F, read, arg, row, n, data);
    case TT_GGUF_ROW:
        return take_part(part->param[0], part->shape[0], read, arg, row, n, data);
    case TT_GGUF_FACTORS:
        for (int64_t i = 0; i < n; i++)
            data[i] = tt_gguf_rope_factor(model, row + i);
        return 0;
    case TT_GGUF_SHORT_FACTORS:
        memcpy(data, model->dims.rope.short_factor + row, (size_t)n * sizeof *data);
        return 0;
    case TT_GGUF_LONG_FACTORS:
        memcpy(data, model->dims.rope.long_factor + row, (size_t)n * sizeof *data);
        return 0;
    }
    return tt_fail(TT_EINTERNAL, "tensor %s has a layout that cannot be written", part->name);
}

/* Makes experts [expert, expert + n) from two tensors whose rows alternate. */
static int join_rows(const struct tt_param *p, const int *number, tt_hf_read_fn read, void *arg, int64_t expert,
                     int64_t n, float *data)
{
    int64_t rows_of = p->shape[1], width = p->ndim > 2 ? p->shape[2] : 1;
    float *half = tt_calloc_for((size_t)(rows_of / 2 * width), sizeof *half, p->name);
    int rc = half ? 0 : TT_ENOMEM;

    for (int64_t e = 0; e < n && rc == 0; e++)
        for (int which = 0; which < 2 && rc == 0; which++) {
            rc = read(arg, number[which], expert + e, 1, half);
            for (int64_t r = 0; r < rows_of / 2 && rc == 0; r++)
                memcpy(data + ((e * rows_of) + 2 * r + which) * width, half + r * width, (size_t)width * sizeof *half);
        }
    tt_free(half);
    return rc;
}

/* Makes rows [row, row + n) of wkv_b from the tensors of keys and values of all heads. */
static int join_head(const struct tt_model *model, const int *number, tt_hf_read_fn read, void *arg, int64_t row,
                     int64_t n, float *data)
{
    int64_t keys = key_rows(model), values = model->dims.mla.value_dim, rank = model->dims.mla.kv_rank;
    int64_t rows_of = keys + values;
    float *matrix = tt_calloc_for((size_t)((keys + values) * rank), sizeof *matrix, "the rows of a head");
    int rc = matrix ? 0 : TT_ENOMEM;

    for (int64_t h = row / rows_of; h * rows_of < row + n && rc == 0; h++) {
        float *of_values = matrix + keys * rank;

        rc = read(arg, number[0], h, 1, matrix); /* (rank, keys) */
        if (rc == 0)
            rc = read(arg, number[1], h, 1, of_values);
        for (int64_t r = 0; r < rows_of && rc == 0; r++) {
            int64_t at = h * rows_of + r - row;

            if (at < 0 || at >= n)
                continue;
            for (int64_t c = 0; c < rank; c++)
                data[at * rank + c] = r < keys ? matrix[c * keys + r] : of_values[(r - keys) * rank + c];
        }
    }
    tt_free(matrix);
    return rc;
}

int tt_gguf_import(const struct tt_model *model, const struct tt_gguf_part *parts, int n_parts, int param,
                   tt_hf_read_fn read, void *arg, int64_t row, int64_t n, float *data)
{
    const struct tt_param *p = &model->params[param];
    int number[2] = {TT_NONE, TT_NONE}, n_numbers = 0;
    int64_t first = 0; /* the parameter's first row in its tensor */

    for (int i = 0; i < n_parts && n_numbers < 2; i++) {
        int64_t rows = 0;

        for (int k = 0; k < parts[i].n_params && !parts[i].is_copy; rows += model->params[parts[i].param[k++]].shape[0])
            if (parts[i].param[k] == param) {
                number[n_numbers++] = i;
                first = rows;
            }
    }
    if (n_numbers == 0)
        return tt_fail(TT_EINTERNAL, "parameter %s is in no tensor", p->name);
    switch (parts[number[0]].layout) {
    case TT_GGUF_SAME:
        return read(arg, number[0], first + row, n, data);
    case TT_GGUF_OFFSET:
        return add_number(number[0], -1.0F, read, arg, row, n, data);
    case TT_GGUF_ROW: /* elements of the vector are its rows */
        return read(arg, number[0], row * p->shape[1], n * p->shape[1], data);
    case TT_GGUF_PAIRS:
        return order_heads(model->dims.head_dim, tt_row_width(p->ndim, p->shape), number[0], read, arg, row, n, false,
                           data);
    case TT_GGUF_EVEN:
    case TT_GGUF_ODD:
        return join_rows(p, number, read, arg, row, n, data);
    case TT_GGUF_KEYS:
    case TT_GGUF_VALUES:
        return join_head(model, number, read, arg, row, n, data);
    case TT_GGUF_FACTORS:
    case TT_GGUF_SHORT_FACTORS:
    case TT_GGUF_LONG_FACTORS:
        break;
    }
    return tt_fail(TT_EINTERNAL, "parameter %s has a layout that cannot be read", p->name);
}
