/* SPDX-License-Identifier: MIT
 *
 * The gradient of the sinks of attention, and its reference.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"

static float dot(const element *a, const element *b, int64_t n)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    }
    for (int l = 0; i + l < n; l++)
        lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_sinks_bwd, generic)(float *dsinks, const element *dout, const element *o, const float *lse,
                                     const element *sinks, int64_t rows, int64_t heads, int64_t dim)
{
    memset(dsinks, 0, (size_t)heads * sizeof *dsinks);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = r * heads + h;

            dsinks[h] -= tt_expf(value_of(sinks[h]) - lse[at]) * dot(dout + at * dim, o + at * dim, dim);
        }
}

void TT_TYPED(tt_sinks_bwd, ref)(float *dsinks, const element *dout, const element *o, const float *lse,
                                 const element *sinks, int64_t rows, int64_t heads, int64_t dim)
{
    for (int64_t h = 0; h < heads; h++) {
        double sum = 0.0;

        for (int64_t at = h; at < rows * heads; at += heads) {
            double product = 0.0;

            for (int64_t e = 0; e < dim; e++)
                product += exact_of(dout[at * dim + e]) * exact_of(o[at * dim + e]);
            sum -= exp(exact_of(sinks[h]) - (double)lse[at]) * product;
        }
        dsinks[h] = (float)sum;
    }
}
