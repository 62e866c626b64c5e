/* SPDX-License-Identifier: MIT
 *
 * Elementwise kernels. Every element goes through the same operations at every position, including
 * tails, so results do not depend on where a range begins.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector/element.h"

void TT_TYPED(tt_add)(element *y, const element *a, const element *b, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        element_store(y + i, vf_add(element_load(a + i), element_load(b + i)));
    if (i < n)
        element_store_n(y + i, vf_add(element_load_n(a + i, n - i), element_load_n(b + i, n - i)), n - i);
}

void TT_TYPED(tt_scale)(element *y, const element *x, float factor, int64_t n)
{
    const vf f = vf_set(factor);
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        element_store(y + i, vf_mul(f, element_load(x + i)));
    if (i < n)
        element_store_n(y + i, vf_mul(f, element_load_n(x + i, n - i)), n - i);
}

/* The factors of elements whose random numbers are the halves of `words`: 0 below drop, else scale. */
VF_INLINE vf dropout_factors(vw words, const struct tt_dropout *dropout)
{
    const vw all = vw_set(0xffffffff), above = vw_set((UINT64_C(1) << 32) - dropout->drop);
    uint32_t scale;
    vw low, high;

    memcpy(&scale, &dropout->scale, sizeof scale);
    low = vw_right(vw_add(vw_and(words, all), above), 32); /* 1 if the half is not below drop, else 0 */
    high = vw_right(vw_add(vw_right(words, 32), above), 32);
    return vw_floats(vw_or(vw_mul_low(low, vw_set(scale)), vw_left(vw_mul_low(high, vw_set(scale)), 32)));
}

VF_INLINE void dropout_n(element *y, const element *x, const element *acc, vf factors, int64_t n)
{
    vf product = vf_mul(element_load_n(x, n), factors);

    element_store_n(y, acc ? vf_add(element_load_n(acc, n), product) : product, n);
}

void TT_TYPED(tt_dropout)(element *y, const element *x, const element *acc, const struct tt_dropout *dropout,
                          uint64_t first, int64_t n)
{
    int64_t i = 0;

    if (first % 2 && n > 0) { /* the upper half of a word */
        vw words = vw_right(philox(dropout->seed, dropout->stream, first / 2), 32);

        dropout_n(y, x, acc, dropout_factors(words, dropout), 1);
        i = 1;
    }
    for (; i < n; i += VF_LANES) {
        vw words = philox(dropout->seed, dropout->stream, (first + (uint64_t)i) / 2);

        dropout_n(y + i, x + i, acc ? acc + i : NULL, dropout_factors(words, dropout), n - i);
    }
}

VF_INLINE vf one_plus_exp_of_minus(vf x)
{
    return vf_add(vf_set(1.0F), vf_exp(vf_sub(vf_zero(), x)));
}

VF_INLINE vf swiglu(vf g, vf u)
{
    return vf_mul(vf_div(g, one_plus_exp_of_minus(g)), u);
}

void TT_TYPED(tt_swiglu_fwd)(element *h, const element *g, const element *u, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        element_store(h + i, swiglu(element_load(g + i), element_load(u + i)));
    if (i < n)
        element_store_n(h + i, swiglu(element_load_n(g + i, n - i), element_load_n(u + i, n - i)), n - i);
}

/* Gradients of the elements of a vector; returns dg. */
VF_INLINE vf swiglu_grads(vf dh, vf g, vf u, vf *ret_du)
{
    const vf one = vf_set(1.0F);
    vf sigmoid = vf_div(one, one_plus_exp_of_minus(g)), outer = vf_mul(dh, sigmoid);

    *ret_du = vf_mul(outer, g);
    return vf_mul(vf_mul(outer, u), vf_fma(g, vf_sub(one, sigmoid), one));
}

void TT_TYPED(tt_swiglu_bwd)(element *dg, element *du, const element *dh, const element *g, const element *u, int64_t n)
{
    int64_t i = 0;
    vf gate, up;

    for (; i + VF_LANES <= n; i += VF_LANES) {
        gate = swiglu_grads(element_load(dh + i), element_load(g + i), element_load(u + i), &up);
        element_store(dg + i, gate);
        element_store(du + i, up);
    }
    if (i < n) {
        gate = swiglu_grads(element_load_n(dh + i, n - i), element_load_n(g + i, n - i), element_load_n(u + i, n - i),
                            &up);
        element_store_n(dg + i, gate, n - i);
        element_store_n(du + i, up, n - i);
    }
}

/* sqrt(2 / pi), and the same times 0.044715 and times 3 0.044715; doubled for the sigmoid */
static const float linear = 1.5957691216F, cubic = 0.0713548163F, slope_cubic = 0.2140644489F;

VF_INLINE vf gelu_denominator(vf x)
{
    return one_plus_exp_of_minus(vf_mul(x, vf_fma(vf_mul(vf_set(cubic), x), x, vf_set(linear))));
}

void TT_TYPED(tt_gelu_fwd)(element *y, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = element_load_n(x + i, n - i);

        element_store_n(y + i, vf_div(v, gelu_denominator(v)), n - i);
    }
}

/* For a vector of x, by the sigmoid in its definition; this order avoids 0 times infinity far from 0. */
VF_INLINE vf gelu_slope(vf x, vf sigmoid)
{
    vf slope = vf_fma(vf_mul(vf_set(slope_cubic), x), x, vf_set(linear));

    return vf_fma(vf_mul(x, sigmoid), vf_mul(slope, vf_sub(vf_set(1.0F), sigmoid)), sigmoid);
}

void TT_TYPED(tt_gelu_bwd)(element *dx, const element *dy, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = element_load_n(x + i, n - i), slope = gelu_slope(v, vf_div(vf_set(1.0F), gelu_denominator(v)));

        element_store_n(dx + i, vf_mul(element_load_n(dy + i, n - i), slope), n - i);
    }
}

void TT_TYPED(tt_geglu_fwd)(element *h, const element *g, const element *u, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf gate = element_load_n(g + i, n - i);

        element_store_n(h + i, vf_mul(vf_div(gate, gelu_denominator(gate)), element_load_n(u + i, n - i)), n - i);
    }
}

void TT_TYPED(tt_geglu_bwd)(element *dg, element *du, const element *dh, const element *g, const element *u, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf grad = element_load_n(dh + i, n - i), gate = element_load_n(g + i, n - i);
        vf sigmoid = vf_div(vf_set(1.0F), gelu_denominator(gate));
        vf to_gate = vf_mul(vf_mul(grad, element_load_n(u + i, n - i)), gelu_slope(gate, sigmoid));

        element_store_n(dg + i, to_gate, n - i);
        element_store_n(du + i, vf_mul(grad, vf_mul(gate, sigmoid)), n - i);
    }
}

/* The probability of the normal distribution beyond |x|, and x times its density: tt_normal_tail in vector_math.h. */
VF_INLINE vf normal_tail(vf x, vf *ret_slope)
{
    vf size = vf_min(vf_set(14.5F), vf_max(vf_sub(vf_zero(), x), x)); /* in this order a NaN remains NaN */
    vf square = vf_mul(size, size), rest = vf_fma(size, size, vf_sub(vf_zero(), square));
    vf e = vf_exp(vf_mul(vf_set(-0.5F), square)), p = vf_set(0x1.a022e4p-6F);
    vf t = vf_div(vf_set(1.0F), vf_fma(vf_set(0x1.eb851ep-3F), size, vf_set(1.0F)));

    e = vf_fnma(vf_mul(vf_set(0.5F), rest), e, e);
    p = vf_fma(p, t, vf_set(-0x1.fb8722p-4F));
    p = vf_fma(p, t, vf_set(0x1.a1188p-3F));
    p = vf_fma(p, t, vf_set(-0x1.2228e6p-3F));
    p = vf_fma(p, t, vf_set(0x1.1cf342p-3F));
    p = vf_fma(p, t, vf_set(0x1.e3503cp-6F));
    p = vf_fma(p, t, vf_set(0x1.6566b2p-4F));
    p = vf_fma(p, t, vf_set(0x1.6cc30ap-4F));
    p = vf_fma(p, t, vf_set(0x1.88911ap-4F));
    p = vf_fma(p, t, vf_set(0x1.8829c8p-4F));
    *ret_slope = vf_mul(x, vf_mul(e, vf_set(0x1.988454p-2F)));
    return vf_mul(e, vf_mul(p, t));
}

void TT_TYPED(tt_gelu_erf_fwd)(element *y, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = element_load_n(x + i, n - i), slope, part = vf_mul(v, normal_tail(v, &slope));

        element_store_n(y + i, vf_select(vf_less(vf_zero(), v), vf_sub(v, part), part), n - i);
    }
}

void TT_TYPED(tt_gelu_erf_bwd)(element *dx, const element *dy, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = element_load_n(x + i, n - i), slope, tail = normal_tail(v, &slope);

        tail = vf_select(vf_less(vf_zero(), v), vf_sub(vf_set(1.0F), tail), tail);
        element_store_n(dx + i, vf_mul(element_load_n(dy + i, n - i), vf_add(tail, slope)), n - i);
    }
}

/* --- RoPE --- */

VF_INLINE void rotate_pairs(element *y, const element *x, const float *angle, int64_t dim, vf sign)
{
    for (int64_t i = 0; i < dim; i += VF_LANES) {
        vf angles = vf_load_n(angle + i, dim - i), cosines = vf_even_twice(angles);
        vf sines = vf_mul(sign, vf_odd_twice(angles)), pairs = element_load_n(x + i, dim - i);

        /* a c - b s and b c + a s for pairs (a, b) */
        element_store_n(y + i, vf_fma_sub_add(pairs, cosines, vf_mul(vf_swap_pairs(pairs), sines)), dim - i);
    }
}

VF_INLINE void rotate_halves(element *y, const element *x, const float *angle, int64_t half, vf sign)
{
    for (int64_t i = 0; i < half; i += VF_LANES) {
        int64_t n = half - i;
        vf low = vf_load_n(angle + 2 * i, 2 * n), high = vf_zero(), c, s, a, b;

        if (2 * n > VF_LANES)
            high = vf_load_n(angle + 2 * i + VF_LANES, 2 * n - VF_LANES);
        c = vf_every_other(low, high, 0);
        s = vf_mul(sign, vf_every_other(low, high, 1));
        a = element_load_n(x + i, n);
        b = element_load_n(x + i + half, n);
        element_store_n(y + i, vf_fnma(b, s, vf_mul(a, c)), n);
        element_store_n(y + i + half, vf_fma(b, c, vf_mul(a, s)), n);
    }
}

void TT_TYPED(tt_rope)(element *y, const element *x, const float *table, const struct tt_rope_shape *shape,
                       int64_t first_row, int64_t rows)
{
    int64_t first = shape->unrotated, dim = tt_rope_rotated(shape), last = shape->head_dim - first - dim;
    bool copies = y != x && first + last > 0;
    vf sign = vf_set(shape->inverse ? -1.0F : 1.0F);

    for (int64_t r = first_row; r < first_row + rows; r++) {
        const float *angle = table + tt_rope_position(shape, r) * dim;

        for (int64_t head = 0; head < shape->heads; head++, x += shape->head_dim, y += shape->head_dim) {
            if (copies) {
                memcpy(y, x, (size_t)first * sizeof *y);
                memcpy(y + first + dim, x + first + dim, (size_t)last * sizeof *y);
            }
            if (shape->rotate_half) {
                rotate_halves(y + first, x + first, angle, dim / 2, sign);
            } else {
                rotate_pairs(y + first, x + first, angle, dim, sign);
            }
        }
    }
}
