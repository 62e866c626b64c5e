/* SPDX-License-Identifier: MIT
 *
 * The portable kernels of LayerNorm; sums as in rows.c.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"

static float row_sum(const element *x, int64_t width)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(x[i + l]);
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += value_of(x[i + l]);
    return tt_lanes_sum(lane);
}

/* The sum of (x - mean)^2, in a separate pass, because mean(x^2) - mean^2 cancels. */
static float row_squares(const element *x, float mean, int64_t width)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += (value_of(x[i + l]) - mean) * (value_of(x[i + l]) - mean);
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += (value_of(x[i + l]) - mean) * (value_of(x[i + l]) - mean);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_layernorm_fwd, generic)(element *y, float *mean, float *rstd, const element *x, const element *w,
                                         const element *b, int64_t rows, int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float middle = row_sum(x, width) / (float)width;
        float scale = 1.0F / sqrtf(row_squares(x, middle, width) / (float)width + eps);

        mean[r] = middle;
        rstd[r] = scale;
        TT_INDEPENDENT
        for (int64_t i = 0; i < width; i++)
            y[i] = element_of((value_of(x[i]) - middle) * scale * value_of(w[i]) + value_of(b[i]));
    }
}

/* The sums over a row of dy w and of dy w (x - mean). */
static void row_dots(const element *dy, const element *x, const element *w, float mean, int64_t width, float *ret_plain,
                     float *ret_with_x)
{
    float plain[TT_LANES] = {0.0F}, with_x[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++) {
            plain[l] += value_of(dy[i + l]) * value_of(w[i + l]);
            with_x[l] += value_of(dy[i + l]) * value_of(w[i + l]) * (value_of(x[i + l]) - mean);
        }
    }
    for (int l = 0; i + l < width; l++) {
        plain[l] += value_of(dy[i + l]) * value_of(w[i + l]);
        with_x[l] += value_of(dy[i + l]) * value_of(w[i + l]) * (value_of(x[i + l]) - mean);
    }
    *ret_plain = tt_lanes_sum(plain);
    *ret_with_x = tt_lanes_sum(with_x);
}

/* Adds a row's share to dw and db. */
static void row_weights(float *dw, float *db, const element *dy, const element *x, float mean, float rstd,
                        int64_t width)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < width; i++) {
        dw[i] += value_of(dy[i]) * ((value_of(x[i]) - mean) * rstd);
        db[i] += value_of(dy[i]);
    }
}

void TT_TYPED(tt_layernorm_bwd, generic)(const struct tt_layernorm_grads *of, int64_t rows, int64_t width)
{
    memset(of->dw, 0, (size_t)width * sizeof *of->dw);
    memset(of->db, 0, (size_t)width * sizeof *of->db);
    for (int64_t r = 0; r < rows; r++) {
        const element *dy = (const element *)of->dy + r * width, *x = (const element *)of->x + r * width, *w = of->w;
        const element *acc = of->acc ? (const element *)of->acc + r * width : NULL;
        element *dx = (element *)of->dx + r * width;
        float scale = of->rstd[r], mean = of->mean[r], plain, with_x;

        row_dots(dy, x, w, mean, width, &plain, &with_x);
        plain /= (float)width;
        with_x = with_x * scale / (float)width * scale;
        row_weights(of->dw, of->db, dy, x, mean, scale, width);
        if (acc) {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++)
                dx[i] = element_of(value_of(acc[i]) + scale * (value_of(dy[i]) * value_of(w[i]) - plain -
                                                               (value_of(x[i]) - mean) * with_x));
        } else {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++)
                dx[i] =
                    element_of(scale * (value_of(dy[i]) * value_of(w[i]) - plain - (value_of(x[i]) - mean) * with_x));
        }
    }
}
