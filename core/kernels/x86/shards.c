/* SPDX-License-Identifier: MIT
 *
 * Kernels over flat shards in AVX2 or AVX-512: the optimizer, sums of squares, bfloat16. The bits are those of the
 * portable kernels: only products that are exact in double are fused.
 */
#include "core/kernels/x86/element.h"
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

/* n elements, VF_LANES or fewer. */
VF_INLINE void update(const struct numbers *k, bool decoupled, float *param, const float *grad, float *exp_avg,
                      float *exp_avg_sq, int64_t n)
{
    vf p = vf_load_n(param, n), g = vf_mul(vf_load_n(grad, n), k->clip);
    vf m = vf_load_n(exp_avg, n), v = vf_load_n(exp_avg_sq, n);

    if (decoupled) {
        p = vf_mul(p, k->decay);
    } else {
        g = vf_add(g, vf_mul(k->weight_decay, p));
    }
    m = vf_add(m, vf_mul(k->mix1, vf_sub(g, m)));
    v = vf_add(vf_mul(v, k->beta2), vf_mul(vf_mul(k->mix2, g), g));
    vf_store_n(exp_avg, m, n);
    vf_store_n(exp_avg_sq, v, n);
    v = vf_add(vf_div(vf_sqrt(v), k->root_correction2), k->eps);
    vf_store_n(param, vf_sub(p, vf_div(vf_mul(k->step_size, m), v)), n);
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
