/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_BF16_H
#define TT_MATH_BF16_H

#include <stdint.h>
#include <string.h>

/** A bfloat16 in memory: the upper half of a float. */
typedef uint16_t tt_bf16;

/** The float of the same value. */
static inline float tt_bf16_to_float(tt_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/** The nearest bfloat16, ties to even; NaN stays NaN. */
static inline tt_bf16 tt_bf16_from_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (tt_bf16)(bits >> 16 | 0x40U);
    return (tt_bf16)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/**
 * One of the two bfloat16 around a value, chosen at random so that the mean over all random bits is the value: the
 * dropped bits plus `random` carry into the last bit that is kept. Values that bfloat16 can represent stay as they are.
 */
static inline tt_bf16 tt_bf16_from_float_random(float value, uint16_t random)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000U) == 0x7f800000U)
        return tt_bf16_from_float(value); /* infinite or NaN */
    return (tt_bf16)((bits + random) >> 16);
}

#endif
