/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_F16_H
#define TT_MATH_F16_H

#include <stdint.h>
#include <string.h>

/** float16, IEEE's binary16, as its bits. */

static inline float tt_float_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t tt_float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float tt_f16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 0x3ff;

    if (exponent == 31)
        return tt_float_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) /* zero or subnormal: fraction * 2^-24, exact in float */
        return tt_float_from_bits(sign | tt_float_bits((float)fraction * 0x1p-24f));
    return tt_float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/** Rounds to nearest even; NaN stays NaN. */
static inline uint16_t tt_f16_from_float(float value)
{
    uint32_t bits = tt_float_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu, rounded;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more: infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) /* subnormal: adding 0.5 leaves the rounded fraction in the low bits */
        return (uint16_t)(sign | (tt_float_bits(tt_float_from_bits(magnitude) + 0.5f) - tt_float_bits(0.5f)));
    rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

#endif
