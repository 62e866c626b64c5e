/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_TANH_H
#define TT_CORE_KERNELS_VECTOR_TANH_H

#include "core/kernels/vector/simd.h"

/**
 * tanh, at most 3 ulp off; NaN for NaN. Kernels that cap scores use it: cap tanh(s / cap).
 *
 * Method: x P(x^2) / Q(x^2) with the polynomials of degree 4 that minimise the largest relative error on [-9, 9]
 * (2.1e-8; Lawson's weighted least squares); beyond, tanh is 1 to the last bit.
 */
VF_INLINE vf vf_tanh(vf x)
{
    const vf one = vf_set(1.0F), end = vf_set(9.0F), begin = vf_set(-9.0F);
    vf z, p = vf_set(0x1.c9a33ap-27F), q = vf_set(0x1.a0b804p-21F);

    x = vf_max(begin, vf_min(end, x)); /* in this order a NaN remains NaN */
    z = vf_mul(x, x);
    p = vf_fma(p, z, vf_set(0x1.59552cp-16F));
    p = vf_fma(p, z, vf_set(0x1.c9f84p-9F));
    p = vf_fma(p, z, vf_set(0x1.12043ep-3F));
    p = vf_fma(p, z, one);
    q = vf_fma(q, z, vf_set(0x1.5841bap-12F));
    q = vf_fma(q, z, vf_set(0x1.a7df1ap-6F));
    q = vf_fma(q, z, vf_set(0x1.de5768p-2F));
    q = vf_fma(q, z, one);
    return vf_max(vf_set(-1.0F), vf_min(one, vf_div(vf_mul(x, p), q)));
}

#endif
