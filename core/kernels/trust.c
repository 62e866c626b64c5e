/* SPDX-License-Identifier: MIT
 *
 * Trials of kernels that few processors run. Products are checked on small matrices of whole numbers, whose sums are
 * exact in any order. Every product has rows, columns and steps of k that do not fill a tile, and more than one block
 * of k. Attention is compared with another kernel. Speed is measured in processor time.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"

enum { ROWS = 37, COLUMNS = 45, DEPTH = TT_BGEMM_DEPTH + 71, AWAY = 3 /* elements between rows */ };
enum { A = (ROWS + AWAY) * (DEPTH + AWAY), B = (COLUMNS + AWAY) * (DEPTH + AWAY), C = ROWS * COLUMNS };
enum { LEFT = ROWS * DEPTH, RIGHT = COLUMNS * DEPTH };

struct trial {
    short *left, *right; /* the numbers of A and of the transpose of B (ROWS, DEPTH), (COLUMNS, DEPTH) */
    tt_bf16 *a, *b, *c;
    float *sums, *scratch, *want; /* the sums and their expected values (ROWS, COLUMNS) */
};

/* In the product's memory order; the elements between rows are NaN. */
static void fill(const struct trial *trial, const struct tt_matmul *gemm)
{
    for (int i = 0; i < A; i++)
        trial->a[i] = 0x7fc0;
    for (int i = 0; i < B; i++)
        trial->b[i] = 0x7fc0;
    for (int p = 0; p < DEPTH; p++) {
        for (int i = 0; i < ROWS; i++)
            trial->a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p] =
                tt_bf16_from_float(trial->left[i * DEPTH + p]);
        for (int j = 0; j < COLUMNS; j++)
            trial->b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j] =
                tt_bf16_from_float(trial->right[j * DEPTH + p]);
    }
}

/* acc is one half everywhere. */
static bool multiplies(const struct trial *trial, void (*bgemm)(const struct tt_matmul *gemm), int flags)
{
    struct tt_matmul gemm = {.bf16 = true,
                             .c_bf16 = flags & 1,
                             .trans_a = flags & 2,
                             .trans_b = flags & 4,
                             .m = ROWS,
                             .n = COLUMNS,
                             .k = DEPTH,
                             .a = trial->a,
                             .b = trial->b,
                             .ldc = COLUMNS,
                             .scratch = trial->scratch};

    gemm.lda = (gemm.trans_a ? ROWS : DEPTH) + AWAY;
    gemm.ldb = (gemm.trans_b ? DEPTH : COLUMNS) + AWAY;
    gemm.c = gemm.c_bf16 ? (void *)trial->c : (void *)trial->sums;
    gemm.acc = gemm.c;
    fill(trial, &gemm);
    for (int i = 0; i < C; i++) {
        trial->c[i] = tt_bf16_from_float(0.5F);
        trial->sums[i] = 0.5F;
    }
    bgemm(&gemm);
    for (int i = 0; i < C; i++) {
        float want = trial->want[i] + 0.5F;

        if (gemm.c_bf16 ? trial->c[i] != tt_bf16_from_float(want) : trial->sums[i] != want)
            return false;
    }
    return true;
}

/* Small whole numbers. */
static int left(int i, int p)
{
    return (5 * i + 3 * p) % 17 - 8;
}

static int right(int j, int p)
{
    return (7 * j + 11 * p) % 13 - 6;
}

/* Every start of the program waits for this, so each number is computed once. */
static void set_numbers(const struct trial *trial)
{
    for (int i = 0; i < ROWS; i++)
        for (int p = 0; p < DEPTH; p++)
            trial->left[i * DEPTH + p] = (short)left(i, p);
    for (int j = 0; j < COLUMNS; j++)
        for (int p = 0; p < DEPTH; p++)
            trial->right[j * DEPTH + p] = (short)right(j, p);
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            int sum = 0;

            for (int p = 0; p < DEPTH; p++)
                sum += trial->left[i * DEPTH + p] * trial->right[j * DEPTH + p];
            trial->want[i * COLUMNS + j] = (float)sum;
        }
    }
}

bool tt_bgemm_is_right(void (*bgemm)(const struct tt_matmul *gemm))
{
    const struct tt_matmul sizes = {.bf16 = true, .c_bf16 = true, .m = ROWS, .n = COLUMNS, .k = DEPTH};
    struct trial trial = {.left = tt_calloc(LEFT, sizeof(short)),
                          .right = tt_calloc(RIGHT, sizeof(short)),
                          .a = tt_calloc(A, sizeof(tt_bf16)),
                          .b = tt_calloc(B, sizeof(tt_bf16)),
                          .c = tt_calloc(C, sizeof(tt_bf16)),
                          .sums = tt_calloc(C, sizeof(float)),
                          .want = tt_calloc(C, sizeof(float)),
                          .scratch = tt_calloc((size_t)tt_bgemm_scratch(&sizes), sizeof(float))};
    bool right_always = true;

    set_numbers(&trial);
    for (int flags = 0; flags < 8 && right_always; flags++)
        right_always = multiplies(&trial, bgemm, flags);
    tt_free(trial.left);
    tt_free(trial.right);
    tt_free(trial.a);
    tt_free(trial.b);
    tt_free(trial.c);
    tt_free(trial.sums);
    tt_free(trial.want);
    tt_free(trial.scratch);
    return right_always;
}

/* --- attention --- */

/* A sequence whose rows, keys and heads do not fill a tile; heads of o and do have V elements. */
enum { T = 150, HEADS = 2, E = 40, V = 33 };

/* One result of attention, by the kernels on trial and by others. */
struct outcome {
    tt_bf16 o[T * HEADS * V];
    float lse[T * HEADS];
    float dq[T * HEADS * E], dk[T * E], dv[T * V];
};

static const struct tt_attention_shape trial_shape = {
    .seq_len = T, .heads = HEADS, .kv_heads = 1, .head_dim = E, .value_dim = V};

static void attend(const struct tt_kernels *kernels, const tt_bf16 *some, struct outcome *out, float *scratch)
{
    const tt_bf16 *q = some, *k = q + 5, *v = q + 11, *dout = q + 13;

    for (int64_t h = 0; h < HEADS; h++)
        for (int row = 0; row < T; row += TT_ATTENTION_ROWS)
            kernels->attention_fwd_bf16(out->o + h * V, out->lse + h, q + h * E, k, v, &trial_shape, row,
                                        T - row < TT_ATTENTION_ROWS ? T - row : TT_ATTENTION_ROWS, scratch);
    kernels->attention_bwd_bf16(
        &(struct tt_attention_bf16_grads){out->dq, out->dk, out->dv, dout, q, k, v, out->o, out->lse}, &trial_shape,
        HEADS, 0, T, scratch);
}

/* Kernels may round weights and the gradients of scores to bfloat16, with relative errors of 2^-9. */
static bool are_near(const float *a, const float *b, int n, float near)
{
    bool all = true;

    for (int i = 0; i < n; i++)
        all = all && fabsf(a[i] - b[i]) <= near; /* false for NaN */
    return all;
}

static bool outputs_are_near(const tt_bf16 *a, const tt_bf16 *b)
{
    bool all = true;

    for (int i = 0; i < T * HEADS * V; i++)
        all = all && fabsf(tt_bf16_to_float(a[i]) - tt_bf16_to_float(b[i])) <= 0x1p-6F;
    return all;
}

bool tt_attention_is_right(const struct tt_kernels *kernels, const struct tt_kernels *like)
{
    int64_t forward = tt_attention_fwd_scratch(&trial_shape, true);
    int64_t backward = tt_attention_bwd_scratch(&trial_shape, T, true);
    float *scratch = tt_calloc((size_t)(forward > backward ? forward : backward), sizeof *scratch);
    tt_bf16 *some = tt_calloc(T * HEADS * E + 13, sizeof *some); /* q, and a little later k, v and do */
    struct outcome *got = tt_calloc(2, sizeof *got), *want = got + 1;
    bool agree;

    for (int i = 0; i < T * HEADS * E + 13; i++)
        some[i] = tt_bf16_from_float((float)(left(i, i / 7) + right(i / 3, i)) / 8.0F);
    attend(kernels, some, got, scratch);
    attend(like, some, want, scratch);
    agree = outputs_are_near(got->o, want->o) && are_near(got->lse, want->lse, T * HEADS, 0x1p-12F) &&
            are_near(got->dq, want->dq, T * HEADS * E, 0x1p-4F) && are_near(got->dk, want->dk, T * E, 0x1p-4F) &&
            are_near(got->dv, want->dv, T * V, 0x1p-4F);
    tt_free(some);
    tt_free(got);
    tt_free(scratch);
    return agree;
}

/* --- the rate --- */

/* Floats for the operands of a measured product, and for its scratch. */
enum { M = 96, N = 192, K = 384, ROUNDS = 5 };

/* The processor time of the fastest of several rounds, which is about the same on a busy machine. */
static double seconds_of(void (*kernel)(const struct tt_matmul *), const struct tt_matmul *product)
{
    double least = HUGE_VAL;

    for (int i = 0; i < ROUNDS + 1; i++) { /* the first one touches the memory */
        struct timespec begin, end;

        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        kernel(product);
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        least = fmin(least, (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
    }
    return least;
}

double tt_bgemm_gain(const struct tt_kernels *kernels)
{
    struct tt_matmul product = {.m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldc = N};
    struct tt_matmul half;
    float *a = tt_calloc((size_t)M * K, sizeof *a), *b = tt_calloc((size_t)N * K, sizeof *b);
    float *c = tt_calloc((size_t)M * N, sizeof *c), *scratch;
    double gain;

    product.a = a;
    product.b = b;
    product.c = c;
    half = product;
    half.bf16 = true;
    scratch = tt_calloc((size_t)(tt_sgemm_scratch(&product) + tt_bgemm_scratch(&half)), sizeof *scratch);
    product.scratch = half.scratch = scratch;
    gain = seconds_of(kernels->sgemm, &product) / seconds_of(kernels->bgemm, &half);
    tt_free(a);
    tt_free(b);
    tt_free(c);
    tt_free(scratch);
    return gain;
}
