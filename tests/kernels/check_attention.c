/* SPDX-License-Identifier: MIT
 *
 * Attention: groups of query heads, head dims with and without tails, sequences that end near the borders of tiles.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kernels/kernelcheck.h"

#define SHAPE(t, h, k, e, ...)                                                      \
    {                                                                               \
        .seq_len = (t), .heads = (h), .kv_heads = (k), .head_dim = (e), __VA_ARGS__ \
    }

static const struct tt_attention_shape shapes[] = {
    SHAPE(1, 1, 1, 8, .scale = 0.0F),
    SHAPE(2, 2, 1, 2, .scale = 0.0F),
    SHAPE(7, 3, 3, 5, .scale = 0.0F),
    SHAPE(63, 2, 2, 16, .scale = 0.0F),
    SHAPE(64, 4, 2, 8, .scale = 0.0F),
    SHAPE(65, 2, 1, 64, .scale = 0.0F),
    SHAPE(130, 4, 1, 6, .scale = 0.0F),
    SHAPE(257, 1, 1, 16, .scale = 0.0F),
    SHAPE(96, 2, 2, 128, .scale = 0.0F),
    SHAPE(520, 2, 1, 4, .scale = 0.0F),
    SHAPE(70, 2, 2, 24, .value_dim = 16, .scale = 0.3F),
    SHAPE(51, 3, 1, 7, .value_dim = 19),
    SHAPE(130, 2, 1, 40, .value_dim = 33, .value_stride = 40, .scale = 0.1F),
    SHAPE(97, 1, 1, 192, .value_dim = 128, .scale = 0.135234F),
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, PARTS = 3 };

/*
 * Shape k, as one document or as several, some shorter than a vector; some with a window or sinks. ret_text describes
 * it.
 */
static struct tt_attention_shape make_shape(struct check *check, int k, bool documents, char *text, size_t size)
{
    struct tt_attention_shape shape = shapes[k];
    int32_t *positions = (int32_t *)(void *)check_array(check, shape.seq_len);
    int64_t length = 1 + check_draw(check, shape.seq_len);

    for (int64_t i = 0; i < shape.seq_len; i++)
        positions[i] = i == 0 || check_draw(check, length) == 0 ? 0 : positions[i - 1] + 1;
    shape.positions = documents ? positions : NULL;
    shape.window = check_draw(check, 2) ? 1 + check_draw(check, shape.seq_len) : 0;
    shape.sinks = check_draw(check, 2) ? check_filled(check, shape.heads, FILL_NORMAL) : NULL;
    shape.soft_cap = check_draw(check, 3) ? 0.0F : check_draw(check, 2) ? 1.5F : 50.0F;
    (void)snprintf(text, size, "T=%lld H=%lld K=%lld E=%lld,%lld W=%lld cap %g%s%s", (long long)shape.seq_len,
                   (long long)shape.heads, (long long)shape.kv_heads, (long long)shape.head_dim,
                   (long long)tt_attention_value_dim(&shape), (long long)shape.window, (double)shape.soft_cap,
                   shape.sinks ? " sinks" : "", documents ? " documents" : "");
    return shape;
}

/* The rows of part i of PARTS, of any length. */
static struct tt_attention_shape part_of(const struct tt_attention_shape *whole, const int64_t *borders, int i)
{
    struct tt_attention_shape shape = *whole;

    shape.begin = borders[i];
    shape.end = borders[i + 1];
    if (shape.positions)
        shape.positions += shape.begin;
    return shape;
}

static void draw_borders(struct check *check, int64_t seq_len, int64_t *borders)
{
    int64_t a = check_draw(check, seq_len), b = check_draw(check, seq_len);

    borders[0] = 0;
    borders[1] = a < b ? a : b;
    borders[2] = a < b ? b : a;
    borders[3] = seq_len;
}

struct arrays {
    float *q, *k, *v, *o, *lse, *dout, *gathered;
    int64_t nq, nk; /* elements of q and k */
    int64_t no, nv; /* of o and v */
};

static struct arrays make_arrays(struct check *check, const struct tt_attention_shape *shape, enum fill fill)
{
    struct arrays a = {.nq = shape->seq_len * shape->heads * shape->head_dim,
                       .nk = shape->seq_len * shape->kv_heads * shape->head_dim,
                       .no = shape->seq_len * shape->heads * tt_attention_value_dim(shape),
                       .nv = shape->seq_len * shape->kv_heads * tt_attention_value_dim(shape)};

    a.q = check_filled(check, a.nq, fill);
    a.k = check_filled(check, a.nk, FILL_NORMAL);
    a.v = check_filled(check, a.nv, FILL_NORMAL);
    a.dout = check_filled(check, a.no, FILL_NORMAL);
    a.gathered = check_array(check, shape->seq_len * (shape->head_dim + tt_attention_value_stride(shape)));
    a.o = check_array(check, a.no);
    a.lse = check_array(check, shape->seq_len * shape->heads);
    return a;
}

/* The shape for one head. */
static struct tt_attention_shape of_head(const struct tt_attention_shape *shape, int64_t head)
{
    struct tt_attention_shape of = *shape;

    of.sinks = shape->sinks ? shape->sinks + head : NULL;
    return of;
}

/* Runs all heads of the given rows in blocks, with k and v of a head gathered, as the op does. */
static void forward(const struct tt_kernels *table, const struct tt_attention_shape *shape, const struct arrays *a,
                    float *o, float *lse, float *scratch)
{
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape), stride = tt_attention_value_stride(shape);
    int64_t n = shape->seq_len * dim, end = tt_attention_end(shape);

    for (int64_t h = 0; h < shape->heads; h++) {
        int64_t kv = h / (shape->heads / shape->kv_heads), at = shape->begin * shape->heads + h;
        struct tt_attention_shape of = of_head(shape, h);

        for (int64_t j = 0; j < shape->seq_len; j++) {
            memcpy(a->gathered + j * dim, a->k + (j * shape->kv_heads + kv) * dim, (size_t)dim * sizeof(float));
            memcpy(a->gathered + n + j * stride, a->v + (j * shape->kv_heads + kv) * width,
                   (size_t)width * sizeof(float));
        }
        for (int64_t row = shape->begin; row < end; row += TT_ATTENTION_ROWS) {
            int64_t left = end - row;

            table->attention_fwd(o + at * width, lse + at, a->q + at * dim, a->gathered, a->gathered + n, &of, row,
                                 left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, scratch);
        }
    }
}

/* All groups of heads, one range of keys. */
static void backward_range(const struct tt_kernels *table, const struct tt_attention_shape *shape,
                           const struct arrays *a, float *const *grads, int64_t first_key, int64_t keys, float *scratch)
{
    int64_t heads = shape->heads / shape->kv_heads, width = tt_attention_value_dim(shape);

    for (int64_t kv = 0; kv < shape->kv_heads; kv++) {
        int64_t row = shape->begin * shape->heads + kv * heads, key = first_key * shape->kv_heads + kv;
        int64_t q = row * shape->head_dim, k = kv * shape->head_dim, o = row * width, v = kv * width;
        struct tt_attention_grads group = {grads[0] + q,
                                           grads[1] + key * shape->head_dim,
                                           grads[2] + key * width,
                                           a->dout + o,
                                           a->q + q,
                                           a->k + k,
                                           a->v + v,
                                           a->o + o,
                                           a->lse + row};

        table->attention_bwd(&group, shape, heads, first_key, keys, scratch);
    }
}

static void backward(const struct tt_kernels *table, const struct tt_attention_shape *shape, const struct arrays *a,
                     float *const *grads, float *scratch)
{
    backward_range(table, shape, a, grads, 0, shape->seq_len, scratch);
}

/* Runs backward in two ranges of keys. grads[3] takes the dq of the second range. */
static void backward_in_ranges(const struct tt_kernels *table, const struct tt_attention_shape *shape,
                               const struct arrays *a, float *const *grads, float *scratch)
{
    int64_t first = (shape->seq_len + 1) / 2 / TT_ATTENTION_PANEL * TT_ATTENTION_PANEL;
    int64_t width = shape->heads * shape->head_dim;
    float *const second[3] = {grads[3], grads[1], grads[2]};

    backward_range(table, shape, a, grads, 0, first, scratch);
    backward_range(table, shape, a, second, first, shape->seq_len - first, scratch);
    for (int64_t i = first * width; i < a->nq; i++)
        grads[0][i] = first ? grads[0][i] + grads[3][i] : grads[3][i];
}

/* Runs backward in parts of the rows, and each part in two ranges of keys. grads[3] to [5] take the gradients of a
 * call. */
static void backward_in_parts(const struct tt_kernels *table, const struct tt_attention_shape *shape,
                              const struct arrays *a, const int64_t *borders, float *const *grads, float *scratch)
{
    int64_t widths[3] = {shape->heads * shape->head_dim, shape->kv_heads * shape->head_dim,
                         shape->kv_heads * tt_attention_value_dim(shape)};
    int64_t first = (shape->seq_len + 1) / 2 / TT_ATTENTION_PANEL * TT_ATTENTION_PANEL;
    int64_t ranges[3] = {0, first, shape->seq_len};

    for (int k = 0; k < 3; k++)
        memset(grads[k], 0, (size_t)(shape->seq_len * widths[k]) * sizeof(float));
    for (int i = 0; i < 2 * PARTS; i++) {
        struct tt_attention_shape part = part_of(shape, borders, i / 2);
        int64_t key = ranges[i % 2], keys = ranges[i % 2 + 1] - key, row = part.begin > key ? part.begin : key;

        if (!keys || part.begin == part.end)
            continue;
        backward_range(table, &part, a, grads + 3, key, keys, scratch);
        for (int k = 0; k < 3; k++)
            for (int64_t j = (k ? key : row) * widths[k]; j < (k ? key + keys : part.end) * widths[k]; j++)
                grads[k][j] += grads[3 + k][j];
    }
}

static void fill_tolerance(double *near, int64_t n, double size)
{
    for (int64_t i = 0; i < n; i++)
        near[i] = size;
}

/* All rows at once, or in parts. */
static void forward_in_parts(struct check *check, const struct tt_attention_shape *shape, const struct arrays *a,
                             float *o, float *lse, float *scratch)
{
    int64_t borders[PARTS + 1] = {0, 0, 0, shape->seq_len};

    if (check_draw(check, 2))
        draw_borders(check, shape->seq_len, borders);
    for (int i = 0; i < PARTS; i++) {
        struct tt_attention_shape part = part_of(shape, borders, i);

        if (part.begin < part.end)
            forward(check->table, &part, a, o, lse, scratch);
    }
}

static void try_forward(struct check *check, int k)
{
    char about[160], text[200];
    const struct tt_attention_shape made = make_shape(check, k / N_FILLS / 2, k / N_FILLS % 2, about, sizeof about);
    const struct tt_attention_shape *shape = &made;
    enum fill fill = k % N_FILLS == FILL_LARGE ? FILL_NORMAL : (enum fill)(k % N_FILLS);
    struct arrays a = make_arrays(check, shape, fill);
    int64_t n_lse = shape->seq_len * shape->heads;
    float *o = check_array(check, a.no), *lse = check_array(check, n_lse);
    float *scratch = check_array(check, tt_attention_fwd_scratch(shape, false));
    double *near = check_doubles(check, a.no > n_lse ? a.no : n_lse), size = 1.0;

    (void)snprintf(text, sizeof text, "%s fill %d", about, k % N_FILLS);
    for (int64_t i = 0; k % N_FILLS == FILL_LARGE && i < a.nq; i++)
        a.q[i] *= 30.0F; /* makes the softmax sharp; errors of the scores grow with their size */
    size = k % N_FILLS == FILL_LARGE ? 30.0 * sqrt((double)shape->head_dim) : 4.0;
    forward_in_parts(check, shape, &a, o, lse, scratch);
    forward(kernels_variant(0), shape, &a, a.o, a.lse, scratch);
    fill_tolerance(near, a.no, 12.0 * size * (double)FLT_EPSILON); /* few keys average out fewer errors of scores */
    check_compare(check, "o", text, o, a.o, a.no, near, 0.0);
    fill_tolerance(near, n_lse, 8.0 * size * (double)FLT_EPSILON);
    check_compare(check, "lse", text, lse, a.lse, n_lse, near, 0.0);
    check_reset(check, text);
}

static void check_forward(struct check *check)
{
    for (int k = 0; k < 2 * N_SHAPES * N_FILLS; k++)
        if (!check_skips(check, k))
            try_forward(check, k);
}

static tt_bf16 *bf16_of(struct check *check, float *x, int64_t n)
{
    tt_bf16 *to = (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2; /* the last one is beside the guard */

    tt_bf16_round_ref(to, x, n);
    tt_bf16_widen_ref(x, to, n);
    return to;
}

/* attention_fwd_bf16 on all heads, all rows at once or in parts. */
static void forward_bf16(struct check *check, const struct tt_attention_shape *shape, const struct arrays *a,
                         tt_bf16 *o, float *lse)
{
    int64_t dim = shape->head_dim, n = shape->seq_len * dim, width = tt_attention_value_dim(shape);
    int64_t stride = tt_attention_value_stride(shape), n_values = (shape->seq_len - 1) * stride + width;
    const tt_bf16 *q = bf16_of(check, a->q, a->nq), *k = bf16_of(check, a->k, a->nk), *v = bf16_of(check, a->v, a->nv);
    tt_bf16 *head_k = bf16_of(check, check_filled(check, n, FILL_ZERO), n);
    tt_bf16 *head_v = bf16_of(check, check_filled(check, n_values, FILL_ZERO), n_values);
    float *scratch = check_array(check, tt_attention_fwd_scratch(shape, true));
    int64_t borders[PARTS + 1] = {0, 0, 0, shape->seq_len};

    if (check_draw(check, 2))
        draw_borders(check, shape->seq_len, borders);
    for (int64_t h = 0; h < shape->heads; h++) {
        int64_t at = h / (shape->heads / shape->kv_heads);

        for (int64_t j = 0; j < shape->seq_len; j++, at += shape->kv_heads) {
            memcpy(head_k + j * dim, k + at * dim, (size_t)dim * sizeof *k);
            memcpy(head_v + j * stride, v + at * width, (size_t)width * sizeof *v);
        }
        for (int i = 0; i < PARTS; i++) {
            struct tt_attention_shape whole = of_head(shape, h), part = part_of(&whole, borders, i);
            int64_t first = part.begin * shape->heads + h;

            for (int64_t row = part.begin; row < part.end; row += TT_ATTENTION_ROWS) {
                int64_t left = part.end - row;

                check->table->attention_fwd_bf16(o + first * width, lse + first, q + first * dim, head_k, head_v, &part,
                                                 row, left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, scratch);
            }
        }
    }
}

/*
 * Weights may be rounded to bfloat16 for the product with v, each by 2^-8 of itself; so o is off by 2^-8 of the
 * attention to |v|, and rounding o adds the same share of o. lse has the errors of float32.
 */
static void try_forward_bf16(struct check *check, int k)
{
    char about[160], text[200];
    const struct tt_attention_shape made = make_shape(check, k / N_FILLS / 2, k / N_FILLS % 2, about, sizeof about);
    const struct tt_attention_shape *shape = &made;
    bool sharp = k % N_FILLS == FILL_LARGE;
    struct arrays a = make_arrays(check, shape, sharp ? FILL_NORMAL : (enum fill)(k % N_FILLS));
    int64_t n_lse = shape->seq_len * shape->heads;
    float *lse = check_array(check, n_lse), *got = check_array(check, a.no), *sizes = check_array(check, a.no);
    float *scratch = check_array(check, tt_attention_fwd_scratch(shape, false));
    double *near = check_doubles(check, a.no > n_lse ? a.no : n_lse),
           size = sharp ? 30.0 * sqrt((double)shape->head_dim) : 4.0;
    tt_bf16 *o = (tt_bf16 *)(void *)check_array(check, (a.no + 1) / 2) + a.no % 2;

    (void)snprintf(text, sizeof text, "%s fill %d", about, k % N_FILLS);
    for (int64_t i = 0; sharp && i < a.nq; i++)
        a.q[i] *= 30.0F;
    forward_bf16(check, shape, &a, o, lse); /* rounds q, k and v */
    tt_bf16_widen_ref(got, o, a.no);
    forward(kernels_variant(0), shape, &a, a.o, a.lse, scratch);
    fill_tolerance(near, n_lse, 8.0 * size * (double)FLT_EPSILON);
    check_compare(check, "lse", text, lse, a.lse, n_lse, near, 0.0);
    for (int64_t i = 0; i < a.nv; i++)
        a.v[i] = fabsf(a.v[i]);
    forward(kernels_variant(0), shape, &a, sizes, a.lse, scratch);
    for (int64_t i = 0; i < a.no; i++)
        near[i] = 16.0 * size * (double)FLT_EPSILON + 0x1.02p-8 * ((double)sizes[i] + fabs((double)a.o[i]));
    for (int64_t i = 0; i < a.no; i++)
        near[i] = isfinite(near[i]) ? near[i] : 0.0;
    check_compare(check, "o", text, got, a.o, a.no, near, 0.0);
    check_reset(check, text);
}

static void check_forward_bf16(struct check *check)
{
    for (int k = 0; k < 2 * N_SHAPES * N_FILLS; k++)
        if (!check_skips(check, k))
            try_forward_bf16(check, k);
}

static void try_backward(struct check *check, int k)
{
    char about[160], text[200];
    struct tt_attention_shape shape = make_shape(check, k / 6, k / 3 % 2, about, sizeof about);
    struct arrays a;
    float *got[6], *want[6], *scratch; /* dq, dk, dv; dq of the second range, or the three of a part */
    int64_t borders[PARTS + 1];
    double *near;

    a = make_arrays(check, &shape, FILL_NORMAL);
    for (int i = 0; i < 6; i++) {
        got[i] = check_array(check, i % 3 == 1 ? a.nk : i % 3 == 2 ? a.nv : a.nq);
        want[i] = check_array(check, i % 3 == 1 ? a.nk : i % 3 == 2 ? a.nv : a.nq);
    }
    draw_borders(check, shape.seq_len, borders);
    scratch = check_array(check, tt_attention_bwd_scratch(&shape, shape.seq_len, false));
    near = check_doubles(check, a.nq > a.nv ? a.nq : a.nv);
    (void)snprintf(text, sizeof text, "%s cut %d", about, k % 3);
    forward(kernels_variant(0), &shape, &a, a.o, a.lse, scratch);
    backward(kernels_variant(0), &shape, &a, want, scratch);
    if (k % 3 == 2) {
        backward_in_parts(check->table, &shape, &a, borders, got, scratch);
    } else if (k % 3) {
        backward_in_ranges(check->table, &shape, &a, got, scratch);
    } else {
        backward(check->table, &shape, &a, got, scratch);
    }
    fill_tolerance(near, a.nq > a.nv ? a.nq : a.nv, 40.0 * sqrt((double)shape.head_dim) * (double)FLT_EPSILON);
    for (int i = 0; i < 3; i++) {
        check_compare(check,
                      i == 0   ? "dq"
                      : i == 1 ? "dk"
                               : "dv",
                      text, got[i], want[i],
                      i == 0   ? a.nq
                      : i == 1 ? a.nk
                               : a.nv,
                      near, 0.0);
    }
    check_reset(check, text);
}

static void check_backward(struct check *check)
{
    for (int k = 0; k < 6 * N_SHAPES; k++)
        if (!check_skips(check, k))
            try_backward(check, k);
}

/*
 * Products may round p and ds to bfloat16, each by 2^-8 of itself: a gradient is off by 2^-8 of the sum of the
 * magnitudes of its product's terms. sizes: these sums for dq, dk and dv of one group.
 */
static void gradient_sizes(const struct tt_attention_shape *shape, const struct arrays *a, int64_t kv, int64_t first,
                           int64_t keys, double *const *sizes)
{
    int64_t dim = shape->head_dim, heads = shape->heads / shape->kv_heads, width = tt_attention_value_dim(shape);
    double scale = shape->scale > 0.0F ? (double)shape->scale : 1.0 / sqrt((double)dim);

    for (int64_t h = kv * heads; h < (kv + 1) * heads; h++) {
        for (int64_t i = first > shape->begin ? first : shape->begin; i < tt_attention_end(shape); i++) {
            int64_t start = tt_attention_start(shape, i);

            for (int64_t j = start > first ? start : first; j <= i && j < first + keys; j++) {
                int64_t at = (i * shape->heads + h) * dim, to = (j * shape->kv_heads + kv) * dim;
                int64_t o_at = (i * shape->heads + h) * width, v_at = (j * shape->kv_heads + kv) * width;
                double score = 0.0, slope = 0.0, cap = (double)shape->soft_cap, p, ds;

                for (int64_t e = 0; e < dim; e++)
                    score += (double)a->q[at + e] * (double)a->k[to + e];
                for (int64_t e = 0; e < width; e++)
                    slope += (double)a->dout[o_at + e] * ((double)a->v[v_at + e] - (double)a->o[o_at + e]);
                score = cap > 0.0 ? cap * tanh(score * scale / cap) : score * scale;
                p = exp(score - (double)a->lse[i * shape->heads + h]);
                ds = fabs(p * slope) * scale;
                for (int64_t e = 0; e < dim; e++) {
                    sizes[0][at + e] += ds * fabs((double)a->k[to + e]);
                    sizes[1][to + e] += ds * fabs((double)a->q[at + e]);
                }
                for (int64_t e = 0; e < width; e++)
                    sizes[2][v_at + e] += p * fabs((double)a->dout[o_at + e]);
            }
        }
    }
}

/* A range of keys of all groups; both leave the rest of the arrays as it is. */
static void check_range_bf16(struct check *check, const char *text, const struct tt_attention_shape *shape,
                             struct arrays *a, const tt_bf16 *const *given, int64_t first, int64_t keys)
{
    int64_t heads = shape->heads / shape->kv_heads, n[3] = {a->nq, a->nk, a->nv};
    int64_t width = tt_attention_value_dim(shape);
    float *got[3], *want[3], *scratch = check_array(check, tt_attention_bwd_scratch(shape, keys, true));
    double *near[3];

    for (int i = 0; i < 3; i++) {
        got[i] = check_filled(check, n[i], FILL_ZERO);
        want[i] = check_filled(check, n[i], FILL_ZERO);
        near[i] = check_doubles(check, n[i]);
    }
    for (int64_t kv = 0; kv < shape->kv_heads; kv++) {
        int64_t row = shape->begin * shape->heads + kv * heads, key = first * shape->kv_heads + kv;
        int64_t q = row * shape->head_dim, k = kv * shape->head_dim, o = row * width, v = kv * width;
        struct tt_attention_bf16_grads group = {got[0] + q,           got[1] + key * shape->head_dim,
                                                got[2] + key * width, given[4] + o,
                                                given[0] + q,         given[1] + k,
                                                given[2] + v,         given[3] + o,
                                                a->lse + row};

        check->table->attention_bwd_bf16(&group, shape, heads, first, keys, scratch);
        group.dq = want[0] + q;
        group.dk = want[1] + key * shape->head_dim;
        group.dv = want[2] + key * width;
        tt_attention_bwd_bf16_ref(&group, shape, heads, first, keys, scratch);
        gradient_sizes(shape, a, kv, first, keys, near);
    }
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < n[i]; j++)
            near[i][j] = 0x1.02p-8 * near[i][j] + 40.0 * sqrt((double)shape->head_dim) * (double)FLT_EPSILON;
        check_compare(check, i == 0 ? "dq" : i == 1 ? "dk" : "dv", text, got[i], want[i], n[i], near[i], 0.0);
    }
}

static void try_backward_bf16(struct check *check, int k)
{
    char about[160], text[200];
    struct tt_attention_shape shape = make_shape(check, k / 4, k / 2 % 2, about, sizeof about);
    int64_t first;
    struct arrays a;
    const tt_bf16 *given[5];
    int64_t borders[PARTS + 1] = {0, 0, 0, shape.seq_len};

    first = k % 2 ? (shape.seq_len + 1) / 2 / TT_ATTENTION_PANEL * TT_ATTENTION_PANEL : 0;
    a = make_arrays(check, &shape, FILL_NORMAL);
    given[0] = bf16_of(check, a.q, a.nq);
    given[1] = bf16_of(check, a.k, a.nk);
    given[2] = bf16_of(check, a.v, a.nv);
    given[4] = bf16_of(check, a.dout, a.no);
    forward(kernels_variant(0), &shape, &a, a.o, a.lse, NULL);
    given[3] = bf16_of(check, a.o, a.no);
    (void)snprintf(text, sizeof text, "%s from key %lld", about, (long long)first);
    if (check_draw(check, 2))
        draw_borders(check, shape.seq_len, borders);
    for (int i = 0; i < PARTS; i++) {
        struct tt_attention_shape part = part_of(&shape, borders, i);

        if (part.begin == part.end)
            continue;
        if (first)
            check_range_bf16(check, text, &part, &a, given, 0, first);
        check_range_bf16(check, text, &part, &a, given, first, shape.seq_len - first);
    }
    check_reset(check, text);
}

static void check_backward_bf16(struct check *check)
{
    for (int k = 0; k < 4 * N_SHAPES; k++)
        if (!check_skips(check, k))
            try_backward_bf16(check, k);
}

const struct check_case attention_cases[] = {
    {"attention_fwd", check_forward},
    {"attention_fwd_bf16", check_forward_bf16},
    {"attention_bwd", check_backward},
    {"attention_bwd_bf16", check_backward_bf16},
};
const int n_attention_cases = sizeof attention_cases / sizeof *attention_cases;
