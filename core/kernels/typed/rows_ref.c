/* SPDX-License-Identifier: MIT
 *
 * The references of the kernels over rows; sums in double.
 */
#include <math.h>

#include "core/kernels/typed/element.h"

void TT_TYPED(tt_gemv, ref)(float *y, const element *w, const element *x, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++, w += width) {
        double sum = 0.0;

        for (int64_t i = 0; i < width; i++)
            sum += exact_of(w[i]) * exact_of(x[i]);
        y[r] = (float)sum;
    }
}

void TT_TYPED(tt_rmsnorm_fwd, ref)(element *y, float *rstd, const element *x, const element *w, int64_t rows,
                                   int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        double sum = 0.0, scale;

        for (int64_t i = 0; i < width; i++)
            sum += exact_of(x[i]) * exact_of(x[i]);
        scale = 1.0 / sqrt(sum / (double)width + (double)eps);
        rstd[r] = (float)scale;
        for (int64_t i = 0; i < width; i++)
            y[i] = element_of_exact(exact_of(x[i]) * scale * exact_of(w[i]));
    }
}

void TT_TYPED(tt_rmsnorm_bwd, ref)(element *dx, float *dw, const element *acc, const element *dy, const element *x,
                                   const element *w, const float *rstd, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        double sum = 0.0;

        for (int64_t r = 0; r < rows; r++)
            sum += exact_of(dy[r * width + i]) * exact_of(x[r * width + i]) * (double)rstd[r];
        dw[i] = (float)sum;
    }
    for (int64_t r = 0; r < rows; r++) {
        double scale = (double)rstd[r], dot = 0.0;

        for (int64_t i = r * width; i < (r + 1) * width; i++)
            dot += exact_of(dy[i]) * exact_of(w[i - r * width]) * exact_of(x[i]);
        dot *= scale * scale / (double)width;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            dx[i] = element_of_exact((acc ? exact_of(acc[i]) : 0.0) +
                                     scale * (exact_of(dy[i]) * exact_of(w[i - r * width]) - exact_of(x[i]) * dot));
        }
    }
}

void TT_TYPED(tt_sum_rows, ref)(float *y, const float *acc, const element *x, int64_t rows, int64_t width,
                                int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0.0;

        for (int64_t r = 0; r < rows; r++)
            sum += exact_of(x[r * width + c]);
        y[c] = (float)(sum + (acc ? (double)acc[c] : 0.0));
    }
}

void TT_TYPED(tt_scatter_add, ref)(float *dw, const element *dx, const int32_t *tokens, int64_t n, int64_t width,
                                   int64_t columns)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < columns; c++)
            dw[tokens[i] * width + c] += value_of(dx[i * width + c]);
    }
}

void TT_TYPED(tt_layernorm_fwd, ref)(element *y, float *mean, float *rstd, const element *x, const element *w,
                                     const element *b, int64_t rows, int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        double sum = 0.0, squares = 0.0, middle, scale;

        for (int64_t i = 0; i < width; i++)
            sum += exact_of(x[i]);
        middle = sum / (double)width;
        for (int64_t i = 0; i < width; i++)
            squares += (exact_of(x[i]) - middle) * (exact_of(x[i]) - middle);
        scale = 1.0 / sqrt(squares / (double)width + (double)eps);
        mean[r] = (float)middle;
        rstd[r] = (float)scale;
        for (int64_t i = 0; i < width; i++)
            y[i] = element_of_exact((exact_of(x[i]) - middle) * scale * exact_of(w[i]) + exact_of(b[i]));
    }
}

/* One row of dx; dot_1 and dot_x are the means of the gradient of the normalised row, and of its product with that. */
static void row_ref(element *dx, const element *acc, const element *dy, const element *x, const element *w, double mean,
                    double rstd, int64_t width)
{
    double dot_1 = 0.0, dot_x = 0.0;

    for (int64_t i = 0; i < width; i++) {
        dot_1 += exact_of(dy[i]) * exact_of(w[i]) / (double)width;
        dot_x += exact_of(dy[i]) * exact_of(w[i]) * (exact_of(x[i]) - mean) * rstd / (double)width;
    }
    for (int64_t i = 0; i < width; i++)
        dx[i] = element_of_exact((acc ? exact_of(acc[i]) : 0.0) + rstd * (exact_of(dy[i]) * exact_of(w[i]) - dot_1 -
                                                                          (exact_of(x[i]) - mean) * rstd * dot_x));
}

void TT_TYPED(tt_layernorm_bwd, ref)(const struct tt_layernorm_grads *of, int64_t rows, int64_t width)
{
    const element *dy = of->dy, *x = of->x, *acc = of->acc;

    for (int64_t i = 0; i < width; i++) {
        double scaled = 0.0, plain = 0.0;

        for (int64_t r = 0; r < rows; r++) {
            double grad = exact_of(dy[r * width + i]);

            scaled += grad * (exact_of(x[r * width + i]) - (double)of->mean[r]) * (double)of->rstd[r];
            plain += grad;
        }
        of->dw[i] = (float)scaled;
        of->db[i] = (float)plain;
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * width;

        row_ref((element *)of->dx + at, acc ? acc + at : NULL, dy + at, x + at, of->w, (double)of->mean[r],
                (double)of->rstd[r], width);
    }
}
