/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_X86_RANDOM_H
#define TT_CORE_KERNELS_X86_RANDOM_H

#include "core/kernels/x86/element.h"

/**
 * Floats rounded to bfloat16 at random, with the bits of tt_rng_bits (core/math/rng.h) and of
 * tt_bf16_from_float_random (core/math/bf16.h). Half a vector has the 64 random bits of each of its elements.
 */
#if defined(__AVX512F__)

typedef __m512i vw; /* VF_LANES / 2 words of 64 bits */
typedef __m256i vh; /* VF_LANES halves of floats */
#define VW(operation) _mm512_##operation

VF_INLINE vw vw_set(uint64_t x)
{
    return _mm512_set1_epi64((int64_t)x);
}

VF_INLINE vw vw_count(void)
{
    return _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
}

/* The lower halves of the words of a, then those of b. */
VF_INLINE vw vw_narrow(vw a, vw b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)), _mm512_cvtepi64_epi32(b), 1);
}

/* random: 16 bits in each lane of 32. */
VF_INLINE vh rounded_at_random(vf x, vw random)
{
    __m512i bits = _mm512_castps_si512(x), exponent = _mm512_set1_epi32(0x7f800000);
    __mmask16 special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    __m256i up = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, random), 16));

    return _mm256_mask_mov_epi16(up, special, bf16_rounded(x));
}

VF_INLINE void vh_store_n(tt_bf16 *x, vh a, int64_t n)
{
    _mm256_mask_storeu_epi16(x, vf_first(n), a);
}

#else

typedef __m256i vw;
typedef __m128i vh;
#define VW(operation) _mm256_##operation

VF_INLINE vw vw_set(uint64_t x)
{
    return _mm256_set1_epi64x((int64_t)x);
}

VF_INLINE vw vw_count(void)
{
    return _mm256_setr_epi64x(0, 1, 2, 3);
}

VF_INLINE vw vw_narrow(vw a, vw b)
{
    __m256 pairs = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);

    return _mm256_permute4x64_epi64(_mm256_castps_si256(pairs), 0xd8);
}

VF_INLINE vh rounded_at_random(vf x, vw random)
{
    __m256i bits = _mm256_castps_si256(x), exponent = _mm256_set1_epi32(0x7f800000);
    __m256i special = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent);
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, random), 16);
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
    __m128i where = _mm_packs_epi32(_mm256_castsi256_si128(special), _mm256_extracti128_si256(special, 1));

    return _mm_blendv_epi8(halves, bf16_rounded(x), where);
}

VF_INLINE void vh_store_n(tt_bf16 *x, vh a, int64_t n)
{
    tt_bf16 some[VF_LANES];

    if (n >= VF_LANES) {
        _mm_storeu_si128((__m128i *)(void *)x, a);
        return;
    }
    _mm_storeu_si128((__m128i *)(void *)some, a);
    for (int64_t i = 0; i < n; i++)
        x[i] = some[i];
}

#endif

/*
 * Philox4x32-10: numbers index, index + 1, ... of a stream. Each lane has one of the four 32-bit words of a counter in
 * its lower half; what is above is of no account, since products read the lower halves only.
 */
VF_INLINE vw philox(uint64_t seed, uint64_t stream, uint64_t index)
{
    const vw multiplier0 = vw_set(0xd2511f53), multiplier1 = vw_set(0xcd9e8d57);
    vw c0 = VW(add_epi64)(vw_set(index), vw_count()), c1 = VW(srli_epi64)(c0, 32);
    vw c2 = vw_set(stream), c3 = VW(srli_epi64)(c2, 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9U, k1 += 0xbb67ae85U) {
        vw p0 = VW(mul_epu32)(multiplier0, c0), p1 = VW(mul_epu32)(multiplier1, c2);

        c0 = VW(srli_epi64)(p1, 32) ^ c1 ^ vw_set(k0);
        c2 = VW(srli_epi64)(p0, 32) ^ c3 ^ vw_set(k1);
        c1 = p1;
        c3 = p0;
    }
    return (c0 & vw_set(0xffffffff)) | VW(slli_epi64)(c1, 32);
}

/* The random bits of VF_LANES elements. */
struct random_words {
    vw first, second;
};

VF_INLINE struct random_words random_words(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (struct random_words){philox(seed, stream, index), philox(seed, stream, index + VF_LANES / 2)};
}

/* Bits 16 k to 16 k + 15 of each element, in its lane of 32. */
VF_INLINE vw random_field(const struct random_words *words, int k)
{
    const vw mask = vw_set(0xffff);
    const __m128i by = _mm_cvtsi32_si128(16 * k);

    return vw_narrow(VW(srl_epi64)(words->first, by) & mask, VW(srl_epi64)(words->second, by) & mask);
}

#endif
