/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_X86_BF16_H
#define TT_CORE_KERNELS_X86_BF16_H

/**
 * Pairs of bfloat16 for AVX512-BF16: two neighbours along the summed dimension, as 32 bits. vdpbf16ps adds the products
 * of 16 pairs to 16 floats. It takes denormal inputs as 0, makes denormal results 0, and rounds each sum in an order of
 * its own.
 */
#include "core/kernels/x86/simd.h"
#include "core/math/bf16.h"

typedef __m512i vp; /* 16 pairs */

enum { VP_LANES = 16 };

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

#endif
