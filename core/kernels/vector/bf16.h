/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_BF16_H
#define TT_CORE_KERNELS_VECTOR_BF16_H

/**
 * Pairs of bfloat16 for AVX512-BF16: two neighbours along the summed dimension, as 32 bits. vdpbf16ps adds the products
 * of 16 pairs to 16 floats. It treats denormal inputs as 0, turns denormal results into 0, and adds and rounds in its
 * own order.
 */
#include "core/kernels/vector/simd.h"
#include "core/math/bf16.h"

typedef __m512i vp; /* 16 pairs */

#define VP_LANES INT64_C(16) /* 64 bits, like the indices that it is multiplied with */
#define EIGHT    INT64_C(8)

VF_INLINE vp vp_zero(void)
{
    return _mm512_setzero_si512();
}

VF_INLINE vp vp_load(const void *x)
{
    return _mm512_loadu_si512(x);
}

VF_INLINE void vp_store(void *x, vp a)
{
    _mm512_storeu_si512(x, a);
}

/* Floats rounded to bfloat16: eight pairs of neighbours. */
VF_INLINE void vp_store_half(tt_bf16 *x, vf a)
{
    _mm256_storeu_si256((void *)x, (__m256i)_mm512_cvtneps_pbh(a));
}

/* One pair in all lanes. */
VF_INLINE vp vp_set(const tt_bf16 *x)
{
    int pair;

    memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* sum + the products of the pairs. */
VF_INLINE vf vp_dot(vp a, vp b, vf sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Rows of floats as pairs, rounded to bfloat16: low[i] beside high[i]. */
VF_INLINE vp vp_pairs(vf low, vf high)
{
    const vp order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                      20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* Transposes eight rows of eight pairs. */
VF_INLINE void transpose_pairs(__m256i *x)
{
    __m256i y[8];

    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        x[i] = y[i];
}

VF_INLINE __mmask16 first_of_16(int64_t n)
{
    return n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1U << n) - 1U);
}

/* `lines` (at most eight) rows of k elements as lanes of a panel of `width`. */
VF_INLINE void pack_eight_rows(tt_bf16 *to, int64_t width, const tt_bf16 *from, int64_t stride, int64_t lines,
                               int64_t k)
{
    for (int64_t p = 0; p < k; p += 2 * EIGHT) {
        int64_t left = k - p, pairs = left < 2 * EIGHT ? (left + 1) / 2 : EIGHT;
        __m256i x[EIGHT];

        for (int64_t i = 0; i < EIGHT; i++)
            x[i] = i >= lines          ? _mm256_setzero_si256()
                   : left >= 2 * EIGHT ? _mm256_loadu_si256((const void *)(from + i * stride + p))
                                       : _mm256_maskz_loadu_epi16(first_of_16(left), from + i * stride + p);
        transpose_pairs(x);
        for (int64_t i = 0; i < pairs; i++, to += 2 * width)
            _mm256_storeu_si256((void *)to, x[i]);
    }
}

/* Elements of two rows as pairs; a row that does not exist is NULL. */
VF_INLINE vp interleave(const tt_bf16 *low, const tt_bf16 *high, int64_t i, int64_t n)
{
    __mmask16 mask = first_of_16(n);
    vp a = vp_zero(), b = vp_zero();

    if (low)
        a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, low + i));
    if (high)
        b = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, high + i)), 16);
    return _mm512_or_si512(a, b);
}

#endif
