/* SPDX-License-Identifier: MIT
 *
 * The portable kernels: plain loops that gcc and clang turn into vector code for any instruction set. No libm call
 * inside a loop, no branch on data. Sums run in lanes (math.h), so their order does not depend on the instruction set.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"

void tt_add_generic(float *y, const float *a, const float *b, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

/* For long rows: each block's lanes are added into a double, so that the error does not grow with the vocabulary. */
enum { SUM_BLOCK = 1024 };

/* The sum of exp(x - shift) over at most SUM_BLOCK elements. */
static float block_sum_exp(const float *x, int64_t n, float shift)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += tt_expf(x[i + l] - shift);
    }
    for (int l = 0; i + l < n; l++)
        lane[l] += tt_expf(x[i + l] - shift);
    return tt_lanes_sum(lane);
}

void tt_cross_entropy_generic(float *loss, const float *logits, const int32_t *labels, int64_t rows, int64_t vocab)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        float largest = tt_row_max(logits, vocab);
        double sum = 0.0;

        for (int64_t v = 0; v < vocab; v += SUM_BLOCK)
            sum += (double)block_sum_exp(logits + v, vocab - v < SUM_BLOCK ? vocab - v : SUM_BLOCK, largest);
        loss[r] =
            labels[r] == TT_LABEL_IGNORED ? 0.0F : (float)(log(sum) + ((double)largest - (double)logits[labels[r]]));
    }
}

void tt_cross_entropy_grad_generic(float *loss, float *logits, const int32_t *labels, int64_t rows, int64_t vocab,
                                   float scale)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        float largest, target, factor;
        double sum = 0.0;

        if (labels[r] == TT_LABEL_IGNORED) {
            memset(logits, 0, (size_t)vocab * sizeof *logits);
            loss[r] = 0.0F;
            continue;
        }
        largest = tt_row_max(logits, vocab);
        target = logits[labels[r]];
        for (int64_t v = 0; v < vocab; v += SUM_BLOCK)
            sum += (double)tt_row_exp(logits + v, vocab - v < SUM_BLOCK ? vocab - v : SUM_BLOCK, 1.0F, largest);
        factor = (float)((double)scale / sum);
        for (int64_t v = 0; v < vocab; v++)
            logits[v] *= factor;
        logits[labels[r]] -= scale;
        loss[r] = (float)(log(sum) + ((double)largest - (double)target));
    }
}

void tt_rmsnorm_fwd_generic(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t width,
                            float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float lane[TT_LANES] = {0.0F}, scale;
        int64_t i = 0;

        for (; i + TT_LANES <= width; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += x[i + l] * x[i + l];
        }
        for (int l = 0; i + l < width; l++)
            lane[l] += x[i + l] * x[i + l];
        scale = 1.0F / sqrtf(tt_lanes_sum(lane) / (float)width + eps);
        rstd[r] = scale;
        TT_INDEPENDENT
        for (i = 0; i < width; i++)
            y[i] = x[i] * scale * w[i];
    }
}

/* One row's dot(dy, w x). */
static float row_dot(const float *dy, const float *x, const float *w, int64_t width)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += dy[i + l] * w[i + l] * x[i + l];
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += dy[i + l] * w[i + l] * x[i + l];
    return tt_lanes_sum(lane);
}

void tt_rmsnorm_bwd_generic(float *dx, float *dw, const float *acc, const float *dy, const float *x, const float *w,
                            const float *rstd, int64_t rows, int64_t width)
{
    memset(dw, 0, (size_t)width * sizeof *dw);
    for (int64_t r = 0; r < rows; r++, dy += width, x += width, dx += width) {
        float scale = rstd[r], mean = row_dot(dy, x, w, width) * scale / (float)width * scale;

        if (acc) {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                dw[i] += dy[i] * (x[i] * scale);
                dx[i] = acc[i] + scale * (dy[i] * w[i] - x[i] * mean);
            }
            acc += width;
        } else {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                dw[i] += dy[i] * (x[i] * scale);
                dx[i] = scale * (dy[i] * w[i] - x[i] * mean);
            }
        }
    }
}

/* Rotates one head. There are two loops, because pairs are either interleaved or half a head apart. */
static void rope_head(float *y, const float *x, const float *angle, int64_t half, float sign, bool rotate_half)
{
    if (rotate_half) {
        TT_INDEPENDENT
        for (int64_t i = 0; i < half; i++) {
            float c = angle[2 * i], s = sign * angle[2 * i + 1], a = x[i], b = x[i + half];

            y[i] = a * c - b * s;
            y[i + half] = a * s + b * c;
        }
    } else {
        TT_INDEPENDENT
        for (int64_t i = 0; i < half; i++) {
            float c = angle[2 * i], s = sign * angle[2 * i + 1], a = x[2 * i], b = x[2 * i + 1];

            y[2 * i] = a * c - b * s;
            y[2 * i + 1] = a * s + b * c;
        }
    }
}

void tt_rope_generic(float *y, const float *x, const float *table, const struct tt_rope_shape *shape, int64_t first_row,
                     int64_t rows)
{
    float sign = shape->inverse ? -1.0F : 1.0F;

    for (int64_t r = first_row; r < first_row + rows; r++) {
        const float *angle = table + r % shape->seq_len * shape->head_dim;

        for (int64_t head = 0; head < shape->heads; head++, x += shape->head_dim, y += shape->head_dim)
            rope_head(y, x, angle, shape->head_dim / 2, sign, shape->rotate_half);
    }
}

void tt_scatter_add_generic(float *dw, const float *dx, const int32_t *tokens, int64_t n, int64_t width,
                            int64_t columns)
{
    for (int64_t i = 0; i < n; i++) {
        float *to = dw + tokens[i] * width;
        const float *from = dx + i * width;

        for (int64_t c = 0; c < columns; c++)
            to[c] += from[c];
    }
}

void tt_sum_rows_generic(float *y, const float *acc, const float *x, int64_t rows, int64_t width, int64_t columns)
{
    enum { AT_ONCE = 64 };

    for (int64_t first = 0; first < columns; first += AT_ONCE) {
        int64_t n = columns - first < AT_ONCE ? columns - first : AT_ONCE;
        float sum[AT_ONCE] = {0.0F};

        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < n; c++)
                sum[c] += x[r * width + first + c];
        }
        for (int64_t c = 0; c < n; c++)
            y[first + c] = acc ? acc[first + c] + sum[c] : sum[c];
    }
}

void tt_swiglu_fwd_generic(float *h, const float *g, const float *u, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        h[i] = g[i] / (1.0F + tt_expf(-g[i])) * u[i];
}

void tt_swiglu_bwd_generic(float *dg, float *du, const float *dh, const float *g, const float *u, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float grad = dh[i], gate = g[i], up = u[i];
        float sigmoid = 1.0F / (1.0F + tt_expf(-gate));

        dg[i] = grad * up * sigmoid * (1.0F + gate * (1.0F - sigmoid));
        du[i] = grad * gate * sigmoid;
    }
}
