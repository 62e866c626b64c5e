/* SPDX-License-Identifier: MIT
 *
 * The portable kernels of LayerNorm; style and sums as in generic.c.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"

static float row_sum(const float *x, int64_t width)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += x[i + l];
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += x[i + l];
    return tt_lanes_sum(lane);
}

/* The sum of (x - mean)^2, in a separate pass, because mean(x^2) - mean^2 cancels. */
static float row_squares(const float *x, float mean, int64_t width)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += (x[i + l] - mean) * (x[i + l] - mean);
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += (x[i + l] - mean) * (x[i + l] - mean);
    return tt_lanes_sum(lane);
}

void tt_layernorm_fwd_generic(float *y, float *mean, float *rstd, const float *x, const float *w, const float *b,
                              int64_t rows, int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float middle = row_sum(x, width) / (float)width;
        float scale = 1.0F / sqrtf(row_squares(x, middle, width) / (float)width + eps);

        mean[r] = middle;
        rstd[r] = scale;
        TT_INDEPENDENT
        for (int64_t i = 0; i < width; i++)
            y[i] = (x[i] - middle) * scale * w[i] + b[i];
    }
}

/* The sums over a row of dy w and of dy w (x - mean). */
static void row_dots(const float *dy, const float *x, const float *w, float mean, int64_t width, float *ret_plain,
                     float *ret_with_x)
{
    float plain[TT_LANES] = {0.0F}, with_x[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++) {
            plain[l] += dy[i + l] * w[i + l];
            with_x[l] += dy[i + l] * w[i + l] * (x[i + l] - mean);
        }
    }
    for (int l = 0; i + l < width; l++) {
        plain[l] += dy[i + l] * w[i + l];
        with_x[l] += dy[i + l] * w[i + l] * (x[i + l] - mean);
    }
    *ret_plain = tt_lanes_sum(plain);
    *ret_with_x = tt_lanes_sum(with_x);
}

/* Adds a row's share to dw and db. */
static void row_weights(float *dw, float *db, const float *dy, const float *x, float mean, float rstd, int64_t width)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < width; i++) {
        dw[i] += dy[i] * ((x[i] - mean) * rstd);
        db[i] += dy[i];
    }
}

void tt_layernorm_bwd_generic(const struct tt_layernorm_grads *of, int64_t rows, int64_t width)
{
    memset(of->dw, 0, (size_t)width * sizeof *of->dw);
    memset(of->db, 0, (size_t)width * sizeof *of->db);
    for (int64_t r = 0; r < rows; r++) {
        const float *dy = of->dy + r * width, *x = of->x + r * width, *w = of->w;
        const float *acc = of->acc ? of->acc + r * width : NULL;
        float *dx = of->dx + r * width, scale = of->rstd[r], mean = of->mean[r], plain, with_x;

        row_dots(dy, x, w, mean, width, &plain, &with_x);
        plain /= (float)width;
        with_x = with_x * scale / (float)width * scale;
        row_weights(of->dw, of->db, dy, x, mean, scale, width);
        if (acc) {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++)
                dx[i] = acc[i] + scale * (dy[i] * w[i] - plain - (x[i] - mean) * with_x);
        } else {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++)
                dx[i] = scale * (dy[i] * w[i] - plain - (x[i] - mean) * with_x);
        }
    }
}
