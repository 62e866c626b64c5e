/* SPDX-License-Identifier: MIT
 *
 * The kernels on the rows that experts share in AVX2 or AVX-512. The rows of a token lie far apart, so those of the
 * next token are fetched meanwhile. Every row's bits depend on its own operands only.
 */
#include "core/kernels/x86/element.h"
#include "core/kernels/x86/row_sum.h"
#include "core/kernels/x86/x86.h"

enum { LINE = 64 / sizeof(element) /* elements of a cache line */ };

/* What is added up for one row of y, and the places of the next row; NULL: there is none. */
struct mix {
    const element *x;
    const int32_t *places, *next;
    const float *gates; /* NULL: 1 */
    int64_t k, width;
};

VF_INLINE void fetch(const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LINE)
        __builtin_prefetch(x + i, 0, 2);
}

/* `n` columns from `begin` on, in `vectors` vectors; callers pass their number as a constant. */
VF_INLINE void mix_columns(element *y, const element *acc, const struct mix *m, int64_t begin, int64_t n, int vectors)
{
    vf sum[ROW_SUMS];

    VF_UNROLL
    for (int v = 0; v < vectors; v++)
        sum[v] = vf_zero();
    for (int64_t j = 0; j < m->k; j++) {
        const element *row = m->x + m->places[j] * m->width + begin;
        vf gate = vf_set(m->gates ? m->gates[j] : 1.0F);

        if (m->next)
            fetch(m->x + m->next[j] * m->width + begin, n);
        VF_UNROLL
        for (int v = 0; v < vectors; v++)
            sum[v] = vf_fma(gate, element_load_n(row + v * VF_LANES, n - v * VF_LANES), sum[v]);
    }
    VF_UNROLL
    for (int v = 0; v < vectors; v++) {
        int64_t at = begin + v * VF_LANES, left = n - v * VF_LANES;

        if (acc)
            sum[v] = vf_add(element_load_n(acc + at, left), sum[v]);
        element_store_n(y + at, sum[v], left);
    }
}

void TT_TYPED(tt_mix_rows)(element *y, const element *acc, const element *x, const int32_t *places, const float *gates,
                           int64_t rows, int64_t k, int64_t width)
{
    for (int64_t r = 0; r < rows; r++) {
        struct mix m = {.x = x,
                        .places = places + r * k,
                        .next = r + 1 < rows ? places + (r + 1) * k : NULL,
                        .gates = gates ? gates + r * k : NULL,
                        .k = k,
                        .width = width};
        int64_t c = 0;

        for (; c + ROW_STEP <= width; c += ROW_STEP)
            mix_columns(y + r * width, acc ? acc + r * width : NULL, &m, c, ROW_STEP, ROW_SUMS);
        for (; c < width; c += VF_LANES)
            mix_columns(y + r * width, acc ? acc + r * width : NULL, &m, c, width - c < VF_LANES ? width - c : VF_LANES,
                        1);
    }
}

/* to = gate * from; returns the dot product of from and x, which may be `to`. */
VF_INLINE float row_grads(element *to, const element *from, const element *x, vf gate, int64_t width)
{
    vf sum[ROW_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, d;
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        VF_UNROLL
        for (int s = 0; s < ROW_SUMS; s++) {
            int64_t at = i + s * VF_LANES;

            d = element_load(from + at);
            sum[s] = vf_fma(d, element_load(x + at), sum[s]);
            element_store(to + at, vf_mul(gate, d));
        }
    }
    for (; i < width; i += VF_LANES) {
        d = element_load_n(from + i, width - i);
        sum[0] = vf_fma(d, element_load_n(x + i, width - i), sum[0]);
        element_store_n(to + i, vf_mul(gate, d), width - i);
    }
    return row_total(sum);
}

void TT_TYPED(tt_mix_rows_bwd)(element *dx, float *dgates, const element *dy, const element *x, const int32_t *places,
                               const float *gates, int64_t rows, int64_t k, int64_t width)
{
    for (int64_t i = 0; i < rows * k; i++) {
        if (i + 1 < rows * k)
            fetch(x + places[i + 1] * width, width);
        dgates[i] =
            row_grads(dx + places[i] * width, dy + i / k * width, x + places[i] * width, vf_set(gates[i]), width);
    }
}
