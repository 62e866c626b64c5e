/* SPDX-License-Identifier: MIT
 *
 * The references of cross-entropy; sums in double.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"

/* As fmax() over all, so NaN does not count. gcc 12 for 64-bit Arm stops with an internal error
 * (vect_transform_reduction) at -O3 where fmax() reduces an array. */
static double largest_of(const float *x, int64_t n)
{
    double largest = -INFINITY;

    for (int64_t i = 0; i < n; i++)
        largest = (double)x[i] > largest ? (double)x[i] : largest;
    return largest;
}

static double logsumexp(const float *logits, int64_t vocab)
{
    double largest = largest_of(logits, vocab), sum = 0.0;

    for (int64_t v = 0; v < vocab; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum);
}

void tt_cross_entropy_ref(float *loss, float *z, const float *logits, const int32_t *labels, int64_t rows,
                          int64_t vocab, float z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        double lse = labels[r] < 0 ? 0.0 : logsumexp(logits, vocab);

        loss[r] = labels[r] < 0 ? 0.0F : (float)(lse - (double)logits[labels[r]]);
        if (z)
            z[r] = (float)((double)z_loss * lse * lse);
    }
}

void tt_cross_entropy_grad_ref(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows, int64_t vocab,
                               float scale, float z_loss)
{
    tt_cross_entropy_ref(loss, z, logits, labels, rows, vocab, z_loss);
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        double lse = logsumexp(logits, vocab), share = z ? 1.0 + 2.0 * (double)z_loss * lse : 1.0;

        for (int64_t v = 0; v < vocab; v++) {
            double slope = share * exp((double)logits[v] - lse) - (v == labels[r] ? 1.0 : 0.0);

            logits[v] = labels[r] < 0 ? 0.0F : (float)((double)scale * slope);
        }
    }
}

void tt_cross_entropy_grad_bf16_ref(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows,
                                    int64_t vocab, float scale, float z_loss)
{
    tt_cross_entropy_grad_ref(loss, z, logits, labels, rows, vocab, scale, z_loss);
    for (int64_t r = 0; r < rows; r++)
        tt_round_in_place(logits + r * vocab, vocab);
}

void tt_softmax_sum_ref(float *largest, float *sum, const float *x, int64_t n)
{
    double most = largest_of(x, n), total = 0.0;

    for (int64_t i = 0; i < n; i++)
        total += exp((double)x[i] - (isinf(most) && most < 0.0 ? 0.0 : most));
    *largest = (float)most;
    *sum = (float)total;
}

void tt_softmax_grad_ref(float *y, const float *x, int64_t n, float largest, float factor)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)((double)factor * exp((double)x[i] - (double)largest));
}

/* Each element is read before the rounded values, in half of its memory, can reach it. */
void tt_softmax_grad_bf16_ref(tt_bf16 *y, const float *x, int64_t n, float largest, float factor)
{
    for (int64_t i = 0; i < n; i++) {
        tt_bf16 rounded = tt_bf16_from_float((float)((double)factor * exp((double)x[i] - (double)largest)));

        memcpy(y + i, &rounded, sizeof rounded);
    }
}
