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

/* --- random numbers --- */

/*
 * Philox4x32-10: numbers index, index + 1, ... of a stream. Each lane holds one of the four 32-bit words of a counter
 * in its lower half; the upper half does not matter, since products read only lower halves.
 */
VF_INLINE vw philox(uint64_t seed, uint64_t stream, uint64_t index)
{
    const vw multiplier0 = vw_set(0xd2511f53), multiplier1 = vw_set(0xcd9e8d57);
    vw c0 = vw_add(vw_set(index), vw_count()), c1 = vw_right(c0, 32);
    vw c2 = vw_set(stream), c3 = vw_right(c2, 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9U, k1 += 0xbb67ae85U) {
        vw p0 = vw_mul_low(multiplier0, c0), p1 = vw_mul_low(multiplier1, c2);

        c0 = vw_xor(vw_xor(vw_right(p1, 32), c1), vw_set(k0));
        c2 = vw_xor(vw_xor(vw_right(p0, 32), c3), vw_set(k1));
        c1 = p1;
        c3 = p0;
    }
    return vw_or(vw_and(c0, vw_set(0xffffffff)), vw_left(c1, 32));
}

#endif
