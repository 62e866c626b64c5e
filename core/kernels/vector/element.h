/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_ELEMENT_H
#define TT_CORE_KERNELS_VECTOR_ELEMENT_H

#include <string.h>

#include "core/kernels/vector/simd.h"

/**
 * Vectors of floats from and to arrays of bfloat16, and from and to arrays of `element`, the type that a source is
 * compiled for: float, or with TT_ELEMENT_BF16 bfloat16. Stores round to nearest, ties to even; NaN stays NaN. The
 * instructions for it are not used, because they turn denormal numbers into 0.
 */
#if defined(__AVX512F__)

VF_INLINE vf bf16_widened(__m256i halves)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

VF_INLINE __m256i bf16_rounded(vf x)
{
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    vmask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(up, nan, high, _mm512_set1_epi32(0x40)));
}

VF_INLINE vf bf16_load(const tt_bf16 *x)
{
    return bf16_widened(_mm256_loadu_si256((const __m256i *)(const void *)x));
}

VF_INLINE void bf16_store(tt_bf16 *x, vf a)
{
    _mm256_storeu_si256((__m256i *)(void *)x, bf16_rounded(a));
}

VF_INLINE vf bf16_load_n(const tt_bf16 *x, int64_t n)
{
    return n >= VF_LANES ? bf16_load(x) : bf16_widened(_mm256_maskz_loadu_epi16(vf_first(n), x));
}

VF_INLINE void bf16_store_n(tt_bf16 *x, vf a, int64_t n)
{
    if (n >= VF_LANES) {
        bf16_store(x, a);
    } else {
        _mm256_mask_storeu_epi16(x, vf_first(n), bf16_rounded(a));
    }
}

#else

VF_INLINE vf bf16_widened(__m128i halves)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

VF_INLINE __m128i bf16_rounded(vf x)
{
    __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));

    up = _mm256_blendv_epi8(up, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}

VF_INLINE vf bf16_load(const tt_bf16 *x)
{
    return bf16_widened(_mm_loadu_si128((const __m128i *)(const void *)x));
}

VF_INLINE void bf16_store(tt_bf16 *x, vf a)
{
    _mm_storeu_si128((__m128i *)(void *)x, bf16_rounded(a));
}

/* There are no masks for 16 bits. */
VF_INLINE vf bf16_load_n(const tt_bf16 *x, int64_t n)
{
    tt_bf16 some[VF_LANES] = {0};

    if (n >= VF_LANES)
        return bf16_load(x);
    for (int64_t i = 0; i < n; i++)
        some[i] = x[i];
    return bf16_load(some);
}

VF_INLINE void bf16_store_n(tt_bf16 *x, vf a, int64_t n)
{
    tt_bf16 some[VF_LANES];

    if (n >= VF_LANES) {
        bf16_store(x, a);
        return;
    }
    bf16_store(some, a);
    for (int64_t i = 0; i < n; i++)
        x[i] = some[i];
}

#endif

#if defined(TT_ELEMENT_BF16)
typedef tt_bf16 element;
#define TT_TYPED(name)   TT_ISA(name##_bf16)
#define ELEMENT_OP(name) bf16_##name
#else
typedef float element;
#define TT_TYPED(name)   TT_ISA(name)
#define ELEMENT_OP(name) vf_##name
#endif

VF_INLINE vf element_load(const element *x)
{
    return ELEMENT_OP(load)(x);
}

VF_INLINE void element_store(element *x, vf a)
{
    ELEMENT_OP(store)(x, a);
}

VF_INLINE vf element_load_n(const element *x, int64_t n)
{
    return ELEMENT_OP(load_n)(x, n);
}

VF_INLINE void element_store_n(element *x, vf a, int64_t n)
{
    ELEMENT_OP(store_n)(x, a, n);
}

#endif
