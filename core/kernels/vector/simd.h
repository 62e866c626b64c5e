/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_SIMD_H
#define TT_CORE_KERNELS_VECTOR_SIMD_H

/**
 * Vectors of floats. A kernel family is one source over this header; meson compiles it once per set of instructions,
 * and TT_ISA(name) gives its functions the suffix. The operations are in one header per kind of processor: simd_x86.h
 * (AVX-512: 16 lanes, AVX2: 8) and simd_c.h, which is portable C for TT_SIMD_LANES lanes and defines each operation to
 * the bit. No other file of this folder has intrinsics, except for instructions that multiply bfloat16.
 *
 * Everything here is static. A function that two objects share would be linked once, from the first object, and could
 * then contain instructions that the processor lacks. For the same reason these sources include no header with
 * functions that are not static, and nothing outside core/kernels/vector includes this one.
 *
 * Tails: vf_load_n and vf_store_n only touch the first n elements, or all if n >= VF_LANES; other lanes read as 0.
 */
#include <stdbool.h>
#include <stdint.h>

#include "core/kernels/kernels.h"

#define VF_INLINE static inline __attribute__((always_inline, unused))

#if defined(__clang__)
#define VF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VF_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(TT_SIMD_LANES)
#include "core/kernels/vector/simd_c.h"
#elif defined(__aarch64__)
#include "core/kernels/vector/simd_neon.h"
#else
#include "core/kernels/vector/simd_x86.h"
#endif

/**
 * e^x, at most 1 ulp off; 0 for -inf and wherever the result would be denormal, inf where it overflows, NaN for NaN.
 * The method and the polynomial are tt_expf's (vector_math.h), here with fused products.
 */
VF_INLINE vf vf_exp(vf given)
{
    const vf lowest = vf_set(-0x1.5d589ep+6F), shift = vf_set(0x1.8p23F);
    vf x = vf_max(lowest, vf_min(vf_set(89.0F), given)); /* in this order a NaN remains NaN */
    vf shifted = vf_fma(x, vf_set(0x1.715476p+0F), shift), n = vf_sub(shifted, shift);
    vf r = vf_fma(n, vf_set(0x1.bd0106p-13F), vf_fnma(n, vf_set(0x1.63p-1F), x)), q = vf_set(0x1.6a2252p-10F);

    q = vf_fma(q, r, vf_set(0x1.123b04p-7F));
    q = vf_fma(q, r, vf_set(0x1.5558f8p-5F));
    q = vf_fma(q, r, vf_set(0x1.555490p-3F));
    q = vf_fma(q, r, vf_set(0x1.fffffcp-2F));
    q = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set(1.0F));
    return vf_select(vf_less(given, lowest), vf_zero(), vf_scale(q, shifted));
}

/**
 * 2^x for x <= 0 (up to rounding), with a relative error below 1.3e-7; 0 below -127, where results would be denormal
 * anyway, and NaN for NaN. Of the operations of a softmax, only these five fma and the scaling compete with the
 * products for the ports.
 *
 * Method: x = n + r with |r| <= 1/2, exactly; 2^r by the polynomial of degree 5 with constant term 1 that minimises the
 * largest relative error (9.1e-8; Lawson's weighted least squares).
 */
VF_INLINE vf vf_exp2_low(vf x)
{
    const vf shift = vf_set(0x1.8p23F);
    vf shifted, r, q = vf_set(0x1.5bba14p-10F);

    x = vf_max(vf_set(-127.0F), x); /* in this order a NaN remains NaN */
    shifted = vf_add(x, shift);
    r = vf_sub(x, vf_sub(shifted, shift));
    q = vf_fma(q, r, vf_set(0x1.3cea88p-7F));
    q = vf_fma(q, r, vf_set(0x1.c6b752p-5F));
    q = vf_fma(q, r, vf_set(0x1.ebf9bcp-3F));
    q = vf_fma(q, r, vf_set(0x1.62e42ap-1F));
    q = vf_fma(q, r, vf_set(1.0F));
    return vf_mul(q, vf_power(shifted));
}

/* --- sums over a row --- */

/**
 * Sixteen floats: one vector, or two, or four. Every sum across lanes uses sixteen lanes, which vs_sum folds in a fixed
 * order, so that a sum has the same bits for every number of lanes. Tails: as for vf.
 */
#define VS_LANES INT64_C(16)
enum { VS_PARTS = VS_LANES / VF_LANES };
#define VS_EACH(i) \
    VF_UNROLL      \
    for (int64_t i = 0; i < VS_PARTS; i++)

typedef struct {
    vf part[VS_PARTS];
} vs;

VF_INLINE vs vs_set(float x)
{
    vs a;

    VS_EACH(i) a.part[i] = vf_set(x);
    return a;
}

VF_INLINE vs vs_zero(void)
{
    return vs_set(0.0F);
}

VF_INLINE vs vs_load(const float *x)
{
    vs a;

    VS_EACH(i) a.part[i] = vf_load(x + i * VF_LANES);
    return a;
}

VF_INLINE vs vs_load_n(const float *x, int64_t n)
{
    vs a;

    VS_EACH(i) a.part[i] = vf_load_n(x + i * VF_LANES, n - i * VF_LANES);
    return a;
}

VF_INLINE void vs_store(float *x, vs a)
{
    VS_EACH(i) vf_store(x + i * VF_LANES, a.part[i]);
}

VF_INLINE void vs_store_n(float *x, vs a, int64_t n)
{
    VS_EACH(i) vf_store_n(x + i * VF_LANES, a.part[i], n - i * VF_LANES);
}

VF_INLINE vs vs_add(vs a, vs b)
{
    VS_EACH(i) a.part[i] = vf_add(a.part[i], b.part[i]);
    return a;
}

VF_INLINE vs vs_sub(vs a, vs b)
{
    VS_EACH(i) a.part[i] = vf_sub(a.part[i], b.part[i]);
    return a;
}

VF_INLINE vs vs_mul(vs a, vs b)
{
    VS_EACH(i) a.part[i] = vf_mul(a.part[i], b.part[i]);
    return a;
}

VF_INLINE vs vs_fma(vs a, vs b, vs c)
{
    VS_EACH(i) a.part[i] = vf_fma(a.part[i], b.part[i], c.part[i]);
    return a;
}

VF_INLINE vs vs_max(vs a, vs b)
{
    VS_EACH(i) a.part[i] = vf_max(a.part[i], b.part[i]);
    return a;
}

VF_INLINE vs vs_exp(vs a)
{
    VS_EACH(i) a.part[i] = vf_exp(a.part[i]);
    return a;
}

VF_INLINE vs vs_of_bytes(const int8_t *x)
{
    vs a;

    VS_EACH(i) a.part[i] = vf_of_bytes(x + i * VF_LANES);
    return a;
}

/* The elements of a table that 16 numbers of 4 bits name: the low ones of 16 bytes, and the high ones. */
VF_INLINE void vs_choose(vs table, const uint8_t *pairs, vs *ret_low, vs *ret_high)
{
    VS_EACH(i)
    {
        vn numbers = vn_load(pairs + i * VF_LANES);

        ret_low->part[i] = vf_choose(table.part, numbers);
        ret_high->part[i] = vf_choose(table.part, vn_next(numbers));
    }
}

/* a in the first n lanes, b in the others. */
VF_INLINE vs vs_select_first(int64_t n, vs a, vs b)
{
    VS_EACH(i) a.part[i] = vf_select(vf_first(n - i * VF_LANES), a.part[i], b.part[i]);
    return a;
}

VF_INLINE float vs_sum(vs a)
{
    VF_UNROLL
    for (int64_t half = VS_PARTS / 2; half > 0; half /= 2) {
        VF_UNROLL
        for (int64_t i = 0; i < half; i++)
            a.part[i] = vf_add(a.part[i], a.part[i + half]);
    }
    return vf_sum(a.part[0]);
}

VF_INLINE float vs_largest(vs a)
{
    VF_UNROLL
    for (int64_t half = VS_PARTS / 2; half > 0; half /= 2) {
        VF_UNROLL
        for (int64_t i = 0; i < half; i++)
            a.part[i] = vf_max(a.part[i], a.part[i + half]);
    }
    return vf_largest(a.part[0]);
}

/* to[c][r] = from[r][c]. */
VF_INLINE void transpose(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += VF_TILE) {
        for (int64_t c = 0; c < columns; c += VF_TILE) {
            if (r + VF_TILE <= rows && c + VF_TILE <= columns) {
                vf_transpose_tile(to + c * to_row + r, to_row, from + r * from_row + c, from_row);
                continue;
            }
            for (int64_t i = r; i < rows && i < r + VF_TILE; i++) {
                for (int64_t j = c; j < columns && j < c + VF_TILE; j++)
                    to[j * to_row + i] = from[i * from_row + j];
            }
        }
    }
}

#endif
