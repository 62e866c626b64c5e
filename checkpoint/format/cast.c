/* SPDX-License-Identifier: MIT
 *
 * Conversions between the floating-point types in which weights are stored.
 */
#include "checkpoint/format/cast.h"

#include <string.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/math/bf16.h"

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 0x3ff;

    if (exponent == 31)
        return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) /* zero or subnormal: fraction * 2^-24, exact in float */
        return from_bits(sign | to_bits((float)fraction * 0x1p-24f));
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t float_to_half(float value)
{
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu, rounded;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more: becomes infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) /* subnormal: adding 0.5 leaves the rounded fraction in the low bits */
        return (uint16_t)(sign | (to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f)));
    rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

static bool is_float(enum tt_dtype dtype)
{
    return dtype == TT_F32 || dtype == TT_BF16 || dtype == TT_F16;
}

bool tt_cast_known(enum tt_dtype to, enum tt_dtype from)
{
    return to == from ? tt_dtype_size(to) > 0 : is_float(to) && is_float(from);
}

static float load(enum tt_dtype dtype, const void *data, int64_t i)
{
    const uint16_t *half = data;

    if (dtype == TT_F32)
        return ((const float *)data)[i];
    return dtype == TT_BF16 ? tt_bf16_to_float(half[i]) : half_to_float(half[i]);
}

void tt_cast(enum tt_dtype to, void *to_data, enum tt_dtype from, const void *from_data, int64_t n)
{
    uint16_t *half = to_data;

    if (to == from) {
        memcpy(to_data, from_data, (size_t)n * tt_dtype_size(to));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float value = load(from, from_data, i);

        if (to == TT_F32)
            ((float *)to_data)[i] = value;
        else
            half[i] = to == TT_BF16 ? tt_bf16_from_float(value) : float_to_half(value);
    }
}

bool tt_cast_has_value(enum tt_dtype dtype)
{
    return tt_text_is_one_of(tt_dtype_name(dtype), "F32|BF16|F16|F64|I64|U64|I32|U32|I16|U16|I8|U8|BOOL");
}

double tt_cast_value(enum tt_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case TT_F64:
        return ((const double *)data)[i];
    case TT_I64:
        return (double)((const int64_t *)data)[i];
    case TT_U64:
        return (double)((const uint64_t *)data)[i];
    case TT_I32:
        return (double)((const int32_t *)data)[i];
    case TT_U32:
        return (double)((const uint32_t *)data)[i];
    case TT_I16:
        return (double)((const int16_t *)data)[i];
    case TT_U16:
        return (double)((const uint16_t *)data)[i];
    case TT_I8:
        return (double)((const int8_t *)data)[i];
    case TT_U8:
    case TT_BOOL:
        return (double)((const uint8_t *)data)[i];
    default:
        return (double)load(dtype, data, i);
    }
}

int tt_cast_fail(const char *name, const char *done, enum tt_dtype dtype)
{
    return tt_fail(TT_EDATA, "tensor '%s' is %s, which cannot be %s%s", name, tt_dtype_name(dtype), done,
                   tt_dtype_size(dtype) ? ""
                                        : "\nhelp: titan only inspects and verifies types of less than a byte; unpack "
                                          "or dequantize the tensor first");
}
