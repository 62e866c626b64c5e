/* SPDX-License-Identifier: MIT
 *
 * Attention of one row over cached keys and values of bfloat16. The scores of a query head are the
 * product of k with its row; the weights stay floats.
 */
#include <math.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector/element.h"
#include "core/kernels/vector/tanh.h"
#include "core/kernels/vector_math.h"

enum {
    VECTORS = 4, /* vectors of a row of v at a time, enough to hide the latency of each other's sums */
    KEYS = 256   /* keys at a time for all query heads, so that k and v are read from memory once */
};

static int64_t block(int64_t left)
{
    return left < KEYS ? left : KEYS;
}

VF_INLINE float largest_of(const float *s, int64_t n)
{
    const vf lowest = vf_set(-INFINITY);
    vf largest = lowest;

    for (int64_t i = 0; i < n; i += VF_LANES) /* vf_max ignores a NaN in its first operand */
        largest = vf_max(vf_select(vf_first(n - i), vf_load_n(s + i, n - i), lowest), largest);
    return vf_largest(largest);
}

VF_INLINE void cap_scores(float *s, int64_t n, float scale, float cap)
{
    const vf inner = vf_set(scale / cap), outer = vf_set(cap);

    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store_n(s + i, vf_mul(outer, vf_tanh(vf_mul(inner, vf_load_n(s + i, n - i)))), n - i);
}

/* Turns scores into weights, whose sum is 1, including the sink's weight if there is one. */
VF_INLINE void softmax(float *s, int64_t n, float scale, const float *sink)
{
    float largest = scale * largest_of(s, n);
    vs factor = vs_set(scale), shift, sum = vs_zero(), share;

    largest = sink && *sink > largest ? *sink : largest;
    shift = vs_set(largest);

    for (int64_t i = 0; i < n; i += VS_LANES) {
        vs x = vs_exp(vs_sub(vs_mul(factor, vs_load_n(s + i, n - i)), shift));

        vs_store_n(s + i, x, n - i);
        sum = vs_add(sum, vs_select_first(n - i, x, vs_zero()));
    }
    share = vs_set(1.0F / (sink ? vs_sum(sum) + tt_expf(*sink - largest) : vs_sum(sum)));
    for (int64_t i = 0; i < n; i += VS_LANES)
        vs_store_n(s + i, vs_mul(share, vs_load_n(s + i, n - i)), n - i);
}

/* Adds rows of v times their weights to sums: `vectors` vectors, or at most n elements. */
VF_INLINE void add_some(float *sums, const float *weights, const element *v, int64_t keys, int64_t stride, int vectors,
                        int64_t n)
{
    vf sum[VECTORS];

    for (int i = 0; i < vectors; i++)
        sum[i] = vf_load_n(sums + i * VF_LANES, n - i * VF_LANES);
    for (int64_t j = 0; j < keys; j++, v += stride) {
        vf weight = vf_set(weights[j]);

        for (int i = 0; i < vectors; i++)
            sum[i] = vf_fma(weight, element_load_n(v + i * VF_LANES, n - i * VF_LANES), sum[i]);
    }
    for (int i = 0; i < vectors; i++)
        vf_store_n(sums + i * VF_LANES, sum[i], n - i * VF_LANES);
}

static void add_rows(float *sums, const float *weights, const element *v, int64_t keys, int64_t stride, int64_t dim)
{
    int64_t e = 0;

    for (; e + VECTORS * VF_LANES <= dim; e += VECTORS * VF_LANES)
        add_some(sums + e, weights, v + e, keys, stride, VECTORS, VECTORS * VF_LANES);
    for (; e < dim; e += VF_LANES)
        add_some(sums + e, weights, v + e, keys, stride, 1, dim - e);
}

/* Scratch: a row of scores per query head, and their rows of o as floats. */
void TT_TYPED(tt_attention_row)(element *o, const element *q, const element *k, const element *v,
                                const struct tt_attention_shape *shape, int64_t keys, float *scratch)
{
    int64_t heads = shape->heads / shape->kv_heads, dim = shape->head_dim;
    int64_t width = tt_attention_value_dim(shape), stride = tt_attention_value_stride(shape);
    float *sums = scratch + heads * keys;

    for (int64_t j = 0; j < keys; j += KEYS)
        for (int64_t h = 0; h < heads; h++)
            TT_TYPED(tt_gemv)(scratch + h * keys + j, k + j * dim, q + h * dim, block(keys - j), dim);
    for (int64_t h = 0; h < heads; h++) {
        float scale = tt_attention_scale(shape);

        if (shape->soft_cap > 0.0F)
            cap_scores(scratch + h * keys, keys, scale, shape->soft_cap);
        softmax(scratch + h * keys, keys, shape->soft_cap > 0.0F ? 1.0F : scale,
                shape->sinks ? shape->sinks + h : NULL);
    }
    for (int64_t i = 0; i < heads * width; i += VF_LANES)
        vf_store_n(sums + i, vf_zero(), heads * width - i);
    for (int64_t j = 0; j < keys; j += KEYS)
        for (int64_t h = 0; h < heads; h++)
            add_rows(sums + h * width, scratch + h * keys + j, v + j * stride, block(keys - j), stride, width);
    for (int64_t i = 0; i < heads * width; i += VF_LANES)
        element_store_n(o + i, vf_load_n(sums + i, heads * width - i), heads * width - i);
}
