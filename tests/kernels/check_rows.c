/* SPDX-License-Identifier: MIT
 *
 * Kernels that reduce rows or columns: rmsnorm, cross-entropy, sum_rows, scatter_add.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "tests/kernels/kernelcheck.h"

static const int64_t widths[] = {1, 2, 5, 15, 16, 17, 33, 64, 100, 127, 256, 1021, 4096, 5003};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

static const double eps32 = (double)FLT_EPSILON;

static int64_t few_rows(struct check *check)
{
    return 1 + check_draw(check, 9);
}

static void check_rmsnorm(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t width = widths[k / N_FILLS], rows = few_rows(check), n = rows * width;
        float *x = check_filled(check, n, k % N_FILLS), *w = check_filled(check, width, FILL_NORMAL);
        float *y = check_array(check, n), *rstd = check_array(check, rows);
        float *want_y = check_array(check, n), *want_rstd = check_array(check, rows), offset = k % 2 ? 1.0F : 0.0F;
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)width, k % N_FILLS);
        tt_rmsnorm_fwd_ref(want_y, want_rstd, x, w, offset, rows, width, 1e-5F);
        check->table->rmsnorm_fwd(y, rstd, x, w, offset, rows, width, 1e-5F);
        for (int64_t i = 0; i < n; i++) { /* w + offset may cancel */
            double of_sum = (double)offset * fabs((double)x[i] * (double)want_rstd[i / width]);

            near[i] = (k % N_FILLS == FILL_TINY ? 400.0 : 5.0) * check_ulp(fabs((double)want_y[i])) + eps32 * of_sum;
        }
        check_compare(check, "y", shape, y, want_y, n, near, 0.0);
        check_compare(check, "rstd", shape, rstd, want_rstd, rows, NULL, 4.0);
        check->table->rmsnorm_fwd(x, rstd, x, w, offset, rows, width, 1e-5F);
        check_compare(check, "y in place", shape, x, y, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_rmsnorm_bwd(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t width = widths[k / 2], rows = few_rows(check), n = rows * width;
        float *x = check_filled(check, n, FILL_NORMAL), *w = check_filled(check, width, FILL_NORMAL);
        float *dy = check_filled(check, n, FILL_NORMAL), *acc = k % 2 ? check_filled(check, n, FILL_NORMAL) : NULL;
        float *y = check_array(check, n), *rstd = check_array(check, rows);
        float *dx = check_array(check, n), *dw = check_array(check, width);
        float *want_dx = check_array(check, n), *want_dw = check_array(check, width);
        float offset = k % 4 / 2 ? 1.0F : 0.0F;
        double *near_dx = check_doubles(check, n), *near_dw = check_doubles(check, width);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld acc %d", (long long)rows, (long long)width, k % 2);
        tt_rmsnorm_fwd_ref(y, rstd, x, w, offset, rows, width, 1e-5F);
        tt_rmsnorm_bwd_ref(want_dx, want_dw, acc, dy, x, w, offset, rstd, rows, width);
        check->table->rmsnorm_bwd(dx, dw, acc, dy, x, w, offset, rstd, rows, width);
        for (int64_t r = 0; r < rows; r++) {
            double s = (double)rstd[r], size = 0.0;

            for (int64_t c = 0; c < width; c++)
                size += fabs((double)dy[r * width + c] * ((double)w[c] + (double)offset) * (double)x[r * width + c]);
            for (int64_t c = 0; c < width; c++) {
                int64_t i = r * width + c;

                near_dx[i] = 4.0 * eps32 *
                                 (s * fabs((double)dy[i]) * fmax(fabs((double)w[c] + (double)offset), (double)offset) +
                                  s * s * s / (double)width * fabs((double)x[i]) * size) +
                             (acc ? eps32 * (fabs((double)acc[i]) + fabs((double)want_dx[i])) : 0.0);
                near_dw[c] += 4.0 * eps32 * fabs((double)dy[i] * (double)x[i] * s);
            }
        }
        check_compare(check, "dx", shape, dx, want_dx, n, near_dx, 0.0);
        check_compare(check, "dw", shape, dw, want_dw, width, near_dw, 0.0);
        if (acc) {
            check->table->rmsnorm_bwd(acc, dw, acc, dy, x, w, offset, rstd, rows, width);
            check_compare(check, "dx in place", shape, acc, dx, n, NULL, 0.0);
        }
        check_reset(check, shape);
    }
}

static void check_dora_fwd(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t width = widths[k / 2], rows = few_rows(check), n = rows * width;
        float *x = check_filled(check, n, FILL_NORMAL), *m = check_filled(check, width, FILL_NORMAL);
        float *squares = check_filled(check, width, FILL_NORMAL), *y = check_array(check, n);
        float *want = check_array(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)width);
        for (int64_t c = 0; c < width; c++)
            squares[c] = c == 3 ? 0.0F : squares[c] * squares[c] + 0.01F;
        if (width > 3)
            m[3] = 0.0F;
        tt_dora_fwd_ref(want, x, m, squares, rows, width);
        check->table->dora_fwd(y, x, m, squares, rows, width);
        check_compare(check, "y", shape, y, want, n, NULL, 3.0);
        check->table->dora_fwd(x, x, m, squares, rows, width);
        check_compare(check, "y in place", shape, x, y, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_dora_bwd(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t width = widths[k / 2], rows = few_rows(check), n = rows * width;
        float *x = check_filled(check, n, FILL_NORMAL), *m = check_filled(check, width, FILL_NORMAL);
        float *dy = check_filled(check, n, FILL_NORMAL), *acc = k % 2 ? check_filled(check, n, FILL_NORMAL) : NULL;
        float *squares = check_filled(check, width, FILL_NORMAL);
        float *dx = check_array(check, n), *dm = check_array(check, width);
        float *want_dx = check_array(check, n), *want_dm = check_array(check, width);
        double *near_dx = check_doubles(check, n), *near_dm = check_doubles(check, width);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld acc %d", (long long)rows, (long long)width, k % 2);
        for (int64_t c = 0; c < width; c++)
            squares[c] = squares[c] * squares[c] + 0.01F;
        tt_dora_bwd_ref(want_dx, want_dm, acc, dy, x, m, squares, rows, width);
        check->table->dora_bwd(dx, dm, acc, dy, x, m, squares, rows, width);
        for (int64_t i = 0; i < n; i++) {
            double root = sqrt((double)squares[i % width]);

            near_dx[i] = 4.0 * eps32 * fabs((double)dy[i] * (double)m[i % width] / root) +
                         (acc ? eps32 * (fabs((double)acc[i]) + fabs((double)want_dx[i])) : 0.0);
            near_dm[i % width] += (double)(rows + 3) * eps32 * fabs((double)dy[i] * (double)x[i]) / root;
        }
        check_compare(check, "dx", shape, dx, want_dx, n, near_dx, 0.0);
        check_compare(check, "dm", shape, dm, want_dm, width, near_dm, 0.0);
        if (acc) {
            check->table->dora_bwd(acc, dm, acc, dy, x, m, squares, rows, width);
            check_compare(check, "dx in place", shape, acc, dx, n, NULL, 0.0);
        }
        check_reset(check, shape);
    }
}

/* Ranks of 0 and more, and rows of A that are longer than the part that is read. */
static void check_row_squares(struct check *check)
{
    for (int k = 0; k < 4 * N_WIDTHS; k++) {
        int64_t width = widths[k / 4], rank = k % 4 * 3, stride = width + k % 3;
        float *w = check_filled(check, width, FILL_NORMAL), *b = check_filled(check, rank + 1, FILL_NORMAL);
        float *a = check_filled(check, (rank + 1) * stride, FILL_NORMAL), got, want;
        double near = 0.0;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld, rank %lld", (long long)width, (long long)rank);
        tt_row_squares_ref(&want, w, a, b, rank, stride, width);
        check->table->row_squares(&got, w, a, b, rank, stride, width);
        for (int64_t i = 0; i < width; i++) {
            double size = fabs((double)w[i]);

            for (int64_t r = 0; r < rank; r++)
                size += fabs((double)b[r] * (double)a[r * stride + i]);
            near += (double)(2 * rank + 8 + width / 16) * eps32 * size * size;
        }
        check_compare(check, "sum", shape, &got, &want, 1, &near, 0.0);
        check_reset(check, shape);
    }
}

#define Z_LOSS 0x1p-6F

/* l is off by some eps in itself and in the sum's logarithm, and z = Z_LOSS l^2. */
static void check_z_loss(struct check *check, const char *shape, const float *z, const float *want, int64_t rows)
{
    double *near = check_doubles(check, rows);

    for (int64_t r = 0; r < rows; r++) {
        double l = sqrt((double)want[r] / (double)Z_LOSS), off = 4.0 * eps32 * (1.0 + l);

        near[r] = (double)Z_LOSS * off * (2.0 * l + off) + check_ulp((double)want[r]);
    }
    check_compare(check, "z", shape, z, want, rows, near, 0.0);
}

static void check_cross_entropy(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t vocab = widths[k / N_FILLS], rows = few_rows(check), n = rows * vocab;
        float *logits = check_filled(check, n, k % N_FILLS), *loss = check_array(check, rows);
        float *want = check_array(check, rows), *z = check_array(check, rows), *want_z = check_array(check, rows);
        int32_t *labels = check_labels(check, rows, vocab, true);
        double *near = check_doubles(check, rows);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)vocab, k % N_FILLS);
        for (int64_t i = 0; k % 2 && i < n; i++)
            logits[i] *= 12.0F;
        tt_cross_entropy_ref(want, want_z, logits, labels, rows, vocab, Z_LOSS);
        check->table->cross_entropy(loss, z, logits, labels, rows, vocab, Z_LOSS);
        for (int64_t r = 0; r < rows; r++)
            near[r] = 4.0 * eps32 + 2.0 * check_ulp(fabs((double)want[r]));
        check_compare(check, "loss", shape, loss, want, rows, near, 0.0);
        check_z_loss(check, shape, z, want_z, rows);
        check->table->cross_entropy(want, NULL, logits, labels, rows, vocab, 0.0F);
        check_compare(check, "loss without z", shape, want, loss, rows, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_cross_entropy_grad(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t vocab = widths[k / N_FILLS], rows = few_rows(check), n = rows * vocab;
        float *logits = check_filled(check, n, k % N_FILLS), *want = check_copy(check, logits, n);
        float *loss = check_array(check, rows), *want_loss = check_array(check, rows);
        float *z = check_array(check, rows), *want_z = check_array(check, rows);
        int32_t *labels = check_labels(check, rows, vocab, true);
        double *near = check_doubles(check, n), *near_loss = check_doubles(check, rows);
        bool with_z = k / N_FILLS % 2;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)vocab, k % N_FILLS);
        tt_cross_entropy_grad_ref(want_loss, with_z ? want_z : NULL, want, labels, rows, vocab, 0.125F, Z_LOSS);
        check->table->cross_entropy_grad(loss, with_z ? z : NULL, logits, labels, rows, vocab, 0.125F, Z_LOSS);
        for (int64_t i = 0; i < n; i++)
            near[i] = 8.0 * eps32 * (fabs((double)want[i]) + (i % vocab == labels[i / vocab] ? 0.125 : 0.0)) + 0x1p-140;
        for (int64_t r = 0; r < rows; r++)
            near_loss[r] = 4.0 * eps32 + 2.0 * check_ulp(fabs((double)want_loss[r]));
        check_compare(check, "dlogits", shape, logits, want, n, near, 0.0);
        check_compare(check, "loss", shape, loss, want_loss, rows, near_loss, 0.0);
        if (with_z)
            check_z_loss(check, shape, z, want_z, rows);
        check_reset(check, shape);
    }
}

/* A part of a row of logits; some logits may be so low that their exponential is 0. */
static float *part_of_row(struct check *check, int64_t n, int k)
{
    float *x = check_filled(check, n, k % N_FILLS);

    for (int64_t i = 0; k % 3 == 1 && i < n; i++)
        x[i] *= 12.0F;
    for (int64_t i = 0; k % 4 == 3 && i < n; i += 1 + (k % 8 == 3))
        x[i] = -INFINITY; /* every one, or every other one */
    return x;
}

static void check_softmax_sum(struct check *check)
{
    for (int k = 0; k < 4 * N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS % N_WIDTHS];
        float *x = part_of_row(check, n, k), *got = check_array(check, 2), *want = check_array(check, 2);
        double near[2] = {0.0};
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld case %d", (long long)n, k);
        tt_softmax_sum_ref(want, want + 1, x, n);
        check->table->softmax_sum(got, got + 1, x, n);
        near[1] = 8.0 * eps32 * fabs((double)want[1]);
        check_compare(check, "largest", shape, got, want, 1, near, 0.0);
        check_compare(check, "sum", shape, got + 1, want + 1, 1, near + 1, 0.0);
        check_reset(check, shape);
    }
}

static void check_softmax_grad(struct check *check)
{
    for (int k = 0; k < 4 * N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS % N_WIDTHS];
        float *x = part_of_row(check, n, k), *y = check_array(check, n), *want = check_array(check, n), largest, sum;
        double *near = check_doubles(check, n), part;
        float cap = k % 3 ? 0.0F : 2.0F;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld case %d", (long long)n, k);
        tt_softmax_sum_ref(&largest, &sum, x, n);
        tt_softmax_grad_ref(want, x, n, largest, 0.3F, cap);
        check->table->softmax_grad(y, x, n, largest, 0.3F, cap);
        for (int64_t i = 0; i < n; i++) { /* 1 - (x / cap)^2 may cancel */
            part = cap > 0.0F ? (double)x[i] / (double)cap : 0.0;
            near[i] = (8.0 + fmin(fabs((double)x[i] - (double)largest), 100.0)) * eps32 * fabs((double)want[i]) +
                      4.0 * eps32 * 0.3 * exp((double)x[i] - (double)largest) * part * part + 0x1p-126;
        }
        check_compare(check, "y", shape, y, want, n, near, 0.0);
        check->table->softmax_grad(x, x, n, largest, 0.3F, cap);
        check_compare(check, "y in place", shape, x, y, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

/* The tanh of every cap, over all sizes. */
static void check_soft_cap(struct check *check)
{
    for (int k = 0; k < 4 * N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS % N_WIDTHS];
        float *x = check_filled(check, n, k % N_FILLS), *y = check_array(check, n), *want = check_array(check, n);
        float cap = k % 2 ? 1.0F : 30.0F;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld case %d", (long long)n, k);
        for (int64_t i = 0; i < n; i++)
            x[i] *= k / N_FILLS % 2 ? cap * 3.0F : cap * 0.1F;
        tt_soft_cap_ref(want, x, n, cap);
        check->table->soft_cap(y, x, n, cap);
        check_compare(check, "y", shape, y, want, n, NULL, 6.0);
        check->table->soft_cap(x, x, n, cap);
        check_compare(check, "y in place", shape, x, y, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_sum_rows(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t columns = widths[k / 2], width = columns + check_draw(check, 5), rows = few_rows(check);
        float *x = check_filled(check, rows * width, FILL_NORMAL), *y = check_array(check, columns);
        float *acc = k % 2 ? check_filled(check, columns, FILL_NORMAL) : NULL, *want = check_array(check, columns);
        double *near = check_doubles(check, columns);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld acc %d", (long long)rows, (long long)columns, k % 2);
        tt_sum_rows_ref(want, acc, x, rows, width, columns);
        check->table->sum_rows(y, acc, x, rows, width, columns);
        for (int64_t c = 0; c < columns; c++) {
            near[c] = acc ? 2.0 * eps32 * fabs((double)acc[c]) : 0.0;
            for (int64_t r = 0; r < rows; r++)
                near[c] += 4.0 * eps32 * fabs((double)x[r * width + c]);
        }
        check_compare(check, "y", shape, y, want, columns, near, 0.0);
        if (acc) {
            check->table->sum_rows(acc, acc, x, rows, width, columns);
            check_compare(check, "y in place", shape, acc, y, columns, NULL, 0.0);
        }
        check_reset(check, shape);
    }
}

static void check_scatter_add(struct check *check)
{
    for (int k = 0; k < 3 * N_WIDTHS; k++) {
        int64_t columns = widths[k / 3], width = columns + check_draw(check, 5), n = 1 + check_draw(check, 40);
        int64_t rows = 1 + k % 3 * 5, elements = (rows - 1) * width + columns;
        float *dw = check_filled(check, elements, FILL_NORMAL), *want = check_copy(check, dw, elements);
        float *dx = check_filled(check, (n - 1) * width + columns, FILL_NORMAL);
        int32_t *tokens = check_labels(check, n, rows, false);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld tokens, %lld columns", (long long)n, (long long)columns);
        tt_scatter_add_ref(want, dx, tokens, n, width, columns);
        check->table->scatter_add(dw, dx, tokens, n, width, columns);
        check_compare(check, "dw", shape, dw, want, elements, NULL, 0.0); /* the order of additions is promised */
        check_reset(check, shape);
    }
}

const struct check_case row_cases[] = {
    {"rmsnorm_fwd", check_rmsnorm},         {"rmsnorm_bwd", check_rmsnorm_bwd},
    {"cross_entropy", check_cross_entropy}, {"cross_entropy_grad", check_cross_entropy_grad},
    {"softmax_sum", check_softmax_sum},     {"softmax_grad", check_softmax_grad},
    {"soft_cap", check_soft_cap},           {"sum_rows", check_sum_rows},
    {"scatter_add", check_scatter_add},     {"dora_fwd", check_dora_fwd},
    {"dora_bwd", check_dora_bwd},           {"row_squares", check_row_squares},
};
const int n_row_cases = sizeof row_cases / sizeof *row_cases;
