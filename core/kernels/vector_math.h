/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_MATH_H
#define TT_CORE_KERNELS_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/math/bf16.h"
#include "core/math/elementary.h"
#include "core/math/real.h"

/* The iterations of the next loop are independent, although its pointers may be equal (in-place use). */
#if defined(__clang__)
#define TT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TT_INDEPENDENT _Pragma("GCC ivdep")
#endif

/**
 * Sums run in this many lanes: element i goes to lane i % TT_LANES and the lanes are folded in halves. The source fixes
 * the order, not the instruction set, so every build and every tile gives the same bits.
 */
enum { TT_LANES = 16 };

static inline tt_real tt_lanes_sum(tt_real *lane)
{
    for (int l = 0; l < 8; l++)
        lane[l] += lane[l + 8];
    for (int l = 0; l < 4; l++)
        lane[l] += lane[l + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

#ifdef TT_WIDE

/** For double, slowly: e^x; tail and slope as below; tanh. */
static inline double tt_expf(double x)
{
    return tt_exp(x);
}

struct tt_normal_tail {
    double tail, slope;
};

static inline struct tt_normal_tail tt_normal_tail(double x)
{
    const double root_half = 0x1.6a09e667f3bcdp-1, density = 0x1.9884533d43651p-2; /* 1 / sqrt(2), 1 / sqrt(2 pi) */

    return (struct tt_normal_tail){0.5 * tt_erfc(fabs(x) * root_half), x * density * tt_exp(-0.5 * x * x)};
}

static inline double tt_tanhf(double x)
{
    return tanh(x);
}

#else

/**
 * e^x, at most 1 ulp off; 0 for -inf and wherever the result would be denormal (such numbers slow down all later
 * operations by hundreds of cycles), inf where it overflows, NaN for NaN. No branches and no calls: loops over it
 * vectorise.
 *
 * Method: x = n ln2 + r with |r| <= ln2 / 2, e^r = 1 + r + r^2 q(r), where q is the polynomial of degree 4 that
 * minimises the largest relative error of the sum (3.1e-9; fitted by Lawson's weighted least squares). 2^n is applied
 * in two factors, because 2^128 is not a float although e^88.7 is.
 */
static inline float tt_expf(float given)
{
    const float shift = 0x1.8p23f; /* adding it rounds to an integer, which is then in the low mantissa bits */
    const uint32_t shift_bits = UINT32_C(0x4b400000);
    const float lowest = -0x1.5d589ep+6f; /* its exponential is the smallest that is not denormal */
    float x, rounded, n, r, q, scale_low, scale_high, result;
    int32_t e, low;
    uint32_t bits_low, bits_high;

    x = 89.0f < given ? 89.0f : given; /* in this order NaN stays NaN */
    x = lowest > x ? lowest : x;
    rounded = x * 0x1.715476p+0f + shift;
    n = rounded - shift;
    r = x - n * 0x1.63p-1f; /* ln2 in two parts; the product with the first is exact */
    r = r + n * 0x1.bd0106p-13f;
    q = 0x1.6a2252p-10f;
    q = q * r + 0x1.123b04p-7f;
    q = q * r + 0x1.5558f8p-5f;
    q = q * r + 0x1.555490p-3f;
    q = q * r + 0x1.fffffcp-2f;
    memcpy(&e, &rounded, sizeof e);
    e = (int32_t)((uint32_t)e - shift_bits);
    low = e >> 1;
    bits_low = ((uint32_t)low + 127U) << 23;
    bits_high = ((uint32_t)(e - low) + 127U) << 23;
    memcpy(&scale_low, &bits_low, sizeof scale_low);
    memcpy(&scale_high, &bits_high, sizeof scale_high);
    result = (1.0f + (r + r * r * q)) * scale_low * scale_high;
    return given < lowest ? 0.0f : result;
}

/**
 * The standard normal distribution's probability beyond |x|, erfc(|x| / sqrt(2)) / 2, with a relative error below 4e-7,
 * and x times its density at x; 0 where they are denormal, NaN for NaN.
 *
 * Method: the tail is exp(-x^2 / 2) t P(t) with t = 1 / (1 + 0.24 |x|) and the polynomial of degree 9 that minimises
 * the largest relative error (3.1e-9, |x| <= 13.4; Lawson's weighted least squares). x^2 is taken in two parts, because
 * the exponential would multiply its rounding error. Always inlined, because clang 14 makes no vector code of a loop
 * with a call.
 */
struct tt_normal_tail {
    float tail, slope;
};

__attribute__((always_inline)) static inline struct tt_normal_tail tt_normal_tail(float x)
{
    const float beyond = 14.5f; /* 0 from here on */
    float size = x < 0.0f ? -x : x, high, low, t, p, e;
    uint32_t bits;

    size = beyond < size ? beyond : size; /* NaN stays NaN */
    memcpy(&bits, &size, sizeof bits);
    bits &= UINT32_C(0xfffff000);
    memcpy(&high, &bits, sizeof high);
    low = (size - high) * (size + high);
    e = tt_expf(-0.5f * high * high) * tt_expf(-0.5f * low);
    t = 1.0f / (1.0f + 0x1.eb851ep-3f * size);
    p = 0x1.a022e4p-6f;
    p = p * t - 0x1.fb8722p-4f;
    p = p * t + 0x1.a1188p-3f;
    p = p * t - 0x1.2228e6p-3f;
    p = p * t + 0x1.1cf342p-3f;
    p = p * t + 0x1.e3503cp-6f;
    p = p * t + 0x1.6566b2p-4f;
    p = p * t + 0x1.6cc30ap-4f;
    p = p * t + 0x1.88911ap-4f;
    p = p * t + 0x1.8829c8p-4f;
    return (struct tt_normal_tail){e * (p * t), x * (e * 0x1.988454p-2f)};
}

/** tanh, at most 3 ulp off; NaN for NaN. The method and the polynomials are vf_tanh's (vector/tanh.h). */
static inline float tt_tanhf(float given)
{
    float x = 9.0f < given ? 9.0f : given, z, p, q; /* in this order NaN stays NaN */

    x = -9.0f > x ? -9.0f : x;
    z = x * x;
    p = 0x1.c9a33ap-27f;
    p = p * z + 0x1.59552cp-16f;
    p = p * z + 0x1.c9f84p-9f;
    p = p * z + 0x1.12043ep-3f;
    p = p * z + 1.0f;
    q = 0x1.a0b804p-21f;
    q = q * z + 0x1.5841bap-12f;
    q = q * z + 0x1.a7df1ap-6f;
    q = q * z + 0x1.de5768p-2f;
    q = q * z + 1.0f;
    x = x * p / q;
    x = 1.0f < x ? 1.0f : x;
    return -1.0f > x ? -1.0f : x;
}

#endif

/** x = cap tanh(scale x / cap) in place. */
static inline void tt_row_cap(tt_real *x, int64_t n, tt_real scale, tt_real cap)
{
    tt_real inner = scale / cap;

    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        x[i] = cap * tt_tanhf(inner * x[i]);
}

/** The largest of x[0..n-1], ignoring NaNs; -inf for none. */
static inline tt_real tt_row_max(const tt_real *x, int64_t n)
{
    tt_real lane[TT_LANES], largest = -INFINITY;
    int64_t i = 0;

    for (int l = 0; l < TT_LANES; l++)
        lane[l] = -INFINITY;
    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] = lane[l] < x[i + l] ? x[i + l] : lane[l];
    }
    for (int l = 0; l < TT_LANES; l++)
        largest = largest < lane[l] ? lane[l] : largest;
    for (; i < n; i++)
        largest = largest < x[i] ? x[i] : largest;
    return largest;
}

/** x = exp(scale x - shift) in place; returns the sum. */
static inline tt_real tt_row_exp(tt_real *x, int64_t n, tt_real scale, tt_real shift)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++) {
            tt_real e = tt_expf(scale * x[i + l] - shift);

            x[i + l] = e;
            lane[l] += e;
        }
    }
    for (int l = 0; i + l < n; l++) {
        x[i + l] = tt_expf(scale * x[i + l] - shift);
        lane[l] += x[i + l];
    }
    return tt_lanes_sum(lane);
}

/**
 * Adds a sink to a row of a softmax: updates the largest score and the sum of exp(s - largest). Returns the factor for
 * the row's weights.
 */
static inline tt_real tt_add_sink(tt_real *largest, tt_real *sum, tt_real sink)
{
    tt_real most = *largest < sink ? sink : *largest, shrink = tt_expf(*largest - most);

    *sum = *sum * shrink + tt_expf(sink - most);
    *largest = most;
    return shrink / *sum;
}

/** The z-loss of a row with logsumexp l, and the factor of its softmax in the gradient of loss + z-loss. */
static inline tt_real tt_z_loss(double l, tt_real z_loss)
{
    return (tt_real)((double)z_loss * l * l);
}

static inline double tt_z_loss_share(double l, tt_real z_loss)
{
    return 1.0 + 2.0 * (double)z_loss * l;
}

/** The losses of a row whose label does not count. */
static inline void tt_cross_entropy_ignore(tt_real *loss, tt_real *z, int64_t row)
{
    loss[row] = 0.0F;
    if (z)
        z[row] = 0.0F;
}

/** Rounds n floats to bfloat16 in place: the results are in the first half of their memory. */
static inline void tt_round_in_place(tt_real *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        tt_bf16 rounded = tt_bf16_from_float(x[i]);

        memcpy((char *)x + i * (int64_t)sizeof rounded, &rounded, sizeof rounded);
    }
}

#endif
