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
static tt_real block_sum_exp(const tt_real *x, int64_t n, tt_real shift)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += tt_expf(x[i + l] - shift);
    }
    for (int l = 0; i + l < n; l++)
        lane[l] += tt_expf(x[i + l] - shift);
    return tt_lanes_sum(lane);
}

void TT_LOOPS(cross_entropy)(tt_real *loss, tt_real *z, const tt_real *logits, const int32_t *labels, int64_t rows,
                             int64_t vocab, tt_real z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        tt_real largest = tt_row_max(logits, vocab);
        double sum = 0.0;

        if (labels[r] < 0) {
            tt_cross_entropy_ignore(loss, z, r);
            continue;
        }
        for (int64_t v = 0; v < vocab; v += SUM_BLOCK)
            sum += (double)block_sum_exp(logits + v, vocab - v < SUM_BLOCK ? vocab - v : SUM_BLOCK, largest);
        loss[r] = (tt_real)(tt_log(sum) + ((double)largest - (double)logits[labels[r]]));
        if (z)
            z[r] = tt_z_loss(tt_log(sum) + (double)largest, z_loss);
    }
}

void TT_LOOPS(cross_entropy_grad)(tt_real *loss, tt_real *z, tt_real *logits, const int32_t *labels, int64_t rows,
                                  int64_t vocab, tt_real scale, tt_real z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        tt_real largest, target, factor;
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
        factor = (tt_real)((double)scale / sum);
        if (z) {
            factor = (tt_real)((double)scale / sum * tt_z_loss_share(tt_log(sum) + (double)largest, z_loss));
            z[r] = tt_z_loss(tt_log(sum) + (double)largest, z_loss);
        }
        for (int64_t v = 0; v < vocab; v++)
            logits[v] *= factor;
        logits[labels[r]] -= scale;
        loss[r] = (tt_real)(tt_log(sum) + ((double)largest - (double)target));
    }
}

void TT_LOOPS(cross_entropy_grad_bf16)(tt_real *loss, tt_real *z, tt_real *logits, const int32_t *labels, int64_t rows,
                                       int64_t vocab, tt_real scale, tt_real z_loss)
{
    TT_LOOPS(cross_entropy_grad)(loss, z, logits, labels, rows, vocab, scale, z_loss);
    for (int64_t r = 0; r < rows; r++)
        tt_round_in_place(logits + r * vocab, vocab);
}

void TT_LOOPS(softmax_sum)(tt_real *largest, tt_real *sum, const tt_real *x, int64_t n)
{
    tt_real most = tt_row_max(x, n), shift = most < -TT_REAL_MAX ? 0.0F : most;
    double total = 0.0;

    for (int64_t i = 0; i < n; i += SUM_BLOCK)
        total += (double)block_sum_exp(x + i, n - i < SUM_BLOCK ? n - i : SUM_BLOCK, shift);
    *largest = most;
    *sum = (tt_real)total;
}

void TT_LOOPS(soft_cap)(tt_real *y, const tt_real *x, int64_t n, tt_real cap)
{
    tt_real inner = 1.0F / cap;

    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = cap * tt_tanhf(inner * x[i]);
}

void TT_LOOPS(softmax_grad)(tt_real *y, const tt_real *x, int64_t n, tt_real largest, tt_real factor, tt_real cap)
{
    if (cap > 0.0F) {
        tt_real inner = 1.0F / cap;

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
void TT_LOOPS(softmax_grad_bf16)(tt_bf16 *y, const tt_real *x, int64_t n, tt_real largest, tt_real factor, tt_real cap)
{
    enum { SIZE = 4 * TT_LANES };
    tt_real block[SIZE];
    const int64_t size = SIZE;

    for (int64_t i = 0; i < n; i += size) {
        int64_t part = n - i < size ? n - i : size;

        TT_LOOPS(softmax_grad)(block, x + i, part, largest, factor, cap);
        tt_round_in_place(block, part);
        memcpy(y + i, block, (size_t)part * sizeof *y);
    }
}

/* --- conversions between float and bfloat16, which are not ops --- */

void TT_LOOPS(bf16_round)(tt_bf16 *to, const tt_real *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = tt_bf16_from_float(from[i]);
}

void TT_LOOPS(bf16_widen)(tt_real *to, const tt_bf16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = tt_bf16_to_float(from[i]);
}

/* --- exp, which is not an op: the e^x of attention, cross-entropy and SwiGLU --- */

void TT_LOOPS(exp)(tt_real *y, const tt_real *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = tt_expf(x[i]);
}

void TT_LOOPS(row_squares)(tt_real *sum, const tt_real *w, const tt_real *a, const tt_real *b, int64_t rank,
                           int64_t stride, int64_t width)
{
    double squares = 0.0;

    for (int64_t i = 0; i < width; i++) {
        tt_real v = w[i];

        for (int64_t k = 0; k < rank; k++)
            v += b[k] * a[k * stride + i];
        squares += (double)v * (double)v;
    }
    *sum = (tt_real)squares;
}
