/* SPDX-License-Identifier: MIT
 *
 * LayerNorm in AVX2 or AVX-512.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/x86/element.h"
#include "core/kernels/x86/row_sum.h"
#include "core/kernels/x86/x86.h"

VF_INLINE float row_mean(const element *x, int64_t width)
{
    vf sum[ROW_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        for (int s = 0; s < ROW_SUMS; s++)
            sum[s] = vf_add(sum[s], element_load(x + i + (int64_t)s * VF_LANES));
    }
    for (; i < width; i += VF_LANES)
        sum[0] = vf_add(sum[0], element_load_n(x + i, width - i));
    return row_total(sum) / (float)width;
}

/* x - mean in the lanes below n, 0 in the others. */
VF_INLINE vf centred(const element *x, vf mean, int64_t n)
{
    vf v = vf_sub(element_load_n(x, n), mean);

    return n < VF_LANES ? vf_select(vf_first(n), v, vf_zero()) : v;
}

/* The mean of (x - mean)^2, in a separate pass, because mean(x^2) - mean^2 cancels. */
VF_INLINE float row_variance(const element *x, float mean, int64_t width)
{
    vf sum[ROW_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, middle = vf_set(mean), v;
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        for (int s = 0; s < ROW_SUMS; s++) {
            v = vf_sub(element_load(x + i + (int64_t)s * VF_LANES), middle);
            sum[s] = vf_fma(v, v, sum[s]);
        }
    }
    for (; i < width; i += VF_LANES) {
        v = centred(x + i, middle, width - i);
        sum[0] = vf_fma(v, v, sum[0]);
    }
    return row_total(sum) / (float)width;
}

void TT_TYPED(tt_layernorm_fwd)(element *y, float *mean, float *rstd, const element *x, const element *w,
                                const element *b, int64_t rows, int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        vf middle, scale;

        mean[r] = row_mean(x, width);
        rstd[r] = 1.0F / sqrtf(row_variance(x, mean[r], width) + eps);
        middle = vf_set(mean[r]);
        scale = vf_set(rstd[r]);
        for (int64_t i = 0, n = width; i < width; i += VF_LANES, n -= VF_LANES) {
            vf v = vf_mul(vf_sub(element_load_n(x + i, n), middle), scale);

            element_store_n(y + i, vf_fma(v, element_load_n(w + i, n), element_load_n(b + i, n)), n);
        }
    }
}

/* The means over a row of dy w and of dy w (x - mean). */
VF_INLINE void row_dots(const element *dy, const element *x, const element *w, vf mean, int64_t width, float *ret_plain,
                        float *ret_with_x)
{
    vf plain[ROW_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    vf with_x[ROW_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, g;
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        for (int s = 0; s < ROW_SUMS; s++) {
            int64_t at = i + (int64_t)s * VF_LANES;

            g = vf_mul(element_load(dy + at), element_load(w + at));
            plain[s] = vf_add(plain[s], g);
            with_x[s] = vf_fma(g, vf_sub(element_load(x + at), mean), with_x[s]);
        }
    }
    for (; i < width; i += VF_LANES) {
        g = vf_mul(element_load_n(dy + i, width - i), element_load_n(w + i, width - i));
        plain[0] = vf_add(plain[0], g);
        with_x[0] = vf_fma(g, centred(x + i, mean, width - i), with_x[0]);
    }
    *ret_plain = row_total(plain) / (float)width;
    *ret_with_x = row_total(with_x) / (float)width;
}

void TT_TYPED(tt_layernorm_bwd)(const struct tt_layernorm_grads *of, int64_t rows, int64_t width)
{
    memset(of->dw, 0, (size_t)width * sizeof *of->dw);
    memset(of->db, 0, (size_t)width * sizeof *of->db);
    for (int64_t r = 0; r < rows; r++) {
        const element *dy = (const element *)of->dy + r * width, *x = (const element *)of->x + r * width, *w = of->w;
        const element *acc = of->acc ? (const element *)of->acc + r * width : NULL;
        element *dx = (element *)of->dx + r * width;
        float plain, with_x;
        vf mean = vf_set(of->mean[r]), scale = vf_set(of->rstd[r]), plains, with_xs;

        row_dots(dy, x, w, mean, width, &plain, &with_x);
        plains = vf_set(plain);
        with_xs = vf_set(with_x * of->rstd[r] * of->rstd[r]);
        for (int64_t i = 0, n = width; i < width; i += VF_LANES, n -= VF_LANES) {
            vf g = element_load_n(dy + i, n), v = vf_sub(element_load_n(x + i, n), mean), d;

            vf_store_n(of->dw + i, vf_fma(g, vf_mul(v, scale), vf_load_n(of->dw + i, n)), n);
            vf_store_n(of->db + i, vf_add(g, vf_load_n(of->db + i, n)), n);
            d = vf_sub(vf_mul(g, element_load_n(w + i, n)), plains);
            d = vf_mul(scale, vf_fnma(v, with_xs, d));
            element_store_n(dx + i, acc ? vf_add(element_load_n(acc + i, n), d) : d, n);
        }
    }
}
