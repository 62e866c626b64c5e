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
VF_INLINE vf bf16_load(const tt_bf16 *x)
{
    return vh_widened(vh_load(x));
}

VF_INLINE void bf16_store(tt_bf16 *x, vf a)
{
    vh_store(x, vh_rounded(a));
}

VF_INLINE vf bf16_load_n(const tt_bf16 *x, int64_t n)
{
    return vh_widened(vh_load_n(x, n));
}

VF_INLINE void bf16_store_n(tt_bf16 *x, vf a, int64_t n)
{
    vh_store_n(x, vh_rounded(a), n);
}

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

/* Sixteen elements. */
VF_INLINE vs elements_load(const element *x)
{
    vs a;

    VS_EACH(i) a.part[i] = element_load(x + i * VF_LANES);
    return a;
}

VF_INLINE vs elements_load_n(const element *x, int64_t n)
{
    vs a;

    VS_EACH(i) a.part[i] = element_load_n(x + i * VF_LANES, n - i * VF_LANES);
    return a;
}

VF_INLINE void elements_store(element *x, vs a)
{
    VS_EACH(i) element_store(x + i * VF_LANES, a.part[i]);
}

VF_INLINE void elements_store_n(element *x, vs a, int64_t n)
{
    VS_EACH(i) element_store_n(x + i * VF_LANES, a.part[i], n - i * VF_LANES);
}

#endif
