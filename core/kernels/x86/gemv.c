/* SPDX-License-Identifier: MIT
 *
 * A matrix times a vector in AVX2 or AVX-512. Rows are read four at a time: they share the loads of the vector and hide
 * the latency of each other's sums. With four streams, processors prefetch too little at the beginning of each, so in
 * short rows the next four are prefetched as they lie in memory. Every row is summed in the same order, whatever the
 * others are.
 */
#include "core/kernels/x86/element.h"
#include "core/kernels/x86/x86.h"

enum {
    ROWS = 4,
    LONG = 16384, /* bytes of a row */
    LINE = 64
};

VF_INLINE void some_rows(float *y, const element *w, const element *x, int rows, int64_t width, bool ahead)
{
    const char *next = (const char *)(w + rows * width);
    vf sum[ROWS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;

    for (; i + VF_LANES <= width; i += VF_LANES) {
        vf part = element_load(x + i);

        for (int at = 0; ahead && at < rows * VF_LANES * (int)sizeof(element); at += LINE)
            _mm_prefetch(next + i * rows * (int64_t)sizeof(element) + at, _MM_HINT_T0);

        for (int r = 0; r < rows; r++)
            sum[r] = vf_fma(element_load(w + r * width + i), part, sum[r]);
    }
    if (i < width) {
        vf part = element_load_n(x + i, width - i);

        for (int r = 0; r < rows; r++)
            sum[r] = vf_fma(element_load_n(w + r * width + i, width - i), part, sum[r]);
    }
    for (int r = 0; r < rows; r++)
        y[r] = vf_sum(sum[r]);
}

void TT_TYPED(tt_gemv)(float *y, const element *w, const element *x, int64_t rows, int64_t width)
{
    bool is_long = width * (int64_t)sizeof(element) >= LONG;
    int64_t r = 0;

    for (; r + ROWS <= rows; r += ROWS)
        some_rows(y + r, w + r * width, x, ROWS, width, !is_long);
    for (; r < rows; r++)
        some_rows(y + r, w + r * width, x, 1, width, false);
}
