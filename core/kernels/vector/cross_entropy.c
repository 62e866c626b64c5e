/* SPDX-License-Identifier: MIT
 *
 * Cross-entropy of rows of logits: the maximum, the exponentials with their sum, and for the
 * gradient one multiplication, each a pass over a row that stays in the second-level cache.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector/element.h"
#include "core/kernels/vector/simd.h"
#include "core/kernels/vector/tanh.h"
#include "core/kernels/vector_math.h"
#include "core/math/bf16.h"
#include "core/math/elementary.h"

/* Long rows: the lanes of each block are folded into a double, so that the error does not grow with the vocabulary. */
enum { SUM_BLOCK = 1024, AT_ONCE = 4 };

static float row_max(const float *x, int64_t n)
{
    vs largest[AT_ONCE];
    int64_t i = 0;

    VF_UNROLL
    for (int64_t k = 0; k < AT_ONCE; k++)
        largest[k] = vs_set(-INFINITY);
    for (; i + AT_ONCE * VS_LANES <= n; i += AT_ONCE * VS_LANES) {
        VF_UNROLL
        for (int64_t k = 0; k < AT_ONCE; k++)
            largest[k] = vs_max(vs_load(x + i + k * VS_LANES), largest[k]); /* in this order NaNs are ignored */
    }
    for (; i < n; i += VS_LANES)
        largest[0] = vs_select_first(n - i, vs_max(vs_load_n(x + i, n - i), largest[0]), largest[0]);
    return vs_largest(vs_max(vs_max(largest[0], largest[1]), vs_max(largest[2], largest[3])));
}

/* The sum of exp(x - largest). Also stores the exponentials in y unless it is NULL; y may be x. */
VF_INLINE double row_exp(const float *x, float *y, int64_t n, float largest)
{
    const vs shift = vs_set(largest);
    double sum = 0.0;

    for (int64_t first = 0; first < n; first += SUM_BLOCK) {
        int64_t end = n - first < SUM_BLOCK ? n : first + SUM_BLOCK, i = first;
        vs a = vs_zero(), b = vs_zero();

        for (; i + 2 * VS_LANES <= end; i += 2 * VS_LANES) {
            vs p = vs_exp(vs_sub(vs_load(x + i), shift)), q = vs_exp(vs_sub(vs_load(x + i + VS_LANES), shift));

            a = vs_add(a, p);
            b = vs_add(b, q);
            if (y) {
                vs_store(y + i, p);
                vs_store(y + i + VS_LANES, q);
            }
        }
        for (; i < end; i += VS_LANES) {
            vs p = vs_exp(vs_sub(vs_load_n(x + i, end - i), shift));

            a = vs_add(a, vs_select_first(end - i, p, vs_zero()));
            if (y)
                vs_store_n(y + i, p, end - i);
        }
        sum += (double)vs_sum(vs_add(a, b));
    }
    return sum;
}

void TT_ISA(tt_cross_entropy)(float *loss, float *z, const float *logits, const int32_t *labels, int64_t rows,
                              int64_t vocab, float z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        float largest;
        double log_sum;

        if (labels[r] < 0) {
            tt_cross_entropy_ignore(loss, z, r);
            continue;
        }
        largest = row_max(logits, vocab);
        log_sum = tt_log(row_exp(logits, NULL, vocab, largest));
        loss[r] = (float)(log_sum + ((double)largest - (double)logits[labels[r]]));
        if (z)
            z[r] = tt_z_loss(log_sum + (double)largest, z_loss);
    }
}

/* A row's results, and the numbers of its gradient. */
struct row {
    float *loss, *z; /* z may be NULL */
    float scale, z_loss;
};

/* Turns logits into exp(logit - the largest) and sets the losses; returns the factor that turns them into the gradient,
 * except that `scale` must still be subtracted at the label. */
static float row_loss(const struct row *row, float *logits, int32_t label, int64_t vocab)
{
    float largest = row_max(logits, vocab), target = logits[label];
    double sum = row_exp(logits, logits, vocab, largest), log_sum = tt_log(sum);

    *row->loss = (float)(log_sum + ((double)largest - (double)target));
    if (!row->z)
        return (float)((double)row->scale / sum);
    *row->z = tt_z_loss(log_sum + (double)largest, row->z_loss);
    return (float)((double)row->scale / sum * tt_z_loss_share(log_sum + (double)largest, row->z_loss));
}

void TT_ISA(tt_cross_entropy_grad)(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows,
                                   int64_t vocab, float scale, float z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        vf factor;

        if (labels[r] < 0) {
            memset(logits, 0, (size_t)vocab * sizeof *logits);
            tt_cross_entropy_ignore(loss, z, r);
            continue;
        }
        factor = vf_set(row_loss(&(struct row){loss + r, z ? z + r : NULL, scale, z_loss}, logits, labels[r], vocab));
        for (int64_t v = 0; v < vocab; v += VF_LANES)
            vf_store_n(logits + v, vf_mul(factor, vf_load_n(logits + v, vocab - v)), vocab - v);
        logits[labels[r]] -= scale;
    }
}

/* Each vector is read before the rounded values, in half of its memory, can reach it. */
void TT_ISA(tt_cross_entropy_grad_bf16)(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows,
                                        int64_t vocab, float scale, float z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        tt_bf16 *grad = (tt_bf16 *)(void *)logits;
        float factor, target;

        if (labels[r] < 0) {
            memset(grad, 0, (size_t)vocab * sizeof *grad);
            tt_cross_entropy_ignore(loss, z, r);
            continue;
        }
        factor = row_loss(&(struct row){loss + r, z ? z + r : NULL, scale, z_loss}, logits, labels[r], vocab);
        target = factor * logits[labels[r]] - scale;
        for (int64_t v = 0; v < vocab; v += VF_LANES)
            bf16_store_n(grad + v, vf_mul(vf_set(factor), vf_load_n(logits + v, vocab - v)), vocab - v);
        grad[labels[r]] = tt_bf16_from_float(target);
    }
}

void TT_ISA(tt_softmax_sum)(float *largest, float *sum, const float *x, int64_t n)
{
    float most = row_max(x, n);

    *largest = most;
    *sum = (float)row_exp(x, NULL, n, most < -FLT_MAX ? 0.0F : most);
}

void TT_ISA(tt_soft_cap)(float *y, const float *x, int64_t n, float cap)
{
    const vf outer = vf_set(cap), inner = vf_set(1.0F / cap);

    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store_n(y + i, vf_mul(outer, vf_tanh(vf_mul(inner, vf_load_n(x + i, n - i)))), n - i);
}

VF_INLINE vf slope(const float *x, int64_t n, float largest, float factor)
{
    return vf_mul(vf_set(factor), vf_exp(vf_sub(vf_load_n(x, n), vf_set(largest))));
}

/* With the slope of the cap; inner: 1 / cap. */
VF_INLINE vf capped_slope(const float *x, int64_t n, float largest, float factor, float inner)
{
    vf part = vf_mul(vf_set(inner), vf_load_n(x, n));

    return vf_mul(slope(x, n, largest, factor), vf_fnma(part, part, vf_set(1.0F)));
}

void TT_ISA(tt_softmax_grad)(float *y, const float *x, int64_t n, float largest, float factor, float cap)
{
    for (int64_t i = 0; i < n && cap > 0.0F; i += VF_LANES)
        vf_store_n(y + i, capped_slope(x + i, n - i, largest, factor, 1.0F / cap), n - i);
    for (int64_t i = 0; i < n && cap <= 0.0F; i += VF_LANES)
        vf_store_n(y + i, slope(x + i, n - i, largest, factor), n - i);
}

/* Each vector is read before the rounded values, in half of its memory, can reach it. */
void TT_ISA(tt_softmax_grad_bf16)(tt_bf16 *y, const float *x, int64_t n, float largest, float factor, float cap)
{
    for (int64_t i = 0; i < n && cap > 0.0F; i += VF_LANES)
        bf16_store_n(y + i, capped_slope(x + i, n - i, largest, factor, 1.0F / cap), n - i);
    for (int64_t i = 0; i < n && cap <= 0.0F; i += VF_LANES)
        bf16_store_n(y + i, slope(x + i, n - i, largest, factor), n - i);
}

/* --- e^x, which is not an op --- */

void TT_ISA(tt_exp)(float *y, const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_exp(vf_load(x + i)));
    if (i < n)
        vf_store_n(y + i, vf_exp(vf_load_n(x + i, n - i)), n - i);
}
