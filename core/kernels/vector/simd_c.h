/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_SIMD_C_H
#define TT_CORE_KERNELS_VECTOR_SIMD_C_H

/**
 * The operations of simd.h in portable C, for vectors of TT_SIMD_LANES lanes: 4, 8 or 16. It also specifies the other
 * headers: every operation gives the same bits in each of them, for any number of lanes. Vectors are an extension of
 * gcc and clang; a compiler splits vectors that are wider than the processor's.
 */
#include <string.h>

#include "core/math/f16.h"

#define VF_LANES ((int64_t)TT_SIMD_LANES) /* 64 bits, like the indices that it is multiplied with */
#if TT_SIMD_LANES == 16
#define VF_REGISTERS 32 /* vectors that the tiles of products may fill */
#else
#define VF_REGISTERS 16
#endif
#define VF_TILE VF_LANES

typedef float vf __attribute__((vector_size(4 * TT_SIMD_LANES)));
typedef int32_t vmask __attribute__((vector_size(4 * TT_SIMD_LANES))); /* all bits of a lane */
typedef uint32_t vf_bits __attribute__((vector_size(4 * TT_SIMD_LANES)));
typedef double vf_double __attribute__((vector_size(8 * TT_SIMD_LANES)));
typedef int64_t vf_double_bits __attribute__((vector_size(8 * TT_SIMD_LANES)));

VF_INLINE vf vf_set(float x)
{
    return x - (vf){0.0F}; /* lanes of a scalar; -0 stays -0 */
}

VF_INLINE vf vf_zero(void)
{
    return (vf){0.0F};
}

VF_INLINE vf vf_load(const float *x)
{
    vf a;

    memcpy(&a, x, sizeof a);
    return a;
}

VF_INLINE void vf_store(float *x, vf a)
{
    memcpy(x, &a, sizeof a);
}

/* The first n lanes (all if n >= VF_LANES); the others become 0, and the memory behind them is not touched. */
VF_INLINE vf vf_load_n(const float *x, int64_t n)
{
    float some[TT_SIMD_LANES] = {0.0F};

    if (n >= VF_LANES)
        return vf_load(x);
    for (int64_t i = 0; i < n; i++)
        some[i] = x[i];
    return vf_load(some);
}

VF_INLINE void vf_store_n(float *x, vf a, int64_t n)
{
    float some[TT_SIMD_LANES];

    if (n >= VF_LANES) {
        vf_store(x, a);
        return;
    }
    vf_store(some, a);
    for (int64_t i = 0; i < n; i++)
        x[i] = some[i];
}

/* The same for a constant n: the needs of gemm.c for a row of a panel. */
VF_INLINE void vf_store_few(float *x, vf a, int64_t n)
{
    vf_store_n(x, a, n);
}

/* The first half of the lanes, and the second. */
VF_INLINE void vf_store_halves(float *low, float *high, vf a)
{
    memcpy(low, &a, sizeof a / 2);
    memcpy(high, (const char *)&a + sizeof a / 2, sizeof a / 2);
}

VF_INLINE vf vf_add(vf a, vf b)
{
    return a + b;
}

VF_INLINE vf vf_sub(vf a, vf b)
{
    return a - b;
}

VF_INLINE vf vf_mul(vf a, vf b)
{
    return a * b;
}

VF_INLINE vf vf_div(vf a, vf b)
{
    return a / b;
}

VF_INLINE vf vf_sqrt(vf a)
{
    for (int i = 0; i < TT_SIMD_LANES; i++)
        a[i] = __builtin_sqrtf(a[i]);
    return a;
}

/**
 * a b + c, rounded once, even on a processor without such an instruction: the product of floats is exact in double, and
 * the sum is rounded to odd there (Boldo & Melquiond 2008), so that rounding to float once more gives the same result
 * as rounding once. With s the rounded sum and e its exact error (Knuth's two-sum), the rounded-to-odd sum is s if e is
 * 0 or s odd, otherwise the neighbour of s towards e.
 */
#if defined(__FP_FAST_FMAF)

VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    for (int i = 0; i < TT_SIMD_LANES; i++)
        a[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return a;
}

#else

/* Wide vectors are for tests: a call keeps what the compiler unrolls small. */
#if TT_SIMD_LANES > 4
#define VF_FMA_INLINE static __attribute__((noinline, unused))
#else
#define VF_FMA_INLINE VF_INLINE
#endif

VF_FMA_INLINE vf vf_fma(vf a, vf b, vf c)
{
    vf_double product = __builtin_convertvector(a, vf_double) * __builtin_convertvector(b, vf_double);
    vf_double addend = __builtin_convertvector(c, vf_double), sum = product + addend, back = sum - product;
    vf_double error = (product - (sum - back)) + (addend - back);
    vf_double_bits bits = (vf_double_bits)sum, away = ((vf_double_bits)error ^ bits) >> 63 | 1; /* 1, or towards 0 -1 */
    vf_double_bits inexact = (error < 0.0) | (error > 0.0);                                     /* false for NaN */

    bits += inexact & ((bits & 1) - 1) & away;
    return __builtin_convertvector((vf_double)bits, vf);
}

#endif

/* c - a b, rounded once. */
VF_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return vf_fma(-a, b, c);
}

/* a b - c in even lanes, a b + c in odd ones, rounded once. */
VF_INLINE vf vf_fma_sub_add(vf a, vf b, vf c)
{
    for (int i = 0; i < TT_SIMD_LANES; i += 2)
        c[i] = -c[i];
    return vf_fma(a, b, c);
}

/* a in the lanes of the mask, b in the others. */
VF_INLINE vf vf_select(vmask mask, vf a, vf b)
{
    return (vf)(((vmask)a & mask) | ((vmask)b & ~mask));
}

/* a < b; false for NaN. */
VF_INLINE vmask vf_less(vf a, vf b)
{
    return (vmask)(a < b);
}

/* a if it is larger; otherwise b, even if either is NaN or both are 0. */
VF_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(vf_less(b, a), a, b);
}

/* a if it is less, b otherwise. */
VF_INLINE vf vf_min(vf a, vf b)
{
    return vf_select(vf_less(a, b), a, b);
}

/* The lanes below n; n <= 0: none, n >= VF_LANES: all. */
VF_INLINE vmask vf_first(int64_t n)
{
    int32_t bound = n >= VF_LANES ? TT_SIMD_LANES : n <= 0 ? 0 : (int32_t)n;
    vmask lane;

    for (int i = 0; i < TT_SIMD_LANES; i++)
        lane[i] = i;
    return (vmask)(lane < bound);
}

/* a 2^n for the integer n in the low bits of n + 0x1.8p23, -150 < n < 129; NaN stays NaN. The bits are the same in all
 * headers if the result is not denormal. In two factors, since 2^128 is not a float. */
VF_INLINE vf vf_scale(vf a, vf shifted)
{
    vmask n = (vmask)shifted - 0x4b400000, half = n >> 1;

    return a * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

/* 2^n for such an integer, -127 <= n <= 127; 0 for -127. */
VF_INLINE vf vf_power(vf shifted)
{
    return (vf)(((vf_bits)shifted << 23) + 0x3f800000U);
}

/* The sum of the lanes: adds lane i + half to lane i, and repeats with half of the lanes. */
VF_INLINE float vf_sum(vf a)
{
    for (int half = TT_SIMD_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

/* The largest lane, in the same order; undefined if a lane is NaN. */
VF_INLINE float vf_largest(vf a)
{
    for (int half = TT_SIMD_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    return a[0];
}

/* --- lanes that change places --- */

/* Each even lane twice: 0, 0, 2, 2, ... */
VF_INLINE vf vf_even_twice(vf a)
{
    for (int i = 0; i < TT_SIMD_LANES; i += 2)
        a[i + 1] = a[i];
    return a;
}

/* Each odd lane twice: 1, 1, 3, 3, ... */
VF_INLINE vf vf_odd_twice(vf a)
{
    for (int i = 0; i < TT_SIMD_LANES; i += 2)
        a[i] = a[i + 1];
    return a;
}

/* 1, 0, 3, 2, ... */
VF_INLINE vf vf_swap_pairs(vf a)
{
    vf b = a;

    for (int i = 0; i < TT_SIMD_LANES; i++)
        b[i] = a[i ^ 1];
    return b;
}

/* The even lanes (odd: the odd ones) of low, then of high. */
VF_INLINE vf vf_every_other(vf low, vf high, int odd)
{
    vf a = low;

    for (int i = 0; i < TT_SIMD_LANES / 2; i++) {
        a[i] = low[2 * i + odd];
        a[i + TT_SIMD_LANES / 2] = high[2 * i + odd];
    }
    return a;
}

/* Transposes the square of VF_LANES vectors. */
VF_INLINE void vf_transpose(vf *x)
{
    float rows[TT_SIMD_LANES][TT_SIMD_LANES], columns[TT_SIMD_LANES][TT_SIMD_LANES];

    memcpy(rows, x, sizeof rows);
    for (int i = 0; i < TT_SIMD_LANES; i++)
        for (int j = 0; j < TT_SIMD_LANES; j++)
            columns[j][i] = rows[i][j];
    memcpy(x, columns, sizeof columns);
}

/* to[c][r] = from[r][c] for VF_TILE rows and columns. */
VF_INLINE void vf_transpose_tile(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    vf x[TT_SIMD_LANES];

    for (int64_t i = 0; i < VF_LANES; i++)
        x[i] = vf_load(from + i * from_row);
    vf_transpose(x);
    for (int64_t i = 0; i < VF_LANES; i++)
        vf_store(to + i * to_row, x[i]);
}

/* --- elements of packed matrices --- */

VF_INLINE vf vf_of_bytes(const int8_t *x)
{
    vf a = vf_zero();

    for (int64_t i = 0; i < VF_LANES; i++)
        a[i] = (float)x[i];
    return a;
}

VF_INLINE vf vf_of_f16(const uint16_t *x)
{
    vf a = vf_zero();

    for (int64_t i = 0; i < VF_LANES; i++)
        a[i] = tt_f16_to_float(x[i]);
    return a;
}

/* Numbers from 0 to 15, which are the low 4 bits of lanes. */
typedef vf_bits vn;

VF_INLINE vn vn_load(const uint8_t *x)
{
    vn a = {0};

    for (int64_t i = 0; i < VF_LANES; i++)
        a[i] = x[i];
    return a;
}

/* The numbers in the next 4 bits. */
VF_INLINE vn vn_next(vn a)
{
    return a >> 4;
}

/* The elements of a table of 16 floats that the numbers name. */
VF_INLINE vf vf_choose(const vf *table, vn a)
{
    float all[16];
    vf chosen = vf_zero();

    memcpy(all, table, sizeof all);
    for (int64_t i = 0; i < VF_LANES; i++)
        chosen[i] = all[a[i] & 15];
    return chosen;
}

/* --- halves: the upper 16 bits of floats, which are bfloat16 --- */

typedef uint16_t vh __attribute__((vector_size(2 * TT_SIMD_LANES)));

VF_INLINE vh vh_load(const uint16_t *x)
{
    vh a;

    memcpy(&a, x, sizeof a);
    return a;
}

VF_INLINE vh vh_load_n(const uint16_t *x, int64_t n)
{
    uint16_t some[TT_SIMD_LANES] = {0};

    if (n >= VF_LANES)
        return vh_load(x);
    for (int64_t i = 0; i < n; i++)
        some[i] = x[i];
    return vh_load(some);
}

VF_INLINE void vh_store(uint16_t *x, vh a)
{
    memcpy(x, &a, sizeof a);
}

VF_INLINE void vh_store_n(uint16_t *x, vh a, int64_t n)
{
    uint16_t some[TT_SIMD_LANES];

    if (n >= VF_LANES) {
        vh_store(x, a);
        return;
    }
    vh_store(some, a);
    for (int64_t i = 0; i < n; i++)
        x[i] = some[i];
}

/* 32 elements of a table of 16, which the numbers of 4 bits in 16 bytes name: the low ones, then the high ones; or of
 * each byte the high one (in_turn), then the low one. */
VF_INLINE void vh_choose(uint16_t *to, const vh *table, const uint8_t *pairs, bool in_turn)
{
    uint16_t all[16];

    memcpy(all, table, sizeof all);
    for (int64_t i = 0; i < 16; i++) {
        to[in_turn ? 2 * i + 1 : i] = all[pairs[i] & 15];
        to[in_turn ? 2 * i : i + 16] = all[pairs[i] >> 4];
    }
}

VF_INLINE vf vh_widened(vh a)
{
    return (vf)(__builtin_convertvector(a, vf_bits) << 16);
}

/* To nearest, ties to even; denormal numbers too; NaN stays NaN. */
VF_INLINE vh vh_rounded(vf x)
{
    vf_bits bits = (vf_bits)x, high = bits >> 16, up = (bits + 0x7fffU + (high & 1U)) >> 16;
    vf_bits nan = (vf_bits)(x != x); // NOLINT(misc-redundant-expression): only a NaN differs from itself

    return __builtin_convertvector((up & ~nan) | ((high | 0x40U) & nan), vh);
}

/* --- VF_LANES / 2 words of 64 bits --- */

typedef uint64_t vw __attribute__((vector_size(4 * TT_SIMD_LANES)));

VF_INLINE vw vw_set(uint64_t x)
{
    return x + (vw){0};
}

/* 0, 1, 2, ... */
VF_INLINE vw vw_count(void)
{
    vw a;

    for (uint64_t i = 0; i < TT_SIMD_LANES / 2; i++)
        a[i] = i;
    return a;
}

VF_INLINE vw vw_add(vw a, vw b)
{
    return a + b;
}

VF_INLINE vw vw_and(vw a, vw b)
{
    return a & b;
}

VF_INLINE vw vw_or(vw a, vw b)
{
    return a | b;
}

VF_INLINE vw vw_xor(vw a, vw b)
{
    return a ^ b;
}

VF_INLINE vw vw_left(vw a, int n)
{
    return a << (uint64_t)n;
}

VF_INLINE vw vw_right(vw a, int n)
{
    return a >> (uint64_t)n;
}

/* The products of the lower halves. */
VF_INLINE vw vw_mul_low(vw a, vw b)
{
    return (a & 0xffffffffU) * (b & 0xffffffffU);
}

/* The halves of the words as floats: the lower half of a word, then its upper half. */
VF_INLINE vf vw_floats(vw a)
{
    return (vf)a;
}

/* The lower halves of the words of a, then of b: VF_LANES lanes of 32 bits. */
VF_INLINE vw vw_narrow(vw a, vw b)
{
    vf_bits both = {0};

    for (int i = 0; i < TT_SIMD_LANES / 2; i++) {
        both[i] = (uint32_t)a[i];
        both[i + TT_SIMD_LANES / 2] = (uint32_t)b[i];
    }
    return (vw)both;
}

/* Adds `random`, 16 bits in each lane of 32, to the bits of x and cuts them; infinity and NaN as vh_rounded does. */
VF_INLINE vh vh_rounded_at_random(vf x, vw random)
{
    vf_bits bits = (vf_bits)x, special = (vf_bits)((bits & 0x7f800000U) == 0x7f800000U);
    vf_bits up = (bits + (vf_bits)random) >> 16, nearest = __builtin_convertvector(vh_rounded(x), vf_bits);

    return __builtin_convertvector((up & ~special) | (nearest & special), vh);
}

/* --- eight doubles --- */

typedef struct {
    double lane[8];
} vd;

VF_INLINE vd vd_zero(void)
{
    return (vd){{0.0}};
}

/* Adds the squares of eight floats, of the first n if there are fewer. They are exact in double, so fusing changes
 * nothing. */
VF_INLINE vd vd_add_squares(vd sum, const float *x, int64_t n)
{
    if (n >= 8) {
        for (int i = 0; i < 8; i++)
            sum.lane[i] += (double)x[i] * (double)x[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            sum.lane[i] += (double)x[i] * (double)x[i];
    }
    return sum;
}

/* In halves, as vf_sum. */
VF_INLINE double vd_sum(vd a)
{
    for (int half = 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.lane[i] += a.lane[i + half];
    return a.lane[0];
}

#endif
