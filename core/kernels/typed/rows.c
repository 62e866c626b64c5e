/* SPDX-License-Identifier: MIT
 *
 * The portable kernels over rows: RMSNorm, sums of rows, scattered rows, a matrix times a vector. Sums run in lanes
 * (vector_math.h), so their order does not depend on the instruction set.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"

void TT_TYPED(tt_gemv, generic)(float *y, const element *w, const element *x, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++, w += width) {
        float lane[TT_LANES] = {0.0F};
        int64_t i = 0;

        for (; i + TT_LANES <= width; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += value_of(w[i + l]) * value_of(x[i + l]);
        }
        for (int l = 0; i + l < width; l++)
            lane[l] += value_of(w[i + l]) * value_of(x[i + l]);
        y[r] = tt_lanes_sum(lane);
    }
}

void TT_TYPED(tt_rmsnorm_fwd, generic)(element *y, float *rstd, const element *x, const element *w, int64_t rows,
                                       int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float lane[TT_LANES] = {0.0F}, scale;
        int64_t i = 0;

        for (; i + TT_LANES <= width; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += value_of(x[i + l]) * value_of(x[i + l]);
        }
        for (int l = 0; i + l < width; l++)
            lane[l] += value_of(x[i + l]) * value_of(x[i + l]);
        scale = 1.0F / sqrtf(tt_lanes_sum(lane) / (float)width + eps);
        rstd[r] = scale;
        TT_INDEPENDENT
        for (i = 0; i < width; i++)
            y[i] = element_of(value_of(x[i]) * scale * value_of(w[i]));
    }
}

/* One row's dot(dy, w x). */
static float row_dot(const element *dy, const element *x, const element *w, int64_t width)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(dy[i + l]) * value_of(w[i + l]) * value_of(x[i + l]);
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += value_of(dy[i + l]) * value_of(w[i + l]) * value_of(x[i + l]);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_rmsnorm_bwd, generic)(element *dx, float *dw, const element *acc, const element *dy, const element *x,
                                       const element *w, const float *rstd, int64_t rows, int64_t width)
{
    memset(dw, 0, (size_t)width * sizeof *dw);
    for (int64_t r = 0; r < rows; r++, dy += width, x += width, dx += width) {
        float scale = rstd[r], mean = row_dot(dy, x, w, width) * scale / (float)width * scale;

        if (acc) {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                dw[i] += value_of(dy[i]) * (value_of(x[i]) * scale);
                dx[i] =
                    element_of(value_of(acc[i]) + scale * (value_of(dy[i]) * value_of(w[i]) - value_of(x[i]) * mean));
            }
            acc += width;
        } else {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                dw[i] += value_of(dy[i]) * (value_of(x[i]) * scale);
                dx[i] = element_of(scale * (value_of(dy[i]) * value_of(w[i]) - value_of(x[i]) * mean));
            }
        }
    }
}

void TT_TYPED(tt_scatter_add, generic)(float *dw, const element *dx, const int32_t *tokens, int64_t n, int64_t width,
                                       int64_t columns)
{
    for (int64_t i = 0; i < n; i++) {
        float *to = dw + tokens[i] * width;
        const element *from = dx + i * width;

        for (int64_t c = 0; c < columns; c++)
            to[c] += value_of(from[c]);
    }
}

void TT_TYPED(tt_sum_rows, generic)(float *y, const float *acc, const element *x, int64_t rows, int64_t width,
                                    int64_t columns)
{
    enum { AT_ONCE = 64 };

    for (int64_t first = 0; first < columns; first += AT_ONCE) {
        int64_t n = columns - first < AT_ONCE ? columns - first : AT_ONCE;
        float sum[AT_ONCE] = {0.0F};

        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < n; c++)
                sum[c] += value_of(x[r * width + first + c]);
        }
        for (int64_t c = 0; c < n; c++)
            y[first + c] = acc ? acc[first + c] + sum[c] : sum[c];
    }
}
