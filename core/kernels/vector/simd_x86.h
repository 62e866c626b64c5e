/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_SIMD_X86_H
#define TT_CORE_KERNELS_VECTOR_SIMD_X86_H

/**
 * The operations of simd.h in AVX-512 (16 lanes) and in AVX2 with FMA (8 lanes); simd_c.h says what each does.
 */
#include <immintrin.h>

#if defined(__AVX512F__)
#define VF_LANES     INT64_C(16) /* 64 bits, like the indices that it is multiplied with */
#define VF_REGISTERS 32
#define VF_OP(name)  _mm512_##name
typedef __m512 vf;
typedef __mmask16 vmask; /* of the lanes */
#else
#define VF_LANES     INT64_C(8)
#define VF_REGISTERS 16
#define VF_OP(name)  _mm256_##name
typedef __m256 vf;
typedef __m256i vmask; /* all bits of a lane */
#endif

typedef struct {
    __m256d low, high;
} vd;

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

#define VF_TILE INT64_C(8)

VF_INLINE void vf_transpose_tile(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    __m256 a[8], b[8], columns[8];

    for (int64_t i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(from + i * from_row);
    transpose_lanes(columns, a, b);
    for (int64_t i = 0; i < 8; i++)
        _mm256_storeu_ps(to + i * to_row, columns[i]);
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

/* 2^n for such an integer, -127 <= n <= 127; 0 for -127. */
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

/* --- halves: the upper 16 bits of floats, which are bfloat16 --- */

typedef __m256i vh;

VF_INLINE vh vh_load(const uint16_t *x)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

VF_INLINE vh vh_load_n(const uint16_t *x, int64_t n)
{
    return n >= VF_LANES ? vh_load(x) : _mm256_maskz_loadu_epi16(vf_first(n), x);
}

VF_INLINE void vh_store(uint16_t *x, vh a)
{
    _mm256_storeu_si256((__m256i *)(void *)x, a);
}

VF_INLINE void vh_store_n(uint16_t *x, vh a, int64_t n)
{
    if (n >= VF_LANES) {
        vh_store(x, a);
    } else {
        _mm256_mask_storeu_epi16(x, vf_first(n), a);
    }
}

/* Only the low 5 bits of an index count, and the table is there twice. */
VF_INLINE void vh_choose(uint16_t *to, const vh *table, const uint8_t *pairs, bool in_turn)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)pairs);
    __m512i wide = _mm512_cvtepu8_epi32(bytes), both = _mm512_broadcast_i64x4(*table);
    __m512i numbers = in_turn ? _mm512_or_si512(_mm512_srli_epi32(wide, 4), _mm512_slli_epi32(wide, 16))
                              : _mm512_cvtepu8_epi16(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes));

    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(numbers, both));
}

VF_INLINE vf vh_widened(vh a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
}

VF_INLINE vh vh_rounded(vf x)
{
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    vmask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(up, nan, high, _mm512_set1_epi32(0x40)));
}

/* --- elements of packed matrices --- */

VF_INLINE vf vf_of_bytes(const int8_t *x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)x)));
}

VF_INLINE vf vf_of_f16(const uint16_t *x)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)x));
}

typedef __m512i vn;

VF_INLINE vn vn_load(const uint8_t *x)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)x));
}

VF_INLINE vn vn_next(vn a)
{
    return _mm512_srli_epi32(a, 4);
}

VF_INLINE vf vf_choose(const vf *table, vn a)
{
    return _mm512_permutexvar_ps(a, *table);
}

VF_INLINE void vn_store(uint8_t *x, vn a)
{
    _mm_storeu_si128((__m128i *)(void *)x, _mm512_cvtepi32_epi8(a));
}

/* --- words of 64 bits --- */

typedef __m512i vw;
#define VW(operation) _mm512_##operation

VF_INLINE vw vw_set(uint64_t x)
{
    return _mm512_set1_epi64((int64_t)x);
}

VF_INLINE vw vw_count(void)
{
    return _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
}

VF_INLINE vf vw_floats(vw a)
{
    return _mm512_castsi512_ps(a);
}

VF_INLINE vw vw_narrow(vw a, vw b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)), _mm512_cvtepi64_epi32(b), 1);
}

VF_INLINE vh vh_rounded_at_random(vf x, vw random)
{
    __m512i bits = _mm512_castps_si512(x), exponent = _mm512_set1_epi32(0x7f800000);
    __mmask16 special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    __m256i up = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, random), 16));

    return _mm256_mask_mov_epi16(up, special, vh_rounded(x));
}

/* --- lanes that change places --- */

VF_INLINE vf vf_even_twice(vf a)
{
    return _mm512_moveldup_ps(a);
}

VF_INLINE vf vf_odd_twice(vf a)
{
    return _mm512_movehdup_ps(a);
}

VF_INLINE vf vf_swap_pairs(vf a)
{
    return _mm512_permute_ps(a, 0xb1);
}

VF_INLINE vf vf_every_other(vf low, vf high, int odd)
{
    __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);

    return _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(odd)), high);
}

VF_INLINE vf vf_fma_sub_add(vf a, vf b, vf c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}

VF_INLINE void vf_store_halves(float *low, float *high, vf a)
{
    _mm256_storeu_ps(low, _mm512_castps512_ps256(a));
    _mm256_storeu_ps(high, _mm512_extractf32x8_ps(a, 1));
}

VF_INLINE void vf_store_few(float *x, vf a, int64_t n)
{
    if (n == VF_LANES / 2)
        _mm256_storeu_ps(x, _mm512_castps512_ps256(a));
    else
        vf_store_n(x, a, n);
}

VF_INLINE void vf_transpose(vf *x)
{
    vf *a = x, b[VF_LANES];

    VF_UNROLL
    for (int64_t i = 0; i < VF_LANES; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    VF_UNROLL
    for (int64_t i = 0; i < VF_LANES; i += 4) { /* a[i + c]: of rows i to i + 3, columns c, c + 4, c + 8 and c + 12 */
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    VF_UNROLL
    for (int64_t c = 0; c < 4; c++) { /* b[4 c + h]: columns c + 4 (h % 2) and 8 more, of the upper or lower 8 rows */
        b[4 * c] = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
        b[4 * c + 1] = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
        b[4 * c + 2] = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
        b[4 * c + 3] = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
    }
    VF_UNROLL
    for (int64_t c = 0; c < 4; c++) {
        x[c] = _mm512_shuffle_f32x4(b[4 * c], b[4 * c + 2], 0x88);
        x[4 + c] = _mm512_shuffle_f32x4(b[4 * c + 1], b[4 * c + 3], 0x88);
        x[8 + c] = _mm512_shuffle_f32x4(b[4 * c], b[4 * c + 2], 0xdd);
        x[12 + c] = _mm512_shuffle_f32x4(b[4 * c + 1], b[4 * c + 3], 0xdd);
    }
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

typedef __m128i vh;

VF_INLINE vh vh_load(const uint16_t *x)
{
    return _mm_loadu_si128((const __m128i *)(const void *)x);
}

/* There are no masks for 16 bits. */
VF_INLINE vh vh_load_n(const uint16_t *x, int64_t n)
{
    uint16_t some[VF_LANES] = {0};

    if (n >= VF_LANES)
        return vh_load(x);
    for (int64_t i = 0; i < n; i++)
        some[i] = x[i];
    return vh_load(some);
}

VF_INLINE void vh_store(uint16_t *x, vh a)
{
    _mm_storeu_si128((__m128i *)(void *)x, a);
}

VF_INLINE void vh_store_n(uint16_t *x, vh a, int64_t n)
{
    uint16_t some[VF_LANES];

    if (n >= VF_LANES) {
        vh_store(x, a);
        return;
    }
    vh_store(some, a);
    for (int64_t i = 0; i < n; i++)
        x[i] = some[i];
}

/* The lower and the upper bytes of the elements are chosen apart. */
VF_INLINE void vh_choose(uint16_t *to, const vh *table, const uint8_t *pairs, bool in_turn)
{
    const __m128i low_byte = _mm_set1_epi16(0xff), four_bits = _mm_set1_epi8(15);
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)pairs);
    __m128i lower = _mm_packus_epi16(_mm_and_si128(table[0], low_byte), _mm_and_si128(table[1], low_byte));
    __m128i upper = _mm_packus_epi16(_mm_srli_epi16(table[0], 8), _mm_srli_epi16(table[1], 8));
    __m128i low = _mm_and_si128(bytes, four_bits), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), four_bits);
    __m128i numbers[2] = {in_turn ? _mm_unpacklo_epi8(high, low) : low, in_turn ? _mm_unpackhi_epi8(high, low) : high};

    VF_UNROLL
    for (int64_t i = 0; i < 2; i++) {
        __m128i a = _mm_shuffle_epi8(lower, numbers[i]), b = _mm_shuffle_epi8(upper, numbers[i]);

        vh_store(to + 2 * i * VF_LANES, _mm_unpacklo_epi8(a, b));
        vh_store(to + (2 * i + 1) * VF_LANES, _mm_unpackhi_epi8(a, b));
    }
}

VF_INLINE vf vh_widened(vh a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}

VF_INLINE vh vh_rounded(vf x)
{
    __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));

    up = _mm256_blendv_epi8(up, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}

VF_INLINE vf vf_of_bytes(const int8_t *x)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)x)));
}

/* By integers: not every processor with AVX2 need have F16C. A subnormal number is its fraction times 2^-24. */
VF_INLINE vf vf_of_f16(const uint16_t *x)
{
    __m256i half = _mm256_cvtepu16_epi32(vh_load(x)), magnitude = _mm256_and_si256(half, _mm256_set1_epi32(0x7fff));
    __m256i sign = _mm256_slli_epi32(_mm256_sub_epi32(half, magnitude), 16), bias = _mm256_set1_epi32(112 << 23);
    __m256i special = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7bff));
    __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 13), bias);
    __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-24F));
    __m256 is_small = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(0x400), magnitude));

    bits = _mm256_add_epi32(bits, _mm256_and_si256(special, bias));
    return _mm256_or_ps(_mm256_blendv_ps(_mm256_castsi256_ps(bits), small, is_small), _mm256_castsi256_ps(sign));
}

typedef __m256i vn;

VF_INLINE vn vn_load(const uint8_t *x)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)x));
}

VF_INLINE vn vn_next(vn a)
{
    return _mm256_srli_epi32(a, 4);
}

/* The low three bits choose from both halves of the table, and the fourth one chooses a half. */
VF_INLINE vf vf_choose(const vf *table, vn a)
{
    __m256 low = _mm256_permutevar8x32_ps(table[0], a), high = _mm256_permutevar8x32_ps(table[1], a);

    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(a, 28)));
}

/* The lower bytes. */
VF_INLINE void vn_store(uint8_t *x, vn a)
{
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    _mm_storel_epi64((__m128i *)(void *)x, _mm_packus_epi16(halves, halves));
}

typedef __m256i vw;
#define VW(operation) _mm256_##operation

VF_INLINE vw vw_set(uint64_t x)
{
    return _mm256_set1_epi64x((int64_t)x);
}

VF_INLINE vw vw_count(void)
{
    return _mm256_setr_epi64x(0, 1, 2, 3);
}

VF_INLINE vf vw_floats(vw a)
{
    return _mm256_castsi256_ps(a);
}

VF_INLINE vw vw_narrow(vw a, vw b)
{
    __m256 pairs = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);

    return _mm256_permute4x64_epi64(_mm256_castps_si256(pairs), 0xd8);
}

VF_INLINE vh vh_rounded_at_random(vf x, vw random)
{
    __m256i bits = _mm256_castps_si256(x), exponent = _mm256_set1_epi32(0x7f800000);
    __m256i special = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent);
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, random), 16);
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
    __m128i where = _mm_packs_epi32(_mm256_castsi256_si128(special), _mm256_extracti128_si256(special, 1));

    return _mm_blendv_epi8(halves, vh_rounded(x), where);
}

VF_INLINE vf vf_even_twice(vf a)
{
    return _mm256_moveldup_ps(a);
}

VF_INLINE vf vf_odd_twice(vf a)
{
    return _mm256_movehdup_ps(a);
}

VF_INLINE vf vf_swap_pairs(vf a)
{
    return _mm256_permute_ps(a, 0xb1);
}

VF_INLINE vf vf_every_other(vf low, vf high, int odd)
{
    vf mixed = odd ? _mm256_shuffle_ps(low, high, 0xdd) : _mm256_shuffle_ps(low, high, 0x88);

    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}

VF_INLINE vf vf_fma_sub_add(vf a, vf b, vf c)
{
    return _mm256_fmaddsub_ps(a, b, c);
}

VF_INLINE void vf_store_halves(float *low, float *high, vf a)
{
    _mm_storeu_ps(low, _mm256_castps256_ps128(a));
    _mm_storeu_ps(high, _mm256_extractf128_ps(a, 1));
}

VF_INLINE void vf_store_few(float *x, vf a, int64_t n)
{
    if (n == 6) {
        _mm_storeu_ps(x, _mm256_castps256_ps128(a));
        _mm_storel_pi((__m64 *)(void *)(x + 4), _mm256_extractf128_ps(a, 1));
    } else {
        vf_store_n(x, a, n);
    }
}

VF_INLINE void vf_transpose(vf *x)
{
    vf a[VF_LANES], b[VF_LANES];

    VF_UNROLL
    for (int64_t i = 0; i < VF_LANES; i++)
        a[i] = x[i];
    transpose_lanes(x, a, b);
}

#endif

/* --- of both --- */

/* The elements of a table that the numbers name; only these processors have gathers. */
VF_INLINE vf vf_lookup(const float *table, vn a)
{
#if defined(__AVX512F__)
    return _mm512_i32gather_ps(a, table, 4);
#else
    return _mm256_i32gather_ps(table, a, 4);
#endif
}

/* tt_dynamic_code of each lane. */
VF_INLINE vn vn_codes(const struct tt_dynamic *map, vf x)
{
#if defined(__AVX512F__)
    const __m512i lowest = _mm512_set1_epi32(TT_DYNAMIC_LOWEST), highest = _mm512_set1_epi32(0x3f80);
    __m512i bucket = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_castps_si512(x), 1), 17), codes;

    bucket = _mm512_sub_epi32(_mm512_min_epi32(_mm512_max_epi32(bucket, lowest), highest), lowest);
    bucket = _mm512_mask_add_epi32(bucket, vf_less(x, vf_zero()), bucket, _mm512_set1_epi32((int)sizeof map->lower[0]));
    codes = _mm512_and_si512(_mm512_i32gather_epi32(bucket, map->lower, 1), _mm512_set1_epi32(0xff));
    return _mm512_mask_add_epi32(codes, vf_less(vf_lookup(map->middle, codes), x), codes, _mm512_set1_epi32(1));
#else
    const __m256i lowest = _mm256_set1_epi32(TT_DYNAMIC_LOWEST), highest = _mm256_set1_epi32(0x3f80);
    __m256i bucket = _mm256_srli_epi32(_mm256_slli_epi32(_mm256_castps_si256(x), 1), 17), codes;
    __m256i negative = _mm256_and_si256(vf_less(x, vf_zero()), _mm256_set1_epi32((int)sizeof map->lower[0]));

    bucket = _mm256_sub_epi32(_mm256_min_epi32(_mm256_max_epi32(bucket, lowest), highest), lowest);
    codes = _mm256_i32gather_epi32((const int *)(const void *)map->lower, _mm256_add_epi32(bucket, negative), 1);
    codes = _mm256_and_si256(codes, _mm256_set1_epi32(0xff));
    return _mm256_sub_epi32(codes, vf_less(vf_lookup(map->middle, codes), x)); /* a true lane is -1 */
#endif
}

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

VF_INLINE vw vw_add(vw a, vw b)
{
    return VW(add_epi64)(a, b);
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
    return VW(sll_epi64)(a, _mm_cvtsi32_si128(n));
}

VF_INLINE vw vw_right(vw a, int n)
{
    return VW(srl_epi64)(a, _mm_cvtsi32_si128(n));
}

VF_INLINE vw vw_mul_low(vw a, vw b)
{
    return VW(mul_epu32)(a, b);
}

VF_INLINE vd vd_zero(void)
{
    return (vd){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

VF_INLINE vd vd_add_squares(vd sum, const float *x, int64_t n)
{
    __m128 first, second;
    __m256d a, b;

    if (n >= 8) {
        first = _mm_loadu_ps(x);
        second = _mm_loadu_ps(x + 4);
    } else {
        __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256 eight = _mm256_maskload_ps(x, mask);

        first = _mm256_castps256_ps128(eight);
        second = _mm256_extractf128_ps(eight, 1);
    }
    a = _mm256_cvtps_pd(first);
    b = _mm256_cvtps_pd(second);
    return (vd){_mm256_fmadd_pd(a, a, sum.low), _mm256_fmadd_pd(b, b, sum.high)};
}

VF_INLINE double vd_sum(vd a)
{
    __m256d four = _mm256_add_pd(a.low, a.high);
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));

    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#endif
