/* SPDX-License-Identifier: MIT
 *
 * Functions that other kernels use: the exponential over its whole range, and matrix products. Products are compared
 * with sums in double, and have the same bits on 1 to 3 threads.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/kernels/matmul.h"
#include "tests/kernels/kernelcheck.h"

/* Every 61st float for which e^x is neither 0 nor infinite nor 1, in pieces of awkward length; then the ends of the
 * range. */
static void check_exp(struct check *check)
{
    static const float ends[] = {0.0F,     -0.0F,     INFINITY, -INFINITY, NAN,       FLT_MAX, -FLT_MAX, 88.72283F,
                                 88.7229F, -87.3366F, -103.97F, -103.98F,  0x1p-149F, 1e-30F,  200.0F,   -200.0F};
    const uint32_t low = UINT32_C(0x32000000), high = UINT32_C(0x42d00000); /* 7e-9, 104 */
    const int64_t n_ends = sizeof ends / sizeof *ends;

    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t b = low; b < high; b += 61 * 4099) {
            int64_t n = 4099 - check_draw(check, 40);
            float *x = check_array(check, n), *got = check_array(check, n), *want = check_array(check, n);

            for (int64_t i = 0; i < n; i++) {
                uint32_t bits = (b + 61 * (uint32_t)i) | sign << 31;

                memcpy(&x[i], &bits, sizeof bits);
            }
            tt_exp_ref(want, x, n);
            check->table->exp(got, x, n);
            check_compare(check, "exp", "range", got, want, n, NULL, 1.0);
            check_reset(check, "range");
        }
    }
    for (int64_t n = 1; n <= n_ends; n++) {
        float *got = check_array(check, n), *want = check_array(check, n);

        tt_exp_ref(want, ends, n);
        check->table->exp(got, ends, n);
        check_compare(check, "exp", "ends", got, want, n, NULL, 1.0);
        if (isnan(want[n - 1]) != isnan(got[n - 1])) {
            check->failures++;
            printf("# exp(%g) is %g\n", (double)ends[n - 1], (double)got[n - 1]);
        }
        check_reset(check, "ends");
    }
}

/* Element (i, j) of the product; ret_size gets the sum of the absolute values of its terms. */
static double element(const struct tt_matmul *g, int64_t i, int64_t j, double *ret_size)
{
    const float *x = g->a, *y = g->b;
    double sum = 0.0;

    *ret_size = 0.0;
    for (int64_t p = 0; p < g->k; p++) {
        double a = (double)(g->trans_a ? x[p * g->lda + i] : x[i * g->lda + p]);
        double b = (double)(g->trans_b ? y[j * g->ldb + p] : y[p * g->ldb + j]);

        sum += a * b;
        *ret_size += fabs(a * b);
    }
    return sum;
}

static void check_one_gemm(struct check *check, const int64_t *mnk, bool trans_a, bool trans_b, int acc)
{
    struct tt_matmul g = {.trans_a = trans_a, .trans_b = trans_b, .m = mnk[0], .n = mnk[1], .k = mnk[2]};
    int64_t n_c;
    float *first = NULL, *want, *before;
    double *near;
    char shape[96];

    g.lda = (trans_a ? g.m : g.k) + 3;
    g.ldb = (trans_b ? g.k : g.n) + 1;
    g.ldc = g.n + 2;
    n_c = (g.m - 1) * g.ldc + g.n;
    g.a = check_filled(check, (trans_a ? g.k : g.m) * g.lda, FILL_NORMAL);
    g.b = check_filled(check, (trans_b ? g.n : g.k) * g.ldb, FILL_NORMAL);
    before = check_filled(check, n_c, FILL_NORMAL);
    want = check_array(check, n_c); /* with NaN between the rows, as in c */
    near = check_doubles(check, n_c);
    for (int64_t i = 0; i < g.m; i++) {
        for (int64_t j = 0; j < g.n; j++) {
            double size, sum = element(&g, i, j, &size), old = acc ? (double)before[i * g.ldc + j] : 0.0;

            want[i * g.ldc + j] = (float)(sum + old);
            near[i * g.ldc + j] = (double)FLT_EPSILON * 6.0 * (size + fabs(old));
        }
    }
    (void)snprintf(shape, sizeof shape, "%lld %lld %lld %c%c acc %d", (long long)g.m, (long long)g.n, (long long)g.k,
                   trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', acc);
    for (int threads = 1; threads <= 3; threads++) {
        float *c = check_array(check, n_c);
        struct tt_team *team;

        if (tt_team_new(threads, &team) < 0)
            return;
        if (acc == 2) { /* in place */
            for (int64_t i = 0; i < g.m; i++)
                memcpy(c + i * g.ldc, before + i * g.ldc, (size_t)g.n * sizeof *c);
        }
        g.c = c;
        g.acc = acc == 2 ? c : acc ? before : NULL;
        g.scratch = check_array(check, threads * tt_matmul_scratch_floats(&g));
        tt_matmul(team, &g);
        check_compare(check, "c", shape, c, want, n_c, near, 0.0);
        if (first && memcmp(first, c, (size_t)n_c * sizeof *c) != 0) {
            check->failures++;
            printf("# %s: other bits on %d threads\n", shape, threads);
        }
        first = c;
        tt_team_free(team);
    }
    check_reset(check, shape);
}

static void check_gemm(struct check *check)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {7, 5, 3},      {17, 33, 65},  {1, 300, 64},
                                       {300, 1, 40}, {257, 64, 100}, {64, 770, 50}, {1600, 40, 40}};

    static const int64_t tiles[][2] = {{255, 1},  {256, 2},  {767, 2},  {768, 2},    {1535, 2},
                                       {1536, 4}, {2048, 4}, {3072, 8}, {32000, 64}, {128256, 256}};
    const struct tt_matmul many = {.m = 768, .n = 200, .k = 200, .threads = 16};

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 12; k++)
            check_one_gemm(check, sizes[s], k & 1, k >> 1 & 1, k >> 2);
    }
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        const struct tt_matmul tall = {.m = tiles[t][0], .n = 200, .k = 200},
                               wide = {.m = 200, .n = tiles[t][0], .k = 200};

        if (tt_matmul_tiles(&tall) != tiles[t][1] || tt_matmul_tiles(&wide) != tiles[t][1]) {
            check->failures++;
            printf("# %lld rows are cut into %lld tiles\n", (long long)tiles[t][0], (long long)tt_matmul_tiles(&tall));
        }
    }
    if (tt_matmul_tiles(&many) != (tt_sgemm_is_blas() ? 2 : 8)) { /* of 96 rows */
        check->failures++;
        printf("# for 16 threads, 768 rows are cut into %lld tiles\n", (long long)tt_matmul_tiles(&many));
    }
}

const struct check_case math_cases[] = {
    {"exp", check_exp},
    {"gemm", check_gemm},
};
const int n_math_cases = sizeof math_cases / sizeof *math_cases;
