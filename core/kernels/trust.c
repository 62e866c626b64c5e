/* SPDX-License-Identifier: MIT
 *
 * Tests product kernels that few processors run. For correctness, it multiplies small matrices of whole numbers, whose
 * sums are exact in any order; every product has rows, columns and steps of k that do not fill a tile, and more than
 * one block of k. For speed, it measures processor time.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"

enum { ROWS = 37, COLUMNS = 45, DEPTH = TT_BGEMM_DEPTH + 71, AWAY = 3 /* elements between rows */ };
enum { A = (ROWS + AWAY) * (DEPTH + AWAY), B = (COLUMNS + AWAY) * (DEPTH + AWAY), C = ROWS * COLUMNS };

static int left(int i, int p)
{
    return (5 * i + 3 * p) % 17 - 8;
}

static int right(int p, int j)
{
    return (7 * j + 11 * p) % 13 - 6;
}

struct trial {
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
            trial->a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p] = tt_bf16_from_float((float)left(i, p));
        for (int j = 0; j < COLUMNS; j++)
            trial->b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j] = tt_bf16_from_float((float)right(p, j));
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

bool tt_bgemm_is_right(void (*bgemm)(const struct tt_matmul *gemm))
{
    const struct tt_matmul sizes = {.bf16 = true, .c_bf16 = true, .m = ROWS, .n = COLUMNS, .k = DEPTH};
    struct trial trial = {.a = tt_calloc(A, sizeof(tt_bf16)),
                          .b = tt_calloc(B, sizeof(tt_bf16)),
                          .c = tt_calloc(C, sizeof(tt_bf16)),
                          .sums = tt_calloc(C, sizeof(float)),
                          .want = tt_calloc(C, sizeof(float)),
                          .scratch = tt_calloc((size_t)tt_bgemm_scratch(&sizes), sizeof(float))};
    bool right_always = true;

    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            int sum = 0;

            for (int p = 0; p < DEPTH; p++)
                sum += left(i, p) * right(p, j);
            trial.want[i * COLUMNS + j] = (float)sum;
        }
    }
    for (int flags = 0; flags < 8 && right_always; flags++)
        right_always = multiplies(&trial, bgemm, flags);
    tt_free(trial.a);
    tt_free(trial.b);
    tt_free(trial.c);
    tt_free(trial.sums);
    tt_free(trial.want);
    tt_free(trial.scratch);
    return right_always;
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
