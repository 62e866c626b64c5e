/* SPDX-License-Identifier: MIT
 *
 * Kernels that GPT-2, Gemma and GPT-NeoX use: gelu, geglu, layernorm.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "tests/kernels/kernelcheck.h"

static const int64_t widths[] = {1, 2, 5, 15, 16, 17, 33, 64, 100, 127, 256, 1021, 4096, 5003};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

static const double eps32 = (double)FLT_EPSILON;

/* The exponent in gelu's definition, 2u. */
static double exponent(double x)
{
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}

/* The error of e^x, in roundings, is the error of x times |x|. Beyond 90 the result is 0. */
static double exponent_error(double x)
{
    return eps32 * (6.0 + 4.0 * fmin(fabs(exponent(x)), 90.0));
}

/* The error of gelu's derivative: 1 - sigmoid loses digits, and 3u multiplies the error, until the sigmoid is 1. */
static double slope_error(double x)
{
    double u = fmin(fabs(exponent(x)), 90.0), sigmoid = 1.0 / (1.0 + exp(-exponent(x)));

    return sigmoid * exponent_error(x) * (1.0 + 3.0 * u);
}

static float *gelu_input(struct check *check, int64_t n, int fill)
{
    float *x = check_filled(check, n, fill);

    for (int64_t i = 0; i < n; i += 3)
        x[i] *= 5.0F;
    return x;
}

static void check_gelu(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        float *x = gelu_input(check, n, k % N_FILLS), *want = check_array(check, n), *got = check_array(check, n);
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_gelu_fwd_ref(want, x, n);
        check->table->gelu_fwd(got, x, n);
        for (int64_t i = 0; i < n; i++)
            near[i] = exponent_error((double)x[i]) * fabs((double)want[i]) + 0x1p-120;
        check_compare(check, "y", shape, got, want, n, near, 0.0);
        check->table->gelu_fwd(x, x, n);
        check_compare(check, "y in place", shape, x, got, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_gelu_bwd(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        float *x = gelu_input(check, n, k % N_FILLS), *dy = check_filled(check, n, FILL_NORMAL);
        float *want = check_array(check, n), *got = check_array(check, n);
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_gelu_bwd_ref(want, dy, x, n);
        check->table->gelu_bwd(got, dy, x, n);
        for (int64_t i = 0; i < n; i++)
            near[i] = fabs((double)dy[i]) * slope_error((double)x[i]) + 0x1p-100;
        check_compare(check, "dx", shape, got, want, n, near, 0.0);
        check->table->gelu_bwd(dy, dy, x, n);
        check_compare(check, "dx on dy", shape, dy, got, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_geglu(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        float *g = gelu_input(check, n, k % N_FILLS), *u = check_filled(check, n, FILL_NORMAL);
        float *want = check_array(check, n), *got = check_array(check, n), *copy = check_copy(check, g, n);
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_geglu_fwd_ref(want, g, u, n);
        check->table->geglu_fwd(got, g, u, n);
        for (int64_t i = 0; i < n; i++)
            near[i] = (eps32 + exponent_error((double)g[i])) * fabs((double)want[i]) + 0x1p-120;
        check_compare(check, "h", shape, got, want, n, near, 0.0);
        check->table->geglu_fwd(copy, copy, u, n);
        check_compare(check, "h on g", shape, copy, got, n, NULL, 0.0);
        check->table->geglu_fwd(u, g, u, n);
        check_compare(check, "h on u", shape, u, got, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_geglu_bwd(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        float *g = gelu_input(check, n, k % N_FILLS), *u = check_filled(check, n, FILL_NORMAL);
        float *dh = check_filled(check, n, FILL_NORMAL), *dg = check_array(check, n), *du = check_array(check, n);
        float *want_dg = check_array(check, n), *want_du = check_array(check, n);
        double *near_dg = check_doubles(check, n), *near_du = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_geglu_bwd_ref(want_dg, want_du, dh, g, u, n);
        check->table->geglu_bwd(dg, du, dh, g, u, n);
        for (int64_t i = 0; i < n; i++) {
            near_dg[i] = fabs((double)dh[i] * (double)u[i]) * slope_error((double)g[i]) +
                         2.0 * eps32 * fabs((double)want_dg[i]) + 0x1p-100;
            near_du[i] = (eps32 + exponent_error((double)g[i])) * fabs((double)want_du[i]) + 0x1p-120;
        }
        check_compare(check, "dg", shape, dg, want_dg, n, near_dg, 0.0);
        check_compare(check, "du", shape, du, want_du, n, near_du, 0.0);
        for (int pair = 0; pair < 9; pair++) { /* dg and du in the memory of every pair of inputs */
            float *in[3] = {check_copy(check, dh, n), check_copy(check, g, n), check_copy(check, u, n)};

            if (pair % 3 == pair / 3)
                continue;
            check->table->geglu_bwd(in[pair % 3], in[pair / 3], in[0], in[1], in[2], n);
            check_compare(check, "dg in place", shape, in[pair % 3], dg, n, NULL, 0.0);
            check_compare(check, "du in place", shape, in[pair / 3], du, n, NULL, 0.0);
        }
        check_reset(check, shape);
    }
}

static void check_gelu_erf(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        float *x = gelu_input(check, n, k % N_FILLS), *want = check_array(check, n), *got = check_array(check, n);
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_gelu_erf_fwd_ref(want, x, n);
        check->table->gelu_erf_fwd(got, x, n);
        for (int64_t i = 0; i < n; i++) /* 8 roundings, even far below 0, where the result is small */
            near[i] = 8.0 * eps32 * fabs((double)want[i]) + 0x1p-120;
        check_compare(check, "y", shape, got, want, n, near, 0.0);
        check->table->gelu_erf_fwd(x, x, n);
        check_compare(check, "y in place", shape, x, got, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_gelu_erf_bwd(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        float *x = gelu_input(check, n, k % N_FILLS), *dy = check_filled(check, n, FILL_NORMAL);
        float *want = check_array(check, n), *got = check_array(check, n);
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_gelu_erf_bwd_ref(want, dy, x, n);
        check->table->gelu_erf_bwd(got, dy, x, n);
        for (int64_t i = 0; i < n; i++) { /* the two terms of the derivative may cancel */
            double v = (double)x[i], terms = erfc(-v / sqrt(2.0)) / 2.0 + 0.4 * fabs(v) * exp(-v * v / 2.0);

            near[i] = 8.0 * eps32 * fabs((double)dy[i]) * terms + 0x1p-100;
        }
        check_compare(check, "dx", shape, got, want, n, near, 0.0);
        check->table->gelu_erf_bwd(dy, dy, x, n);
        check_compare(check, "dx on dy", shape, dy, got, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

struct row {
    double largest; /* the largest |x - mean| rstd */
    double shift;   /* the allowed error of the mean, times rstd */
};

static struct row measure(const float *x, int64_t width, double mean, double rstd)
{
    struct row row = {0};
    double sum = 0.0;

    for (int64_t i = 0; i < width; i++) {
        sum += fabs((double)x[i]);
        row.largest = fmax(row.largest, fabs((double)x[i] - mean) * rstd);
    }
    row.shift = 4.0 * eps32 * sum / (double)width * rstd;
    return row;
}

static void check_layernorm(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t width = widths[k / N_FILLS], rows = 1 + check_draw(check, 9), n = rows * width;
        float *x = check_filled(check, n, k % N_FILLS), *w = check_filled(check, width, FILL_NORMAL);
        float *b = k % 2 ? NULL : check_filled(check, width, FILL_NORMAL), *y = check_array(check, n);
        float *mean = check_array(check, rows), *rstd = check_array(check, rows), *want_y = check_array(check, n);
        float *want_mean = check_array(check, rows), *want_rstd = check_array(check, rows);
        double *near = check_doubles(check, n), *near_mean = check_doubles(check, rows);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)width, k % N_FILLS);
        tt_layernorm_fwd_ref(want_y, want_mean, want_rstd, x, w, b, rows, width, 1e-5F);
        check->table->layernorm_fwd(y, mean, rstd, x, w, b, rows, width, 1e-5F);
        for (int64_t r = 0; r < rows; r++) {
            struct row row = measure(x + r * width, width, (double)want_mean[r], (double)want_rstd[r]);

            for (int64_t c = 0; c < width; c++) {
                int64_t i = r * width + c;
                double unit = fabs(((double)x[i] - (double)want_mean[r]) * (double)want_rstd[r]);

                near[i] = fabs((double)w[c]) * (8.0 * eps32 * unit + row.shift) +
                          2.0 * eps32 * (b ? fabs((double)b[c]) : 0.0) + 2.0 * eps32 * fabs((double)want_y[i]) +
                          0x1p-140;
            }
            near_mean[r] = row.shift / (double)want_rstd[r] + 0x1p-140;
        }
        if (width > 1 || k % N_FILLS != FILL_LARGE) /* x - mean of a single large value is only a rounding error */
            check_compare(check, "y", shape, y, want_y, n, near, 0.0);
        check_compare(check, "mean", shape, mean, want_mean, rows, near_mean, 0.0);
        check_compare(check, "rstd", shape, rstd, want_rstd, rows, NULL, 8.0);
        check->table->layernorm_fwd(x, mean, rstd, x, w, b, rows, width, 1e-5F);
        check_compare(check, "y in place", shape, x, y, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

/* Allowed errors of dx, dw and db: a few roundings of every term of their sums. */
static void allow_roundings(const struct tt_layernorm_grads *g, int64_t rows, int64_t width, double *near_dx,
                            double *near_dw, double *near_db)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t group = r % tt_layernorm_groups(g) * width;
        const float *dy = (const float *)g->dy + r * width, *x = (const float *)g->x + r * width;
        const float *w = (const float *)g->w + group;
        const float *acc = g->acc ? (const float *)g->acc + r * width : NULL, *dx = (const float *)g->dx + r * width;
        double s = (double)g->rstd[r], plain = 0.0, with_x = 0.0;

        for (int64_t j = 0; j < width; j++) {
            plain += fabs((double)dy[j] * (double)w[j]) / (double)width;
            with_x += fabs((double)dy[j] * (double)w[j] * ((double)x[j] - (double)g->mean[r]) * s) / (double)width;
        }
        for (int64_t j = 0; j < width; j++) {
            int64_t i = r * width + j;
            double unit = fabs((double)x[j] - (double)g->mean[r]) * s;

            near_dx[i] = 8.0 * eps32 * s * (fabs((double)dy[j] * (double)w[j]) + plain + unit * with_x) +
                         (acc ? eps32 * (fabs((double)acc[j]) + fabs((double)dx[j])) : 0.0) + 0x1p-140;
            near_dw[group + j] += 6.0 * eps32 * fabs((double)dy[j]) * unit + 0x1p-140;
            near_db[group + j] += 4.0 * eps32 * fabs((double)dy[j]);
        }
    }
}

/* Rows have one vector of weights, or each of three groups has its own. */
static void check_layernorm_bwd(struct check *check)
{
    for (int k = 0; k < 3 * N_WIDTHS; k++) {
        int64_t groups = k % 3 == 2 ? 3 : 1, width = widths[k / 3], all = groups * width;
        int64_t rows = groups * (1 + check_draw(check, 9)), n = rows * width;
        float *x = check_filled(check, n, FILL_NORMAL), *w = check_filled(check, all, FILL_NORMAL);
        float *dy = check_filled(check, n, FILL_NORMAL), *acc = k % 2 ? check_filled(check, n, FILL_NORMAL) : NULL;
        float *y = check_array(check, n), *mean = check_array(check, rows), *rstd = check_array(check, rows);
        float *dx = check_array(check, n), *dw = check_array(check, all), *db = check_array(check, all);
        float *want_dx = check_array(check, n), *want_dw = check_array(check, all);
        float *want_db = check_array(check, all);
        double *near_dx = check_doubles(check, n), *near_dw = check_doubles(check, all);
        double *near_db = check_doubles(check, all);
        struct tt_layernorm_grads want = {want_dx, want_dw, want_db, acc, dy, x, w, mean, rstd, groups};
        struct tt_layernorm_grads got = {dx, dw, db, acc, dy, x, w, mean, rstd, groups};
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld groups %lld acc %d", (long long)rows, (long long)width,
                       (long long)groups, k % 2);
        tt_layernorm_fwd_ref(y, mean, rstd, x, w, w, rows, width, 1e-5F);
        tt_layernorm_bwd_ref(&want, rows, width);
        check->table->layernorm_bwd(&got, rows, width);
        allow_roundings(&want, rows, width, near_dx, near_dw, near_db);
        check_compare(check, "dx", shape, dx, want_dx, n, near_dx, 0.0);
        check_compare(check, "dw", shape, dw, want_dw, all, near_dw, 0.0);
        check_compare(check, "db", shape, db, want_db, all, near_db, 0.0);
        if (k % 4 > 1) {
            got.db = NULL; /* dw is the same as with it */
            check->table->layernorm_bwd(&got, rows, width);
            check_compare(check, "dw without db", shape, dw, want_dw, all, near_dw, 0.0);
            got.db = db;
        }
        if (acc) {
            got.dx = acc;
            check->table->layernorm_bwd(&got, rows, width);
            check_compare(check, "dx in place", shape, acc, dx, n, NULL, 0.0);
        }
        check_reset(check, shape);
    }
}

const struct check_case gpt_cases[] = {
    {"gelu_fwd", check_gelu},           {"gelu_bwd", check_gelu_bwd},           {"geglu_fwd", check_geglu},
    {"geglu_bwd", check_geglu_bwd},     {"gelu_erf_fwd", check_gelu_erf},       {"gelu_erf_bwd", check_gelu_erf_bwd},
    {"layernorm_fwd", check_layernorm}, {"layernorm_bwd", check_layernorm_bwd},
};
const int n_gpt_cases = sizeof gpt_cases / sizeof *gpt_cases;
