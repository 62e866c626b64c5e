/* SPDX-License-Identifier: MIT
 *
 * Kernels over flat shards in AVX2 or AVX-512: the optimizer, sums of squares, bfloat16. The bits are those of the
 * portable kernels: only products that are exact in double are fused.
 */
#include "core/kernels/x86/element.h"
#include "core/kernels/x86/random.h"
#include "core/kernels/x86/x86.h"

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
