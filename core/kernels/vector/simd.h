/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_SIMD_H
#define TT_CORE_KERNELS_VECTOR_SIMD_H

/**
 * Vectors of floats, as wide as the instruction set that the including file is compiled for. A kernel family is one
 * source over this header; meson compiles it once per instruction set, and TT_ISA(name) gives its functions the suffix.
 *
 * Everything here is static. A function that two objects share would be linked once, from the first object, and could
 * then contain instructions that the processor lacks. For the same reason these sources include no header with
 * functions that are not static, and nothing outside core/kernels/vector includes this one.
 *
 * Tails: vf_load_n and vf_store_n only touch the first n elements, or all if n >= VF_LANES; other lanes read as 0.
 * Sums: vf_sum folds the lanes in halves, a fixed order for each width; sums differ between instruction sets in the
 * last bits, never between runs.
 */
#include <stdbool.h>
#include <stdint.h>

#include <immintrin.h>

#include "core/kernels/kernels.h"

#define VF_INLINE static inline __attribute__((always_inline, unused))

#if defined(__clang__)
#define VF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VF_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__AVX512F__)
#define VF_LANES    INT64_C(16) /* 64 bits, like the indices that it is multiplied with */
#define VF_OP(name) _mm512_##name
typedef __m512 vf;
typedef __mmask16 vmask; /* of the lanes */
#else
#define VF_LANES    INT64_C(8)
#define VF_OP(name) _mm256_##name
typedef __m256 vf;
typedef __m256i vmask; /* all bits of a lane */
#endif

VF_INLINE vf vf_zero(void)
{
    return VF_OP(setzero_ps)();
}

VF_INLINE vf vf_set(float x)
{
    return VF_OP(set1_ps)(x);
}

VF_INLINE vf vf_load(const float *x)
{
    return VF_OP(loadu_ps)(x);
}

VF_INLINE void vf_store(float *x, vf a)
{
    VF_OP(storeu_ps)(x, a);
}

VF_INLINE vf vf_add(vf a, vf b)
{
    return VF_OP(add_ps)(a, b);
}

VF_INLINE vf vf_sub(vf a, vf b)
{
    return VF_OP(sub_ps)(a, b);
}

VF_INLINE vf vf_mul(vf a, vf b)
{
    return VF_OP(mul_ps)(a, b);
}

VF_INLINE vf vf_div(vf a, vf b)
{
    return VF_OP(div_ps)(a, b);
}

VF_INLINE vf vf_sqrt(vf a)
{
    return VF_OP(sqrt_ps)(a);
}

/* a b + c, rounded once. */
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return VF_OP(fmadd_ps)(a, b, c);
}

/* c - a b, rounded once. */
VF_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return VF_OP(fnmadd_ps)(a, b, c);
}

/* The maximum; b if either is NaN. */
VF_INLINE vf vf_max(vf a, vf b)
{
    return VF_OP(max_ps)(a, b);
}

VF_INLINE vf vf_min(vf a, vf b)
{
    return VF_OP(min_ps)(a, b);
}

#if defined(__AVX512F__)

/* The lanes below n; n <= 0: none, n >= VF_LANES: all. */
VF_INLINE vmask vf_first(int64_t n)
{
    return n >= VF_LANES ? (vmask)0xffff : n <= 0 ? (vmask)0 : (vmask)((1U << n) - 1U);
}

VF_INLINE vf vf_load_n(const float *x, int64_t n)
{
    return n >= VF_LANES ? vf_load(x) : _mm512_maskz_loadu_ps(vf_first(n), x);
}

VF_INLINE void vf_store_n(float *x, vf a, int64_t n)
{
    if (n >= VF_LANES) {
        vf_store(x, a);
    } else {
        _mm512_mask_storeu_ps(x, vf_first(n), a);
    }
}

/* a in the lanes of the mask, b in the others. */
VF_INLINE vf vf_select(vmask mask, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, mask, a);
}

/* a < b; false for NaN. */
VF_INLINE vmask vf_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

/* a 2^n for the integer n in the low bits of n + 0x1.8p23, -150 < n < 129; NaN stays NaN. */
VF_INLINE vf vf_scale(vf a, vf shifted)
{
    return _mm512_scalef_ps(a, _mm512_sub_ps(shifted, _mm512_set1_ps(0x1.8p23F)));
}

/* 2^n of such an integer, -127 <= n <= 127; 0 for -127. */
VF_INLINE vf vf_power(vf shifted)
{
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);

    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)));
}

VF_INLINE __m256 vf_half_sum(vf a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

VF_INLINE __m256 vf_half_max(vf a)
{
    return _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

#else

VF_INLINE vmask vf_first(int64_t n)
{
    int bound = n >= VF_LANES ? VF_LANES : n <= 0 ? 0 : (int)n;

    return _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

VF_INLINE vf vf_load_n(const float *x, int64_t n)
{
    return n >= VF_LANES ? vf_load(x) : _mm256_maskload_ps(x, vf_first(n));
}

VF_INLINE void vf_store_n(float *x, vf a, int64_t n)
{
    if (n >= VF_LANES) { /* masked stores take dozens of cycles on some processors */
        vf_store(x, a);
    } else {
        _mm256_maskstore_ps(x, vf_first(n), a);
    }
}

VF_INLINE vf vf_select(vmask mask, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(mask));
}

VF_INLINE vmask vf_less(vf a, vf b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

/* In two factors, since 2^128 is not a float. */
VF_INLINE vf vf_scale(vf a, vf shifted)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000));
    __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
    __m256i low = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);

    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(low)), _mm256_castsi256_ps(high));
}

VF_INLINE vf vf_power(vf shifted)
{
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);

    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}

VF_INLINE __m256 vf_half_sum(vf a)
{
    return a;
}

VF_INLINE __m256 vf_half_max(vf a)
{
    return a;
}

#endif

/* The sum of the lanes: adds lane i + half to lane i, and repeats with half of the lanes. */
VF_INLINE float vf_sum(vf a)
{
    __m256 eight = vf_half_sum(a);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The largest lane; undefined if a lane is NaN. */
VF_INLINE float vf_largest(vf a)
{
    __m256 eight = vf_half_max(a);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/**
 * e^x, at most 1 ulp off; 0 for -inf and wherever the result would be denormal, inf where it overflows, NaN for NaN.
 * The method and the polynomial are tt_expf's (vector_math.h), here with fused products.
 */
VF_INLINE vf vf_exp(vf given)
{
    const vf lowest = vf_set(-0x1.5d589ep+6F), shift = vf_set(0x1.8p23F);
    vf x = vf_max(lowest, vf_min(vf_set(89.0F), given)); /* in this order a NaN stays */
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

    x = vf_max(vf_set(-127.0F), x); /* in this order a NaN stays */
    shifted = vf_add(x, shift);
    r = vf_sub(x, vf_sub(shifted, shift));
    q = vf_fma(q, r, vf_set(0x1.3cea88p-7F));
    q = vf_fma(q, r, vf_set(0x1.c6b752p-5F));
    q = vf_fma(q, r, vf_set(0x1.ebf9bcp-3F));
    q = vf_fma(q, r, vf_set(0x1.62e42ap-1F));
    q = vf_fma(q, r, vf_set(1.0F));
    return vf_mul(q, vf_power(shifted));
}

/* Eight columns of the eight rows in a, which is overwritten as b is. */
VF_INLINE void transpose_lanes(__m256 *columns, __m256 *a, __m256 *b)
{
    for (int64_t i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int64_t i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    for (int64_t i = 0; i < 4; i++) {
        columns[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
        columns[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
}

/* Transposes eight rows of eight floats. */
VF_INLINE void transpose_eight(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    __m256 a[8], b[8], columns[8];

    for (int64_t i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(from + i * from_row);
    transpose_lanes(columns, a, b);
    for (int64_t i = 0; i < 8; i++)
        _mm256_storeu_ps(to + i * to_row, columns[i]);
}

/* to[c][r] = from[r][c]. */
VF_INLINE void transpose(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += 8) {
        for (int64_t c = 0; c < columns; c += 8) {
            if (r + 8 <= rows && c + 8 <= columns) {
                transpose_eight(to + c * to_row + r, to_row, from + r * from_row + c, from_row);
                continue;
            }
            for (int64_t i = r; i < rows && i < r + 8; i++) {
                for (int64_t j = c; j < columns && j < c + 8; j++)
                    to[j * to_row + i] = from[i * from_row + j];
            }
        }
    }
}

/* --- lines that are fetched ahead --- */

/**
 * Lines of a matrix that are fetched into the second cache while other data is multiplied: a few cache lines at a time,
 * because a processor forgets requests beyond its queue. All sizes are in bytes.
 */
struct fetch {
    const char *line; /* the first one that is not fetched yet */
    int64_t stride, lines, bytes;
    int64_t at;    /* in the first line */
    int64_t count; /* cache lines at a time */
};

enum { FETCHED = 64 /* bytes of a cache line */ };

/* `lines` lines, in `turns` turns; they may begin anywhere in a cache line. No turns: nothing. */
VF_INLINE struct fetch fetch_in_turns(const void *first, int64_t stride, int64_t lines, int64_t bytes, int64_t turns)
{
    int64_t cache_lines = lines * (bytes / FETCHED + 1);

    return (struct fetch){.line = first,
                          .stride = stride,
                          .lines = lines,
                          .bytes = bytes,
                          .count = turns ? (cache_lines + turns - 1) / turns : 0};
}

/* One turn. */
VF_INLINE void fetch_some(struct fetch *f)
{
    for (int64_t i = 0; i < f->count && f->lines > 0; i++) {
        __builtin_prefetch(f->line + (f->at < f->bytes ? f->at : f->bytes - 1), 0, 2);
        f->at += FETCHED;
        if (f->at >= f->bytes + FETCHED) {
            f->at = 0;
            f->line += f->stride;
            f->lines--;
        }
    }
}

#endif
