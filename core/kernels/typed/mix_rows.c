/* SPDX-License-Identifier: MIT
 *
 * The kernels on the rows that experts share, portable and as references: sums of a token's rows, and their gradients.
 */
#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"

enum { COLUMNS = 256 /* that are summed at a time */ };

/* sum[c] = the weighted sum of the k rows. */
static void mix(float *sum, const element *x, const int32_t *places, const float *gates, int64_t k, int64_t width,
                int64_t columns)
{
    for (int64_t c = 0; c < columns; c++)
        sum[c] = 0.0F;
    for (int64_t j = 0; j < k; j++) {
        const element *row = x + places[j] * width;
        float gate = gates ? gates[j] : 1.0F;

        TT_INDEPENDENT
        for (int64_t c = 0; c < columns; c++)
            sum[c] += gate * value_of(row[c]);
    }
}

void TT_TYPED(tt_mix_rows, generic)(element *y, const element *acc, const element *x, const int32_t *places,
                                    const float *gates, int64_t rows, int64_t k, int64_t width)
{
    float sum[COLUMNS];

    for (int64_t r = 0; r < rows; r++) {
        for (int64_t begin = 0; begin < width; begin += COLUMNS) {
            int64_t columns = width - begin < COLUMNS ? width - begin : COLUMNS, at = r * width + begin;

            mix(sum, x + begin, places + r * k, gates ? gates + r * k : NULL, k, width, columns);
            TT_INDEPENDENT
            for (int64_t c = 0; c < columns; c++)
                y[at + c] = element_of((acc ? value_of(acc[at + c]) : 0.0F) + sum[c]);
        }
    }
}

static float dot(const element *a, const element *b, int64_t n)
{
    float lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES)
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    for (int l = 0; i + l < n; l++)
        lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_mix_rows_bwd, generic)(element *dx, float *dgates, const element *dy, const element *x,
                                        const int32_t *places, const float *gates, int64_t rows, int64_t k,
                                        int64_t width)
{
    for (int64_t i = 0; i < rows * k; i++) {
        const element *from = dy + i / k * width;
        element *to = dx + places[i] * width;
        float gate = gates[i];

        dgates[i] = dot(from, x + places[i] * width, width);
        TT_INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            to[c] = element_of(gate * value_of(from[c]));
    }
}

/* --- references --- */

void TT_TYPED(tt_mix_rows, ref)(element *y, const element *acc, const element *x, const int32_t *places,
                                const float *gates, int64_t rows, int64_t k, int64_t width)
{
    for (int64_t i = 0; i < rows * width; i++) {
        double sum = acc ? exact_of(acc[i]) : 0.0;

        for (int64_t j = i / width * k; j < (i / width + 1) * k; j++)
            sum += (gates ? (double)gates[j] : 1.0) * exact_of(x[places[j] * width + i % width]);
        y[i] = element_of_exact(sum);
    }
}

void TT_TYPED(tt_mix_rows_bwd, ref)(element *dx, float *dgates, const element *dy, const element *x,
                                    const int32_t *places, const float *gates, int64_t rows, int64_t k, int64_t width)
{
    for (int64_t i = 0; i < rows * k; i++) {
        const element *from = dy + i / k * width;
        double sum = 0.0;

        for (int64_t c = 0; c < width; c++)
            sum += exact_of(from[c]) * exact_of(x[places[i] * width + c]);
        for (int64_t c = 0; c < width; c++)
            dx[places[i] * width + c] = element_of_exact((double)gates[i] * exact_of(from[c]));
        dgates[i] = (float)sum;
    }
}
