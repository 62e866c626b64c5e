/* SPDX-License-Identifier: MIT
 *
 * Kernels on the rows of experts: mix_rows and its gradients, in float and in bfloat16.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/math/bf16.h"
#include "tests/kernels/kernelcheck.h"

static const int64_t widths[] = {1, 5, 15, 16, 17, 33, 100, 255, 256, 257, 1021};
enum { N_WIDTHS = sizeof widths / sizeof *widths, MOST_EXPERTS = 4 };

/* A call: each of rows * k slots gets its own row of x, in random order. */
struct rows {
    int64_t rows, k, width, n, n_x; /* n: elements of y; n_x: elements of x */
    int32_t *places;
    float *gates, *x, *y; /* y: dy in backward, acc in forward */
    char shape[64];
};

static struct rows make(struct check *check, int c)
{
    struct rows r = {.rows = 1 + check_draw(check, 6), .k = 1 + check_draw(check, MOST_EXPERTS), .width = widths[c]};
    int64_t slots = r.rows * r.k;

    r.n = r.rows * r.width;
    r.n_x = slots * r.width;
    r.places = check_labels(check, slots, 1, false);
    for (int64_t i = 0; i < slots; i++) {
        int64_t at = check_draw(check, i + 1);

        r.places[i] = r.places[at];
        r.places[at] = (int32_t)i;
    }
    r.gates = check_filled(check, slots, FILL_NORMAL);
    r.x = check_filled(check, r.n_x, FILL_NORMAL);
    r.y = check_filled(check, r.n, FILL_NORMAL);
    (void)snprintf(r.shape, sizeof r.shape, "%lld rows of %lld, %lld each", (long long)r.rows, (long long)r.width,
                   (long long)r.k);
    return r;
}

/* The allowed error of each element: some units of the sum of the magnitudes of its terms. */
static double *tolerance(struct check *check, const struct rows *r, const float *acc, const float *gates)
{
    double *near = check_doubles(check, r->n);

    for (int64_t i = 0; i < r->n; i++) {
        near[i] = acc ? fabs((double)acc[i]) : 0.0;
        for (int64_t j = i / r->width * r->k; j < (i / r->width + 1) * r->k; j++)
            near[i] += fabs((gates ? (double)gates[j] : 1.0) * (double)r->x[r->places[j] * r->width + i % r->width]);
        near[i] *= 4.0 * (double)FLT_EPSILON;
    }
    return near;
}

static void check_mix(struct check *check)
{
    for (int c = 0; c < 4 * N_WIDTHS; c++) {
        struct rows r = make(check, c / 4);
        float *y = check_array(check, r.n), *want = check_array(check, r.n);
        const float *gates = c % 2 ? r.gates : NULL, *acc = c % 4 / 2 ? r.y : NULL;

        tt_mix_rows_ref(want, acc, r.x, r.places, gates, r.rows, r.k, r.width);
        check->table->mix_rows(y, acc, r.x, r.places, gates, r.rows, r.k, r.width);
        check_compare(check, "y", r.shape, y, want, r.n, tolerance(check, &r, acc, gates), 0.0);
        if (acc) {
            check->table->mix_rows(r.y, r.y, r.x, r.places, gates, r.rows, r.k, r.width);
            check_compare(check, "y in place", r.shape, r.y, y, r.n, NULL, 0.0);
        }
        check_reset(check, r.shape);
    }
}

static void check_mix_bwd(struct check *check)
{
    for (int c = 0; c < 4 * N_WIDTHS; c++) {
        struct rows r = make(check, c / 4);
        int64_t slots = r.rows * r.k;
        float *dx = check_array(check, r.n_x), *want = check_array(check, r.n_x);
        float *dgates = check_array(check, slots), *want_gates = check_array(check, slots);
        double *near = check_doubles(check, slots);

        tt_mix_rows_bwd_ref(want, want_gates, r.y, r.x, r.places, r.gates, r.rows, r.k, r.width);
        check->table->mix_rows_bwd(dx, dgates, r.y, r.x, r.places, r.gates, r.rows, r.k, r.width);
        for (int64_t i = 0; i < slots * r.width; i++)
            near[i / r.width] += 4.0 * (double)FLT_EPSILON *
                                 fabs((double)r.y[i / r.width / r.k * r.width + i % r.width] *
                                      (double)r.x[r.places[i / r.width] * r.width + i % r.width]);
        check_compare(check, "dx", r.shape, dx, want, r.n_x, NULL, 1.0);
        check_compare(check, "dgates", r.shape, dgates, want_gates, slots, near, 0.0);
        check->table->mix_rows_bwd(r.x, want_gates, r.y, r.x, r.places, r.gates, r.rows, r.k, r.width);
        check_compare(check, "dx in place", r.shape, r.x, dx, r.n_x, NULL, 0.0);
        check_compare(check, "dgates in place", r.shape, want_gates, dgates, slots, NULL, 0.0);
        check_reset(check, r.shape);
    }
}

/* --- bfloat16: the bits of the kernel in float, rounded once --- */

static tt_bf16 *halves(struct check *check, float *x, int64_t n)
{
    tt_bf16 *half = (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;

    for (int64_t i = 0; i < n && x; i++) {
        half[i] = tt_bf16_from_float(x[i]);
        x[i] = tt_bf16_to_float(half[i]);
    }
    return half;
}

static void compare_rounded(struct check *check, const char *what, const char *shape, const tt_bf16 *got, float *want,
                            int64_t n)
{
    float *wide = check_array(check, n);

    for (int64_t i = 0; i < n; i++) {
        wide[i] = tt_bf16_to_float(got[i]);
        want[i] = tt_bf16_to_float(tt_bf16_from_float(want[i]));
    }
    check_compare(check, what, shape, wide, want, n, NULL, 0.0);
}

static void check_mix_bf16(struct check *check)
{
    for (int c = 0; c < 4 * N_WIDTHS; c++) {
        struct rows r = make(check, c / 4);
        float *want = check_array(check, r.n);
        tt_bf16 *x = halves(check, r.x, r.n_x), *acc = halves(check, r.y, r.n), *y = halves(check, NULL, r.n);
        const float *gates = c % 2 ? r.gates : NULL;
        bool adds = c % 4 / 2;

        check->table->mix_rows(want, adds ? r.y : NULL, r.x, r.places, gates, r.rows, r.k, r.width);
        check->table->mix_rows_bf16(y, adds ? acc : NULL, x, r.places, gates, r.rows, r.k, r.width);
        compare_rounded(check, "y", r.shape, y, want, r.n);
        check_reset(check, r.shape);
    }
}

static void check_mix_bwd_bf16(struct check *check)
{
    for (int c = 0; c < 4 * N_WIDTHS; c++) {
        struct rows r = make(check, c / 4);
        int64_t slots = r.rows * r.k;
        float *want = check_array(check, r.n_x), *dgates = check_array(check, slots);
        float *want_gates = check_array(check, slots);
        tt_bf16 *x = halves(check, r.x, r.n_x), *dy = halves(check, r.y, r.n), *dx = halves(check, NULL, r.n_x);

        check->table->mix_rows_bwd(want, want_gates, r.y, r.x, r.places, r.gates, r.rows, r.k, r.width);
        check->table->mix_rows_bwd_bf16(dx, dgates, dy, x, r.places, r.gates, r.rows, r.k, r.width);
        compare_rounded(check, "dx", r.shape, dx, want, r.n_x);
        check_compare(check, "dgates", r.shape, dgates, want_gates, slots, NULL, 0.0);
        check_reset(check, r.shape);
    }
}

const struct check_case expert_cases[] = {
    {"mix_rows", check_mix},
    {"mix_rows_bwd", check_mix_bwd},
    {"mix_rows_bf16", check_mix_bf16},
    {"mix_rows_bwd_bf16", check_mix_bwd_bf16},
};
const int n_expert_cases = sizeof expert_cases / sizeof *expert_cases;
