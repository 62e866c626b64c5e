/* SPDX-License-Identifier: MIT
 *
 * Kernels over flat shards in AVX2 or AVX-512: the optimizer, sums of squares, bfloat16. The bits are those of the
 * portable kernels: only products that are exact in double are fused.
 */
#include "core/kernels/kernels.h"
#include "core/kernels/vector/element.h"

/**
 * Floats rounded to bfloat16 at random, with the bits of tt_rng_bits (core/math/rng.h) and of
 * tt_bf16_from_float_random (core/math/bf16.h). The random bits,
 * 64 for each element, take two vectors, one for each half of the elements.
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

/* The numbers of a step in vectors. */
struct numbers {
    vf clip, decay, weight_decay, mix1, beta2, mix2, step_size, root_correction2, eps;
};

VF_INLINE struct numbers spread(const struct tt_adamw_numbers *n)
{
    return (struct numbers){vf_set(n->clip),  vf_set(n->decay), vf_set(n->weight_decay), vf_set(n->mix1),
                            vf_set(n->beta2), vf_set(n->mix2),  vf_set(n->step_size),    vf_set(n->root_correction2),
                            vf_set(n->eps)};
}

/* A parameter and its moments. */
struct element_state {
    vf p, m, v;
};

VF_INLINE struct element_state updated(const struct numbers *k, bool decoupled, struct element_state s, vf grad)
{
    vf g = vf_mul(grad, k->clip), root;

    if (decoupled) {
        s.p = vf_mul(s.p, k->decay);
    } else {
        g = vf_add(g, vf_mul(k->weight_decay, s.p));
    }
    s.m = vf_add(s.m, vf_mul(k->mix1, vf_sub(g, s.m)));
    s.v = vf_add(vf_mul(s.v, k->beta2), vf_mul(vf_mul(k->mix2, g), g));
    root = vf_add(vf_div(vf_sqrt(s.v), k->root_correction2), k->eps);
    s.p = vf_sub(s.p, vf_div(vf_mul(k->step_size, s.m), root));
    return s;
}

/* n elements, VF_LANES or fewer. */
VF_INLINE void update(const struct numbers *k, bool decoupled, float *param, const float *grad, float *exp_avg,
                      float *exp_avg_sq, int64_t n)
{
    struct element_state s = {vf_load_n(param, n), vf_load_n(exp_avg, n), vf_load_n(exp_avg_sq, n)};

    s = updated(k, decoupled, s, vf_load_n(grad, n));
    vf_store_n(exp_avg, s.m, n);
    vf_store_n(exp_avg_sq, s.v, n);
    vf_store_n(param, s.p, n);
}

VF_INLINE void update_range(const struct tt_adamw_numbers *numbers, bool decoupled, float *param, const float *grad,
                            float *exp_avg, float *exp_avg_sq, int64_t n)
{
    const struct numbers k = spread(numbers);
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        update(&k, decoupled, param + i, grad + i, exp_avg + i, exp_avg_sq + i, VF_LANES);
    if (i < n)
        update(&k, decoupled, param + i, grad + i, exp_avg + i, exp_avg_sq + i, n - i);
}

void TT_ISA(tt_adamw)(const struct tt_adamw_numbers *numbers, float *param, const float *grad, float *exp_avg,
                      float *exp_avg_sq, int64_t n)
{
    if (numbers->decoupled) {
        update_range(numbers, true, param, grad, exp_avg, exp_avg_sq, n);
    } else {
        update_range(numbers, false, param, grad, exp_avg, exp_avg_sq, n);
    }
}

VF_INLINE void update_range_bf16(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                                 bool decoupled, tt_bf16 *param, const float *grad, tt_bf16 *exp_avg,
                                 tt_bf16 *exp_avg_sq, int64_t n)
{
    const struct numbers k = spread(numbers);

    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t left = n - i;
        struct random_words random = random_words(rounding->seed, rounding->stream, rounding->first + (uint64_t)i);
        struct element_state s = {bf16_load_n(param + i, left), bf16_load_n(exp_avg + i, left),
                                  bf16_load_n(exp_avg_sq + i, left)};

        s = updated(&k, decoupled, s, vf_load_n(grad + i, left));
        vh_store_n(param + i, rounded_at_random(s.p, random_field(&random, 0)), left);
        vh_store_n(exp_avg + i, rounded_at_random(s.m, random_field(&random, 1)), left);
        vh_store_n(exp_avg_sq + i, rounded_at_random(s.v, random_field(&random, 2)), left);
    }
}

void TT_ISA(tt_adamw_bf16)(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                           tt_bf16 *param, const float *grad, tt_bf16 *exp_avg, tt_bf16 *exp_avg_sq, int64_t n)
{
    if (numbers->decoupled) {
        update_range_bf16(numbers, rounding, true, param, grad, exp_avg, exp_avg_sq, n);
    } else {
        update_range_bf16(numbers, rounding, false, param, grad, exp_avg, exp_avg_sq, n);
    }
}

/* Element i belongs to lane i % 8. The square of a float is exact in double, so fusing changes nothing. */
void TT_ISA(tt_squares)(double *sum, const float *x, int64_t n)
{
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    __m128d two;

    for (int64_t i = 0; i < n; i += 8) {
        int64_t left = n - i;
        __m128 first = _mm_setzero_ps(), second = _mm_setzero_ps();
        __m256d a, b;

        if (left >= 8) {
            first = _mm_loadu_ps(x + i);
            second = _mm_loadu_ps(x + i + 4);
        } else {
            __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            __m256 eight = _mm256_maskload_ps(x + i, mask);

            first = _mm256_castps256_ps128(eight);
            second = _mm256_extractf128_ps(eight, 1);
        }
        a = _mm256_cvtps_pd(first);
        b = _mm256_cvtps_pd(second);
        low = _mm256_fmadd_pd(a, a, low);
        high = _mm256_fmadd_pd(b, b, high);
    }
    low = _mm256_add_pd(low, high);
    two = _mm_add_pd(_mm256_castpd256_pd128(low), _mm256_extractf128_pd(low, 1));
    *sum = _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

void TT_ISA(tt_bf16_round)(tt_bf16 *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES)
        bf16_store_n(to + i, vf_load_n(from + i, n - i), n - i);
}

void TT_ISA(tt_bf16_widen)(float *to, const tt_bf16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store_n(to + i, bf16_load_n(from + i, n - i), n - i);
}
