/* SPDX-License-Identifier: MIT
 *
 * The kernels of gpt-oss: the gradient of sinks and the clamped SwiGLU, in float and in bfloat16. As in check_bf16.c,
 * the bfloat16 kernels give the float kernels' bits, rounded once.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "core/math/bf16.h"
#include "tests/kernels/kernelcheck.h"

static const double eps32 = (double)FLT_EPSILON;
static const int64_t lengths[] = {1, 2, 7, 16, 17, 64, 257, 1000};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Rounds n values to bfloat16; they end at a guard. */
static tt_bf16 *bf16_of(struct check *check, float *x, int64_t n)
{
    tt_bf16 *to = (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;

    tt_bf16_round_ref(to, x, n);
    tt_bf16_widen_ref(x, to, n);
    return to;
}

static tt_bf16 *halves(struct check *check, int64_t n)
{
    return (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;
}

/* Compares results in bfloat16 with floats that are rounded. */
static void compare_rounded(struct check *check, const char *what, const char *shape, const tt_bf16 *got,
                            const float *want, int64_t n)
{
    float *g = check_array(check, n), *w = check_array(check, n);

    for (int64_t i = 0; i < n; i++) {
        g[i] = tt_bf16_to_float(got[i]);
        w[i] = tt_bf16_to_float(tt_bf16_from_float(want[i]));
    }
    check_compare(check, what, shape, g, w, n, NULL, 0.0);
}

/* Pairs, many of which are clamped, on either side. */
static float *pairs(struct check *check, int64_t n, int k)
{
    float *x = check_filled(check, 2 * n, k % N_FILLS);

    for (int64_t i = 0; i < 2 * n; i += 3)
        x[i] *= 8.0F;
    return x;
}

static double clamped(double x)
{
    return fmin(fmax(x, -7.0), 7.0);
}

static void check_fwd(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *x = pairs(check, n, k), *want = check_array(check, n), *got = check_array(check, n);
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_swiglu_clamped_fwd_ref(want, x, n);
        check->table->swiglu_clamped_fwd(got, x, n);
        for (int64_t i = 0; i < n; i++) /* an error of the exponent grows with it; below e^-87 digits are lost */
            near[i] = eps32 * fabs((double)want[i]) * (8.0 + 2.0 * fabs((double)x[2 * i])) + 1e-34;
        check_compare(check, "h", shape, got, want, n, near, 0.0);
        check_reset(check, shape);
    }
}

static void check_bwd(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *x = pairs(check, n, k), *dh = check_filled(check, n, FILL_NORMAL);
        float *want = check_array(check, 2 * n), *got = check_array(check, 2 * n);
        double *near = check_doubles(check, 2 * n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_swiglu_clamped_bwd_ref(want, dh, x, n);
        check->table->swiglu_clamped_bwd(got, dh, x, n);
        for (int64_t i = 0; i < n; i++) { /* 1 - sigmoid loses digits, and the gate multiplies the error */
            near[2 * i] = 32.0 * eps32 * fabs((double)dh[i] * (clamped((double)x[2 * i + 1]) + 1.0)) + 1e-34;
            near[2 * i + 1] = eps32 * fabs((double)want[2 * i + 1]) * (8.0 + 2.0 * fabs((double)x[2 * i])) + 1e-34;
        }
        check_compare(check, "dx", shape, got, want, 2 * n, near, 0.0);
        check->table->swiglu_clamped_bwd(x, dh, x, n);
        check_compare(check, "dx in place", shape, x, got, 2 * n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_bf16(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *x = pairs(check, n, k), *dh = check_filled(check, n, FILL_NORMAL);
        float *h = check_array(check, n), *dx = check_array(check, 2 * n);
        tt_bf16 *x16 = bf16_of(check, x, 2 * n), *dh16 = bf16_of(check, dh, n);
        tt_bf16 *h16 = halves(check, n), *dx16 = halves(check, 2 * n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        check->table->swiglu_clamped_fwd(h, x, n);
        check->table->swiglu_clamped_fwd_bf16(h16, x16, n);
        compare_rounded(check, "h", shape, h16, h, n);
        check->table->swiglu_clamped_bwd(dx, dh, x, n);
        check->table->swiglu_clamped_bwd_bf16(dx16, dh16, x16, n);
        compare_rounded(check, "dx", shape, dx16, dx, 2 * n);
        check->table->swiglu_clamped_bwd_bf16(x16, dh16, x16, n);
        compare_rounded(check, "dx in place", shape, x16, dx, 2 * n);
        check_reset(check, shape);
    }
}

/* --- sinks --- */

/* The allowed error of a sink's gradient: some units of the sum of the magnitudes of its terms. */
static double tolerance(const float *dout, const float *o, const float *lse, float sink, int64_t rows, int64_t step,
                        int64_t dim)
{
    double sum = 0.0;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t e = 0; e < dim; e++)
            sum += exp((double)(sink - lse[r * step])) *
                   fabs((double)dout[r * step * dim + e] * (double)o[r * step * dim + e]);
    return 32.0 * eps32 * sum + (double)FLT_MIN;
}

static void check_sinks(struct check *check)
{
    static const int64_t dims[] = {1, 3, 8, 16, 33, 64, 130};
    enum { N_DIMS = sizeof dims / sizeof *dims };

    for (int k = 0; k < 4 * N_DIMS; k++) {
        int64_t dim = dims[k / 4], rows = check_draw(check, 9), heads = 1 + check_draw(check, 5), n = rows * heads;
        float *dout = check_filled(check, n * dim, FILL_NORMAL), *o = check_filled(check, n * dim, FILL_NORMAL);
        float *lse = check_filled(check, n, FILL_NORMAL), *sinks = check_filled(check, heads, FILL_NORMAL);
        tt_bf16 *dout16 = bf16_of(check, dout, n * dim), *o16 = bf16_of(check, o, n * dim);
        tt_bf16 *sinks16 = bf16_of(check, sinks, heads);
        float *got = check_array(check, heads), *want = check_array(check, heads), *got16 = check_array(check, heads);
        double *near = check_doubles(check, heads);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld rows H=%lld E=%lld", (long long)rows, (long long)heads,
                       (long long)dim);
        tt_sinks_bwd_ref(want, dout, o, lse, sinks, rows, heads, dim);
        check->table->sinks_bwd(got, dout, o, lse, sinks, rows, heads, dim);
        check->table->sinks_bwd_bf16(got16, dout16, o16, lse, sinks16, rows, heads, dim);
        for (int64_t h = 0; h < heads; h++)
            near[h] = tolerance(dout + h * dim, o + h * dim, lse + h, sinks[h], rows, heads, dim);
        check_compare(check, "dsinks", shape, got, want, heads, near, 0.0);
        check_compare(check, "dsinks of bfloat16", shape, got16, got, heads, near, 0.0);
        check_reset(check, shape);
    }
}

const struct check_case gpt_oss_cases[] = {
    {"swiglu_clamped_fwd", check_fwd}, {"swiglu_clamped_fwd_bf16", check_bf16},
    {"swiglu_clamped_bwd", check_bwd}, {"swiglu_clamped_bwd_bf16", check_bf16},
    {"sinks_bwd", check_sinks},        {"sinks_bwd_bf16", check_sinks},
};
const int n_gpt_oss_cases = sizeof gpt_oss_cases / sizeof *gpt_oss_cases;
