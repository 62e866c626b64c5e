/* SPDX-License-Identifier: MIT
 *
 * Attention of one row over cached keys and values. A row of k and of v is read once for all query heads that share it.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"

static float dot(const float *a, const float *b, int64_t n)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    }
    for (int l = 0; i + l < n; l++)
        lane[l] += a[i + l] * b[i + l];
    return tt_lanes_sum(lane);
}

/* n elements as floats: in place, or widened into scratch. */
static const float *floats_of(const element *x, int64_t n, float *scratch)
{
#ifdef TT_ELEMENT_BF16
    tt_bf16_widen_generic(scratch, x, n);
    return scratch;
#else
    (void)n, (void)scratch;
    return x;
#endif
}

/* Scratch: a row of scores per query head; of bfloat16 also the rows of q and of o, and one of k or v. */
void TT_TYPED(tt_attention_row, generic)(element *o, const element *q, const element *k, const element *v,
                                         const struct tt_attention_shape *shape, int64_t keys, float *scratch)
{
    int64_t heads = shape->heads / shape->kv_heads, dim = shape->head_dim;
    int64_t width = tt_attention_value_dim(shape), stride = tt_attention_value_stride(shape);
    float scale = tt_attention_scale(shape), *wide = scratch + heads * keys;
    const float *q_rows = floats_of(q, heads * dim, wide);
#ifdef TT_ELEMENT_BF16
    float *sums = wide + heads * dim, *wide_row = sums + heads * width;
#else
    float *sums = o, *wide_row = NULL;
#endif

    for (int64_t j = 0; j < keys; j++) {
        const float *row = floats_of(k + j * dim, dim, wide_row);

        for (int64_t h = 0; h < heads; h++)
            scratch[h * keys + j] = dot(q_rows + h * dim, row, dim);
    }
    for (int64_t h = 0; h < heads; h++) {
        float *s = scratch + h * keys;
        float largest = scale * tt_row_max(s, keys), sum = tt_row_exp(s, keys, scale, largest);
        float share = shape->sinks ? tt_add_sink(&largest, &sum, shape->sinks[h]) : 1.0F / sum;

        for (int64_t j = 0; j < keys; j++)
            s[j] *= share;
    }
    memset(sums, 0, (size_t)(heads * width) * sizeof *sums);
    for (int64_t j = 0; j < keys; j++) {
        const float *row = floats_of(v + j * stride, width, wide_row);

        for (int64_t h = 0; h < heads; h++) {
            float *out = sums + h * width, weight = scratch[h * keys + j];

            for (int64_t e = 0; e < width; e++)
                out[e] += weight * row[e];
        }
    }
#ifdef TT_ELEMENT_BF16
    tt_bf16_round_generic(o, sums, heads * width);
#endif
}
