/* SPDX-License-Identifier: MIT
 *
 * Kernels over rows in AVX2 or AVX-512: RMSNorm, sums over rows, scattered rows.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/x86/element.h"
#include "core/kernels/x86/row_sum.h"
#include "core/kernels/x86/x86.h"

VF_INLINE float row_squares(const element *x, int64_t width)
{
    vf sum[ROW_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, v;
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        for (int s = 0; s < ROW_SUMS; s++) {
            v = element_load(x + i + (int64_t)s * VF_LANES);
            sum[s] = vf_fma(v, v, sum[s]);
        }
    }
    for (; i < width; i += VF_LANES) {
        v = element_load_n(x + i, width - i);
        sum[0] = vf_fma(v, v, sum[0]);
    }
    return row_total(sum);
}

void TT_TYPED(tt_rmsnorm_fwd)(element *y, float *rstd, const element *x, const element *w, int64_t rows, int64_t width,
                              float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float scale = 1.0F / sqrtf(row_squares(x, width) / (float)width + eps);
        vf scales = vf_set(scale);
        int64_t i = 0;

        rstd[r] = scale;
        for (; i + VF_LANES <= width; i += VF_LANES)
            element_store(y + i, vf_mul(vf_mul(element_load(x + i), scales), element_load(w + i)));
        if (i < width)
            element_store_n(y + i,
                            vf_mul(vf_mul(element_load_n(x + i, width - i), scales), element_load_n(w + i, width - i)),
                            width - i);
    }
}

/* One row's dot(dy w, x). */
VF_INLINE float row_dot(const element *dy, const element *x, const element *w, int64_t width)
{
    vf sum[ROW_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        for (int s = 0; s < ROW_SUMS; s++) {
            int64_t at = i + (int64_t)s * VF_LANES;

            sum[s] = vf_fma(vf_mul(element_load(dy + at), element_load(w + at)), element_load(x + at), sum[s]);
        }
    }
    for (; i < width; i += VF_LANES)
        sum[0] = vf_fma(vf_mul(element_load_n(dy + i, width - i), element_load_n(w + i, width - i)),
                        element_load_n(x + i, width - i), sum[0]);
    return row_total(sum);
}

/* scale (dy w - x mean) for n <= VF_LANES elements; adds dy x scale to dw. */
VF_INLINE vf row_grads(float *dw, const element *dy, const element *x, const element *w, vf scale, vf mean, int64_t n)
{
    vf g = element_load_n(dy, n), v = element_load_n(x, n);

    vf_store_n(dw, vf_fma(g, vf_mul(v, scale), vf_load_n(dw, n)), n);
    return vf_mul(scale, vf_fnma(v, mean, vf_mul(g, element_load_n(w, n))));
}

void TT_TYPED(tt_rmsnorm_bwd)(element *dx, float *dw, const element *acc, const element *dy, const element *x,
                              const element *w, const float *rstd, int64_t rows, int64_t width)
{
    memset(dw, 0, (size_t)width * sizeof *dw);
    for (int64_t r = 0; r < rows; r++, dy += width, x += width, dx += width) {
        float mean = row_dot(dy, x, w, width) * rstd[r] / (float)width * rstd[r];
        vf scales = vf_set(rstd[r]), means = vf_set(mean), v;
        int64_t i = 0;

        for (; i + VF_LANES <= width; i += VF_LANES) {
            v = row_grads(dw + i, dy + i, x + i, w + i, scales, means, VF_LANES);
            element_store(dx + i, acc ? vf_add(element_load(acc + i), v) : v);
        }
        if (i < width) {
            v = row_grads(dw + i, dy + i, x + i, w + i, scales, means, width - i);
            element_store_n(dx + i, acc ? vf_add(element_load_n(acc + i, width - i), v) : v, width - i);
        }
        acc = acc ? acc + width : NULL;
    }
}

void TT_TYPED(tt_sum_rows)(float *y, const float *acc, const element *x, int64_t rows, int64_t width, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += VF_LANES) {
        int64_t n = columns - c;
        vf sum = vf_zero();

        for (int64_t r = 0; r < rows; r++)
            sum = vf_add(sum, element_load_n(x + r * width + c, n));
        vf_store_n(y + c, acc ? vf_add(vf_load_n(acc + c, n), sum) : sum, n);
    }
}

void TT_TYPED(tt_scatter_add)(float *dw, const element *dx, const int32_t *tokens, int64_t n, int64_t width,
                              int64_t columns)
{
    for (int64_t i = 0; i < n; i++) {
        float *to = dw + tokens[i] * width;
        const element *from = dx + i * width;

        for (int64_t c = 0; c < columns; c += VF_LANES)
            vf_store_n(to + c, vf_add(vf_load_n(to + c, columns - c), element_load_n(from + c, columns - c)),
                       columns - c);
    }
}
