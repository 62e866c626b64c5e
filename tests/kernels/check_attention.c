/* SPDX-License-Identifier: MIT
 *
 * Attention: groups of query heads, head dims with and without tails, sequences that end near the borders of tiles.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kernels/kernelcheck.h"

static const struct tt_attention_shape shapes[] = {
    /* T, H, K, E */
    {1, 1, 1, 8, NULL},   {2, 2, 1, 2, NULL},   {7, 3, 3, 5, NULL},    {63, 2, 2, 16, NULL},  {64, 4, 2, 8, NULL},
    {65, 2, 1, 64, NULL}, {130, 4, 1, 6, NULL}, {257, 1, 1, 16, NULL}, {96, 2, 2, 128, NULL}, {520, 2, 1, 4, NULL},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Shape k, as one document or as several, of which some are shorter than a vector. ret_text says which. */
static struct tt_attention_shape make_shape(struct check *check, int k, bool documents, char *text, size_t size)
{
    struct tt_attention_shape shape = shapes[k];
    int32_t *positions = (int32_t *)(void *)check_array(check, shape.seq_len);
    int64_t length = 1 + check_draw(check, shape.seq_len);

    for (int64_t i = 0; i < shape.seq_len; i++)
        positions[i] = i == 0 || check_draw(check, length) == 0 ? 0 : positions[i - 1] + 1;
    shape.positions = documents ? positions : NULL;
    (void)snprintf(text, size, "T=%lld H=%lld K=%lld E=%lld%s", (long long)shape.seq_len, (long long)shape.heads,
                   (long long)shape.kv_heads, (long long)shape.head_dim, documents ? " documents" : "");
    return shape;
}

struct arrays {
    float *q, *k, *v, *o, *lse, *dout, *gathered;
    int64_t nq, nk;
};

static struct arrays make_arrays(struct check *check, const struct tt_attention_shape *shape, enum fill fill)
{
    struct arrays a = {.nq = shape->seq_len * shape->heads * shape->head_dim,
                       .nk = shape->seq_len * shape->kv_heads * shape->head_dim};

    a.q = check_filled(check, a.nq, fill);
    a.k = check_filled(check, a.nk, FILL_NORMAL);
    a.v = check_filled(check, a.nk, FILL_NORMAL);
    a.dout = check_filled(check, a.nq, FILL_NORMAL);
    a.gathered = check_array(check, 2 * shape->seq_len * shape->head_dim);
    a.o = check_array(check, a.nq);
    a.lse = check_array(check, shape->seq_len * shape->heads);
    return a;
}

/* Runs all heads in blocks of rows, with k and v of a head gathered, as the op does. */
static void forward(const struct tt_kernels *table, const struct tt_attention_shape *shape, const struct arrays *a,
                    float *o, float *lse, float *scratch)
{
    int64_t n = shape->seq_len * shape->head_dim, stride = shape->kv_heads * shape->head_dim;

    for (int64_t h = 0; h < shape->heads; h++) {
        int64_t q = h * shape->head_dim, k = h / (shape->heads / shape->kv_heads) * shape->head_dim;

        for (int64_t j = 0; j < shape->seq_len; j++) {
            memcpy(a->gathered + j * shape->head_dim, a->k + k + j * stride, (size_t)shape->head_dim * sizeof(float));
            memcpy(a->gathered + n + j * shape->head_dim, a->v + k + j * stride,
                   (size_t)shape->head_dim * sizeof(float));
        }
        for (int64_t row = 0; row < shape->seq_len; row += TT_ATTENTION_ROWS) {
            int64_t left = shape->seq_len - row;

            table->attention_fwd(o + q, lse + h, a->q + q, a->gathered, a->gathered + n, shape, row,
                                 left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, scratch);
        }
    }
}

/* All groups of heads, one range of keys. */
static void backward_range(const struct tt_kernels *table, const struct tt_attention_shape *shape,
                           const struct arrays *a, float *const *grads, int64_t first_key, int64_t keys, float *scratch)
{
    int64_t heads = shape->heads / shape->kv_heads;

    for (int64_t kv = 0; kv < shape->kv_heads; kv++) {
        int64_t q = kv * heads * shape->head_dim, k = kv * shape->head_dim;
        struct tt_attention_grads group = {grads[0] + q, grads[1] + k, grads[2] + k, a->dout + q,        a->q + q,
                                           a->k + k,     a->v + k,     a->o + q,     a->lse + kv * heads};

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

static void fill_tolerance(double *near, int64_t n, double size)
{
    for (int64_t i = 0; i < n; i++)
        near[i] = size;
}

static void check_forward(struct check *check)
{
    for (int k = 0; k < 2 * N_SHAPES * N_FILLS; k++) {
        char about[64], text[96];
        const struct tt_attention_shape made = make_shape(check, k / N_FILLS / 2, k / N_FILLS % 2, about, sizeof about);
        const struct tt_attention_shape *shape = &made;
        enum fill fill = k % N_FILLS == FILL_LARGE ? FILL_NORMAL : (enum fill)(k % N_FILLS);
        struct arrays a = make_arrays(check, shape, fill);
        int64_t n_lse = shape->seq_len * shape->heads;
        float *o = check_array(check, a.nq), *lse = check_array(check, n_lse);
        float *scratch = check_array(check, tt_attention_fwd_scratch(shape));
        double *near = check_doubles(check, a.nq), size = 1.0;

        (void)snprintf(text, sizeof text, "%s fill %d", about, k % N_FILLS);
        for (int64_t i = 0; k % N_FILLS == FILL_LARGE && i < a.nq; i++)
            a.q[i] *= 30.0F; /* makes the softmax sharp; errors of the scores grow with their size */
        size = k % N_FILLS == FILL_LARGE ? 30.0 * sqrt((double)shape->head_dim) : 4.0;
        forward(check->table, shape, &a, o, lse, scratch);
        forward(tt_kernels_variant(0), shape, &a, a.o, a.lse, scratch);
        fill_tolerance(near, a.nq, 8.0 * size * (double)FLT_EPSILON);
        check_compare(check, "o", text, o, a.o, a.nq, near, 0.0);
        fill_tolerance(near, n_lse, 8.0 * size * (double)FLT_EPSILON);
        check_compare(check, "lse", text, lse, a.lse, n_lse, near, 0.0);
        check_reset(check, text);
    }
}

static tt_bf16 *bf16_of(struct check *check, float *x, int64_t n)
{
    tt_bf16 *to = (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2; /* the last one beside the guard */

    tt_bf16_round_ref(to, x, n);
    tt_bf16_widen_ref(x, to, n);
    return to;
}

/* attention_fwd_bf16 on all heads, as forward() above. */
static void forward_bf16(struct check *check, const struct tt_attention_shape *shape, const struct arrays *a,
                         tt_bf16 *o, float *lse)
{
    int64_t dim = shape->head_dim, n = shape->seq_len * dim;
    const tt_bf16 *q = bf16_of(check, a->q, a->nq), *k = bf16_of(check, a->k, a->nk), *v = bf16_of(check, a->v, a->nk);
    tt_bf16 *head_k = bf16_of(check, check_filled(check, n, FILL_ZERO), n);
    tt_bf16 *head_v = bf16_of(check, check_filled(check, n, FILL_ZERO), n);
    float *scratch = check_array(check, tt_attention_fwd_bf16_scratch(shape));

    for (int64_t h = 0; h < shape->heads; h++) {
        int64_t at = h / (shape->heads / shape->kv_heads) * dim;

        for (int64_t j = 0; j < shape->seq_len; j++, at += shape->kv_heads * dim) {
            memcpy(head_k + j * dim, k + at, (size_t)dim * sizeof *k);
            memcpy(head_v + j * dim, v + at, (size_t)dim * sizeof *v);
        }
        for (int64_t row = 0; row < shape->seq_len; row += TT_ATTENTION_ROWS) {
            int64_t left = shape->seq_len - row;

            check->table->attention_fwd_bf16(o + h * dim, lse + h, q + h * dim, head_k, head_v, shape, row,
                                             left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, scratch);
        }
    }
}

/*
 * Weights may be rounded to bfloat16 for the product with v, each by 2^-8 of it; so o is off by 2^-8 of the attention
 * to |v|, and by the same of itself when it is rounded. lse has the errors of float32.
 */
static void check_forward_bf16(struct check *check)
{
    for (int k = 0; k < 2 * N_SHAPES * N_FILLS; k++) {
        char about[64], text[96];
        const struct tt_attention_shape made = make_shape(check, k / N_FILLS / 2, k / N_FILLS % 2, about, sizeof about);
        const struct tt_attention_shape *shape = &made;
        bool sharp = k % N_FILLS == FILL_LARGE;
        struct arrays a = make_arrays(check, shape, sharp ? FILL_NORMAL : (enum fill)(k % N_FILLS));
        int64_t n_lse = shape->seq_len * shape->heads;
        float *lse = check_array(check, n_lse), *got = check_array(check, a.nq), *sizes = check_array(check, a.nq);
        float *scratch = check_array(check, tt_attention_fwd_scratch(shape));
        double *near = check_doubles(check, a.nq), size = sharp ? 30.0 * sqrt((double)shape->head_dim) : 4.0;
        tt_bf16 *o = (tt_bf16 *)(void *)check_array(check, (a.nq + 1) / 2) + a.nq % 2;

        (void)snprintf(text, sizeof text, "%s fill %d", about, k % N_FILLS);
        for (int64_t i = 0; sharp && i < a.nq; i++)
            a.q[i] *= 30.0F;
        forward_bf16(check, shape, &a, o, lse); /* rounds q, k and v */
        tt_bf16_widen_ref(got, o, a.nq);
        forward(tt_kernels_variant(0), shape, &a, a.o, a.lse, scratch);
        fill_tolerance(near, n_lse, 8.0 * size * (double)FLT_EPSILON);
        check_compare(check, "lse", text, lse, a.lse, n_lse, near, 0.0);
        for (int64_t i = 0; i < a.nk; i++)
            a.v[i] = fabsf(a.v[i]);
        forward(tt_kernels_variant(0), shape, &a, sizes, a.lse, scratch);
        for (int64_t i = 0; i < a.nq; i++)
            near[i] = 16.0 * size * (double)FLT_EPSILON + 0x1.02p-8 * ((double)sizes[i] + fabs((double)a.o[i]));
        for (int64_t i = 0; i < a.nq; i++)
            near[i] = isfinite(near[i]) ? near[i] : 0.0;
        check_compare(check, "o", text, got, a.o, a.nq, near, 0.0);
        check_reset(check, text);
    }
}

static void check_backward(struct check *check)
{
    for (int k = 0; k < 4 * N_SHAPES; k++) {
        char about[64], text[96];
        struct tt_attention_shape shape = make_shape(check, k / 4, k / 2 % 2, about, sizeof about);
        struct arrays a;
        float *got[4], *want[4], *scratch; /* dq, dk, dv, and dq of the second range */
        double *near;

        a = make_arrays(check, &shape, FILL_NORMAL);
        for (int i = 0; i < 4; i++) {
            got[i] = check_array(check, i == 1 || i == 2 ? a.nk : a.nq);
            want[i] = check_array(check, i == 1 || i == 2 ? a.nk : a.nq);
        }
        scratch = check_array(check, tt_attention_bwd_scratch(&shape, shape.seq_len));
        near = check_doubles(check, a.nq);
        (void)snprintf(text, sizeof text, "%s ranges %d", about, 1 + k % 2);
        forward(tt_kernels_variant(0), &shape, &a, a.o, a.lse, scratch);
        backward(tt_kernels_variant(0), &shape, &a, want, scratch);
        if (k % 2) {
            backward_in_ranges(check->table, &shape, &a, got, scratch);
        } else {
            backward(check->table, &shape, &a, got, scratch);
        }
        fill_tolerance(near, a.nq, 40.0 * sqrt((double)shape.head_dim) * (double)FLT_EPSILON);
        for (int i = 0; i < 3; i++) {
            check_compare(check,
                          i == 0   ? "dq"
                          : i == 1 ? "dk"
                                   : "dv",
                          text, got[i], want[i], i ? a.nk : a.nq, near, 0.0);
        }
        check_reset(check, text);
    }
}

/*
 * Products may round p and ds to bfloat16, each by 2^-8 of it: a gradient is off by 2^-8 of the sum of the sizes of
 * what its product adds. sizes: those of dq, dk and dv, of one group.
 */
static void gradient_sizes(const struct tt_attention_shape *shape, const struct arrays *a, int64_t kv, int64_t first,
                           int64_t keys, double *const *sizes)
{
    int64_t dim = shape->head_dim, heads = shape->heads / shape->kv_heads, width = shape->heads * dim;

    for (int64_t h = kv * heads; h < (kv + 1) * heads; h++) {
        for (int64_t i = first; i < shape->seq_len; i++) {
            int64_t start = tt_attention_start(shape, i);

            for (int64_t j = start > first ? start : first; j <= i && j < first + keys; j++) {
                int64_t at = i * width + h * dim, to = (j * shape->kv_heads + kv) * dim;
                double score = 0.0, slope = 0.0, p, ds;

                for (int64_t e = 0; e < dim; e++) {
                    score += (double)a->q[at + e] * (double)a->k[to + e];
                    slope += (double)a->dout[at + e] * ((double)a->v[to + e] - (double)a->o[at + e]);
                }
                p = exp(score / sqrt((double)dim) - (double)a->lse[i * shape->heads + h]);
                ds = fabs(p * slope) / sqrt((double)dim);
                for (int64_t e = 0; e < dim; e++) {
                    sizes[0][at + e] += ds * fabs((double)a->k[to + e]);
                    sizes[1][to + e] += ds * fabs((double)a->q[at + e]);
                    sizes[2][to + e] += p * fabs((double)a->dout[at + e]);
                }
            }
        }
    }
}

/* A range of keys of all groups; the rest of the arrays stays as it is in both. */
static void check_range_bf16(struct check *check, const char *text, const struct tt_attention_shape *shape,
                             struct arrays *a, const tt_bf16 *const *given, int64_t first, int64_t keys)
{
    int64_t heads = shape->heads / shape->kv_heads, n[3] = {a->nq, a->nk, a->nk};
    float *got[3], *want[3], *scratch = check_array(check, tt_attention_bwd_bf16_scratch(shape, keys));
    double *near[3];

    for (int i = 0; i < 3; i++) {
        got[i] = check_filled(check, n[i], FILL_ZERO);
        want[i] = check_filled(check, n[i], FILL_ZERO);
        near[i] = check_doubles(check, n[i]);
    }
    for (int64_t kv = 0; kv < shape->kv_heads; kv++) {
        int64_t q = kv * heads * shape->head_dim, k = kv * shape->head_dim;
        struct tt_attention_bf16_grads group = {got[0] + q,   got[1] + k,   got[2] + k,
                                                given[4] + q, given[0] + q, given[1] + k,
                                                given[2] + k, given[3] + q, a->lse + kv * heads};

        check->table->attention_bwd_bf16(&group, shape, heads, first, keys, scratch);
        group.dq = want[0] + q;
        group.dk = want[1] + k;
        group.dv = want[2] + k;
        tt_attention_bwd_bf16_ref(&group, shape, heads, first, keys, scratch);
        gradient_sizes(shape, a, kv, first, keys, near);
    }
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < n[i]; j++)
            near[i][j] = 0x1.02p-8 * near[i][j] + 40.0 * sqrt((double)shape->head_dim) * (double)FLT_EPSILON;
        check_compare(check, i == 0 ? "dq" : i == 1 ? "dk" : "dv", text, got[i], want[i], n[i], near[i], 0.0);
    }
}

static void check_backward_bf16(struct check *check)
{
    for (int k = 0; k < 4 * N_SHAPES; k++) {
        char about[64], text[96];
        struct tt_attention_shape shape = make_shape(check, k / 4, k / 2 % 2, about, sizeof about);
        int64_t first;
        struct arrays a;
        const tt_bf16 *given[5];

        first = k % 2 ? (shape.seq_len + 1) / 2 / TT_ATTENTION_PANEL * TT_ATTENTION_PANEL : 0;
        a = make_arrays(check, &shape, FILL_NORMAL);
        given[0] = bf16_of(check, a.q, a.nq);
        given[1] = bf16_of(check, a.k, a.nk);
        given[2] = bf16_of(check, a.v, a.nk);
        given[4] = bf16_of(check, a.dout, a.nq);
        forward(tt_kernels_variant(0), &shape, &a, a.o, a.lse, NULL);
        given[3] = bf16_of(check, a.o, a.nq);
        (void)snprintf(text, sizeof text, "%s from key %lld", about, (long long)first);
        if (first)
            check_range_bf16(check, text, &shape, &a, given, 0, first);
        check_range_bf16(check, text, &shape, &a, given, first, shape.seq_len - first);
        check_reset(check, text);
    }
}

const struct check_case attention_cases[] = {
    {"attention_fwd", check_forward},
    {"attention_fwd_bf16", check_forward_bf16},
    {"attention_bwd", check_backward},
    {"attention_bwd_bf16", check_backward_bf16},
};
const int n_attention_cases = sizeof attention_cases / sizeof *attention_cases;
