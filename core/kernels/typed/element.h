/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_TYPED_ELEMENT_H
#define TT_CORE_KERNELS_TYPED_ELEMENT_H

#include <stdint.h>

#include "core/kernels/kernels.h"
#include "core/math/bf16.h"
#include "core/math/real.h"

/**
 * The sources of this folder are compiled once per element type: for float, and with TT_ELEMENT_BF16 for bfloat16. They
 * read and write arrays of `element` and compute in float, so a bfloat16 kernel gives the results of the float kernel
 * for the same values, each rounded once.
 */
#ifdef TT_ELEMENT_BF16

typedef tt_bf16 element;
#define TT_TYPED(name, variant) name##_bf16_##variant

static inline tt_real value_of(element x)
{
    return tt_bf16_to_float(x);
}

static inline element element_of(tt_real x)
{
    return tt_bf16_from_float(x);
}

#else

typedef tt_real element;
#ifdef TT_WIDE
#define TT_TYPED(name, variant) name##_f64_##variant
#else
#define TT_TYPED(name, variant) name##_##variant
#endif

static inline tt_real value_of(element x)
{
    return x;
}

static inline element element_of(tt_real x)
{
    return x;
}

#endif

#endif
