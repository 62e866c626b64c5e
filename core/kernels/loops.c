/* SPDX-License-Identifier: MIT
 *
 * The loops that are not compiled for each element type: cross-entropy, conversions, exp. Style and sums are
 * those of typed/.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"
#include "core/math/elementary.h"

/* For long rows: adds each block's lanes into a double, so that the error does not grow with the vocabulary. */
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

void tt_cross_entropy_loops(float *loss, float *z, const float *logits, const int32_t *labels, int64_t rows,
                            int64_t vocab, float z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        float largest = tt_row_max(logits, vocab);
        double sum = 0.0;

        if (labels[r] < 0) {
            tt_cross_entropy_ignore(loss, z, r);
            continue;
        }
        for (int64_t v = 0; v < vocab; v += SUM_BLOCK)
            sum += (double)block_sum_exp(logits + v, vocab - v < SUM_BLOCK ? vocab - v : SUM_BLOCK, largest);
        loss[r] = (float)(tt_log(sum) + ((double)largest - (double)logits[labels[r]]));
        if (z)
            z[r] = tt_z_loss(tt_log(sum) + (double)largest, z_loss);
    }
}

void tt_cross_entropy_grad_loops(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows,
                                 int64_t vocab, float scale, float z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        float largest, target, factor;
        double sum = 0.0;

        if (labels[r] < 0) {
            memset(logits, 0, (size_t)vocab * sizeof *logits);
            tt_cross_entropy_ignore(loss, z, r);
            continue;
        }
        largest = tt_row_max(logits, vocab);
        target = logits[labels[r]];
        for (int64_t v = 0; v < vocab; v += SUM_BLOCK)
            sum += (double)tt_row_exp(logits + v, vocab - v < SUM_BLOCK ? vocab - v : SUM_BLOCK, 1.0F, largest);
        factor = (float)((double)scale / sum);
        if (z) {
            factor = (float)((double)scale / sum * tt_z_loss_share(tt_log(sum) + (double)largest, z_loss));
            z[r] = tt_z_loss(tt_log(sum) + (double)largest, z_loss);
        }
        for (int64_t v = 0; v < vocab; v++)
            logits[v] *= factor;
        logits[labels[r]] -= scale;
        loss[r] = (float)(tt_log(sum) + ((double)largest - (double)target));
    }
}

void tt_cross_entropy_grad_bf16_loops(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows,
                                      int64_t vocab, float scale, float z_loss)
{
    tt_cross_entropy_grad_loops(loss, z, logits, labels, rows, vocab, scale, z_loss);
    for (int64_t r = 0; r < rows; r++)
        tt_round_in_place(logits + r * vocab, vocab);
}

void tt_softmax_sum_loops(float *largest, float *sum, const float *x, int64_t n)
{
    float most = tt_row_max(x, n), shift = most < -FLT_MAX ? 0.0F : most;
    double total = 0.0;

    for (int64_t i = 0; i < n; i += SUM_BLOCK)
        total += (double)block_sum_exp(x + i, n - i < SUM_BLOCK ? n - i : SUM_BLOCK, shift);
    *largest = most;
    *sum = (float)total;
}

void tt_soft_cap_loops(float *y, const float *x, int64_t n, float cap)
{
    float inner = 1.0F / cap;

    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = cap * tt_tanhf(inner * x[i]);
}

void tt_softmax_grad_loops(float *y, const float *x, int64_t n, float largest, float factor, float cap)
{
    if (cap > 0.0F) {
        float inner = 1.0F / cap;

        TT_INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            y[i] = factor * tt_expf(x[i] - largest) * (1.0F - inner * x[i] * (inner * x[i]));
    } else {
        TT_INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            y[i] = factor * tt_expf(x[i] - largest);
    }
}

/* Each block is read before the rounded values, which fill half of its memory, can reach it. */
void tt_softmax_grad_bf16_loops(tt_bf16 *y, const float *x, int64_t n, float largest, float factor, float cap)
{
    enum { SIZE = 4 * TT_LANES };
    float block[SIZE];
    const int64_t size = SIZE;

    for (int64_t i = 0; i < n; i += size) {
        int64_t part = n - i < size ? n - i : size;

        tt_softmax_grad_loops(block, x + i, part, largest, factor, cap);
        tt_round_in_place(block, part);
        memcpy(y + i, block, (size_t)part * sizeof *y);
    }
}

/* --- conversions between float and bfloat16, which are not ops --- */

void tt_bf16_round_loops(tt_bf16 *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = tt_bf16_from_float(from[i]);
}

void tt_bf16_widen_loops(float *to, const tt_bf16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = tt_bf16_to_float(from[i]);
}

void tt_lookup_4bit_loops(tt_bf16 *y, const uint8_t *pairs, const tt_bf16 *tables, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, tables += TT_NF4_VALUES, pairs += TT_NF4_BLOCK / 2, y += TT_NF4_BLOCK)
        for (int64_t i = 0; i < TT_NF4_BLOCK / 2; i++) {
            y[2 * i] = tables[pairs[i] >> 4];
            y[2 * i + 1] = tables[pairs[i] & 15];
        }
}

/* --- exp, which is not an op: the e^x of attention, cross-entropy and SwiGLU --- */

void tt_exp_loops(float *y, const float *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = tt_expf(x[i]);
}

void tt_row_squares_loops(float *sum, const float *w, const float *a, const float *b, int64_t rank, int64_t stride,
                          int64_t width)
{
    double squares = 0.0;

    for (int64_t i = 0; i < width; i++) {
        float v = w[i];

        for (int64_t k = 0; k < rank; k++)
            v += b[k] * a[k * stride + i];
        squares += (double)v * (double)v;
    }
    *sum = (float)squares;
}
