/* SPDX-License-Identifier: MIT
 *
 * Elementwise kernels in AVX2 or AVX-512. Every element goes through the same operations at every position, including
 * tails, so results do not depend on where a range begins.
 */
#include "core/kernels/x86/simd.h"
#include "core/kernels/x86/x86.h"

void TT_ISA(tt_add)(float *y, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_add(vf_load(a + i), vf_load(b + i)));
    if (i < n)
        vf_store_n(y + i, vf_add(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i)), n - i);
}

void TT_ISA(tt_exp)(float *y, const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_exp(vf_load(x + i)));
    if (i < n)
        vf_store_n(y + i, vf_exp(vf_load_n(x + i, n - i)), n - i);
}

VF_INLINE vf one_plus_exp_of_minus(vf x)
{
    return vf_add(vf_set(1.0F), vf_exp(vf_sub(vf_zero(), x)));
}

VF_INLINE vf swiglu(vf g, vf u)
{
    return vf_mul(vf_div(g, one_plus_exp_of_minus(g)), u);
}

void TT_ISA(tt_swiglu_fwd)(float *h, const float *g, const float *u, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(h + i, swiglu(vf_load(g + i), vf_load(u + i)));
    if (i < n)
        vf_store_n(h + i, swiglu(vf_load_n(g + i, n - i), vf_load_n(u + i, n - i)), n - i);
}

/* Gradients of the elements of a vector; returns dg. */
VF_INLINE vf swiglu_grads(vf dh, vf g, vf u, vf *ret_du)
{
    const vf one = vf_set(1.0F);
    vf sigmoid = vf_div(one, one_plus_exp_of_minus(g)), outer = vf_mul(dh, sigmoid);

    *ret_du = vf_mul(outer, g);
    return vf_mul(vf_mul(outer, u), vf_fma(g, vf_sub(one, sigmoid), one));
}

void TT_ISA(tt_swiglu_bwd)(float *dg, float *du, const float *dh, const float *g, const float *u, int64_t n)
{
    int64_t i = 0;
    vf gate, up;

    for (; i + VF_LANES <= n; i += VF_LANES) {
        gate = swiglu_grads(vf_load(dh + i), vf_load(g + i), vf_load(u + i), &up);
        vf_store(dg + i, gate);
        vf_store(du + i, up);
    }
    if (i < n) {
        gate = swiglu_grads(vf_load_n(dh + i, n - i), vf_load_n(g + i, n - i), vf_load_n(u + i, n - i), &up);
        vf_store_n(dg + i, gate, n - i);
        vf_store_n(du + i, up, n - i);
    }
}

/* sqrt(2 / pi), and the same times 0.044715 and times 3 0.044715; doubled for the sigmoid */
static const float linear = 1.5957691216F, cubic = 0.0713548163F, slope_cubic = 0.2140644489F;

VF_INLINE vf gelu_denominator(vf x)
{
    return one_plus_exp_of_minus(vf_mul(x, vf_fma(vf_mul(vf_set(cubic), x), x, vf_set(linear))));
}

void TT_ISA(tt_gelu_fwd)(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_load_n(x + i, n - i);

        vf_store_n(y + i, vf_div(v, gelu_denominator(v)), n - i);
    }
}

void TT_ISA(tt_gelu_bwd)(float *dx, const float *dy, const float *x, int64_t n)
{
    const vf one = vf_set(1.0F);

    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_load_n(x + i, n - i), sigmoid = vf_div(one, gelu_denominator(v));
        vf slope = vf_fma(vf_mul(vf_set(slope_cubic), v), v, vf_set(linear));

        /* this order avoids 0 times infinity far from 0 */
        slope = vf_fma(vf_mul(v, sigmoid), vf_mul(slope, vf_sub(one, sigmoid)), sigmoid);
        vf_store_n(dx + i, vf_mul(vf_load_n(dy + i, n - i), slope), n - i);
    }
}
