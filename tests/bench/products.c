/* SPDX-License-Identifier: MIT
 *
 * Tiles of float32 products, as matmul.c cuts them, by the portable kernel (OpenBLAS) and by the fastest variant, in
 * turn on one thread. A benchmark, never a test:
 *
 *   build/tests/bench/bench_products [ROUNDS]
 *
 * Rates are medians, ratios medians of ratios within a round, in processor time. Weights and results that a step would
 * find in memory rotate through a large array; activations of 256 rows stay in the caches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"

enum { ROTATION = 64 << 20 /* floats */, MOST_ROUNDS = 1000 };

struct tile {
    const char *name;
    bool trans_a, trans_b;
    int64_t m, n, k, lda, ldb, ldc;
    bool cold_a, cold_b, cold_c;
};

static const struct tile tiles[] = {
    {"GPT-2, 256 rows, attention", false, true, 256, 384, 768, 768, 768, 768, false, true, false},
    {"GPT-2, 256 rows, fc", false, true, 256, 384, 768, 768, 768, 3072, false, true, false},
    {"GPT-2, 256 rows, proj", false, true, 256, 384, 3072, 3072, 3072, 768, false, true, false},
    {"GPT-2, 256 rows, dx of fc", false, false, 256, 384, 3072, 3072, 768, 768, false, true, false},
    {"GPT-2, 256 rows, dx of proj", false, false, 256, 384, 768, 768, 3072, 3072, false, true, false},
    {"GPT-2, 256 rows, dw of fc", true, false, 384, 768, 256, 3072, 768, 768, false, false, true},
    {"GPT-2, 256 rows, dw of proj", true, false, 768, 384, 256, 768, 3072, 3072, false, false, true},
    {"GPT-2, 256 rows, head", false, true, 256, 393, 768, 768, 768, 50304, false, true, false},
    {"125M, 2048 rows, attention", false, true, 512, 768, 768, 768, 768, 768, true, true, true},
    {"125M, 2048 rows, w1", false, true, 512, 2048, 768, 768, 768, 2048, true, true, true},
    {"125M, 2048 rows, w2", false, true, 512, 768, 2048, 2048, 2048, 768, true, true, true},
    {"125M, 2048 rows, dx of w1", false, false, 512, 768, 2048, 2048, 768, 768, true, true, true},
    {"125M, 2048 rows, dx of w2", false, false, 512, 2048, 768, 768, 2048, 2048, true, true, true},
    {"125M, 2048 rows, dw of w1", true, false, 512, 768, 2048, 2048, 768, 768, true, true, true},
    {"125M, 2048 rows, head", false, true, 512, 500, 768, 768, 768, 32000, false, true, true},
    {"125M, 2048 rows, dw of head", true, false, 500, 768, 512, 32000, 768, 768, true, false, true},
    {"debugmodel, attention", false, true, 512, 256, 256, 256, 256, 256, true, false, true},
    {"debugmodel, w1", false, true, 512, 768, 256, 256, 256, 768, true, false, true},
    {"debugmodel, dw of w1", true, false, 384, 256, 4096, 768, 256, 256, true, true, false},
    {"tiny", false, true, 64, 64, 64, 64, 64, 64, false, false, false},
    {"tiny", false, false, 64, 64, 64, 64, 64, 64, false, false, false},
    {"tiny", true, false, 64, 64, 64, 64, 64, 64, false, false, false},
    {"two rows", false, true, 2, 384, 768, 768, 768, 768, false, true, false},
    {"four rows", false, true, 4, 384, 768, 768, 768, 768, false, true, false},
};
enum { N_TILES = sizeof tiles / sizeof *tiles };

static double processor_sec(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

/* The next n floats of the large array, or the same ones again. */
static float *operand(float *all, int64_t n, bool cold, int64_t *at)
{
    float *x;

    if (!cold)
        return all + ROTATION;
    if (*at + n > ROTATION)
        *at = 0;
    x = all + *at;
    *at += (n + 15) / 16 * 16;
    return x;
}

static void measure(const struct tile *t, const struct tt_kernels *const *kernels, float *all, int rounds)
{
    static double sec[2][MOST_ROUNDS], ratio[MOST_ROUNDS];
    int64_t n_a = (t->trans_a ? t->k : t->m) * t->lda, n_b = (t->trans_b ? t->n : t->k) * t->ldb, n_c = t->m * t->ldc;
    struct tt_matmul product = {.trans_a = t->trans_a,
                                .trans_b = t->trans_b,
                                .m = t->m,
                                .n = t->n,
                                .k = t->k,
                                .lda = t->lda,
                                .ldb = t->ldb,
                                .ldc = t->ldc};
    double gflop = 2e-9 * (double)t->m * (double)t->n * (double)t->k;
    int64_t at = 0;

    product.scratch = tt_calloc((size_t)tt_matmul_scratch_floats(&product), sizeof(float));
    for (int round = -1; round < rounds; round++) { /* the first round warms up */
        for (int i = 0; i < 2; i++) {
            int which = (i + round + 1) % 2;
            double start;

            product.a = operand(all, n_a, t->cold_a, &at);
            product.b = operand(all, n_b, t->cold_b, &at) + (t->cold_b ? 0 : n_a);
            product.c = operand(all, n_c, t->cold_c, &at) + (t->cold_c ? 0 : n_a + n_b);
            start = processor_sec();
            kernels[which]->sgemm(&product);
            if (round >= 0)
                sec[which][round] = processor_sec() - start;
        }
        if (round >= 0)
            ratio[round] = sec[0][round] / sec[1][round];
    }
    (void)printf("%-28s %5lld x %5lld x %5lld %c%c %10.1f %10.1f %10.3f\n", t->name, (long long)t->m, (long long)t->n,
                 (long long)t->k, t->trans_a ? 'T' : 'N', t->trans_b ? 'T' : 'N', gflop / median(sec[0], rounds),
                 gflop / median(sec[1], rounds), median(ratio, rounds));
    (void)fflush(stdout);
    tt_free(product.scratch);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 15;
    const struct tt_kernels *kernels[2] = {tt_kernels_variant(0), tt_kernels()};
    int64_t n = ROTATION + (48 << 20); /* the operands that stay in the caches come last */
    float *all = tt_map((size_t)n * sizeof *all);

    if (!all || rounds < 1 || rounds > MOST_ROUNDS)
        return 1;
    for (int64_t i = 0; i < n; i++)
        all[i] = (float)(i % 1000) * 1e-3F - 0.5F;
    (void)printf("%-28s %24s %10s %10s %10s\n", "tile", "m x n x k", kernels[0]->name, kernels[1]->name, "ratio");
    for (int i = 0; i < N_TILES; i++)
        measure(&tiles[i], kernels, all, rounds);
    tt_unmap(all, (size_t)n * sizeof *all);
    return 0;
}
