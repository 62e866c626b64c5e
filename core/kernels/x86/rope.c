/* SPDX-License-Identifier: MIT
 *
 * RoPE in AVX2 or AVX-512.
 */
#include <string.h>

#include "core/kernels/x86/element.h"
#include "core/kernels/x86/x86.h"

#if defined(__AVX512F__)

/* From (c0, s0, c1, s1, ...): each cosine twice, and each sine twice. */
VF_INLINE vf cosines(vf angles)
{
    return _mm512_moveldup_ps(angles);
}

VF_INLINE vf sines(vf angles)
{
    return _mm512_movehdup_ps(angles);
}

/* a c - b s and b c + a s for pairs (a, b). */
VF_INLINE vf rotated(vf pairs, vf c, vf s)
{
    return _mm512_fmaddsub_ps(pairs, c, _mm512_mul_ps(_mm512_permute_ps(pairs, 0xb1), s));
}

/* The cosines (odd 0) or sines (odd 1) of two vectors of angles. */
VF_INLINE vf every_other(vf low, vf high, int odd)
{
    __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);

    return _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(odd)), high);
}

#else

VF_INLINE vf cosines(vf angles)
{
    return _mm256_moveldup_ps(angles);
}

VF_INLINE vf sines(vf angles)
{
    return _mm256_movehdup_ps(angles);
}

VF_INLINE vf rotated(vf pairs, vf c, vf s)
{
    return _mm256_fmaddsub_ps(pairs, c, _mm256_mul_ps(_mm256_permute_ps(pairs, 0xb1), s));
}

VF_INLINE vf every_other(vf low, vf high, int odd)
{
    vf mixed = odd ? _mm256_shuffle_ps(low, high, 0xdd) : _mm256_shuffle_ps(low, high, 0x88);

    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}

#endif

VF_INLINE void rotate_pairs(element *y, const element *x, const float *angle, int64_t dim, vf sign)
{
    for (int64_t i = 0; i < dim; i += VF_LANES) {
        vf angles = vf_load_n(angle + i, dim - i);

        element_store_n(y + i, rotated(element_load_n(x + i, dim - i), cosines(angles), vf_mul(sign, sines(angles))),
                        dim - i);
    }
}

VF_INLINE void rotate_halves(element *y, const element *x, const float *angle, int64_t half, vf sign)
{
    for (int64_t i = 0; i < half; i += VF_LANES) {
        int64_t n = half - i;
        vf low = vf_load_n(angle + 2 * i, 2 * n), high = vf_zero(), c, s, a, b;

        if (2 * n > VF_LANES)
            high = vf_load_n(angle + 2 * i + VF_LANES, 2 * n - VF_LANES);
        c = every_other(low, high, 0);
        s = vf_mul(sign, every_other(low, high, 1));
        a = element_load_n(x + i, n);
        b = element_load_n(x + i + half, n);
        element_store_n(y + i, vf_fnma(b, s, vf_mul(a, c)), n);
        element_store_n(y + i + half, vf_fma(b, c, vf_mul(a, s)), n);
    }
}

void TT_TYPED(tt_rope)(element *y, const element *x, const float *table, const struct tt_rope_shape *shape,
                       int64_t first_row, int64_t rows)
{
    int64_t first = shape->unrotated, dim = shape->head_dim - first;
    vf sign = vf_set(shape->inverse ? -1.0F : 1.0F);

    for (int64_t r = first_row; r < first_row + rows; r++) {
        const float *angle = table + tt_rope_position(shape, r) * dim;

        for (int64_t head = 0; head < shape->heads; head++, x += shape->head_dim, y += shape->head_dim) {
            if (y != x && first > 0)
                memcpy(y, x, (size_t)first * sizeof *y);
            if (shape->rotate_half) {
                rotate_halves(y + first, x + first, angle, dim / 2, sign);
            } else {
                rotate_pairs(y + first, x + first, angle, dim, sign);
            }
        }
    }
}
