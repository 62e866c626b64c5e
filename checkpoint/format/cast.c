/* SPDX-License-Identifier: MIT
 *
 * Conversions between the floating-point types in which weights are stored.
 */
#include "checkpoint/format/cast.h"

#include <string.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/math/bf16.h"
#include "core/math/f16.h"

static bool is_float(enum tt_dtype dtype)
{
    return dtype == TT_F32 || dtype == TT_BF16 || dtype == TT_F16;
}

bool tt_cast_known(enum tt_dtype to, enum tt_dtype from)
{
    return to == from ? tt_dtype_size(to) > 0 : (is_float(to) || to == TT_F64) && is_float(from);
}

static float load(enum tt_dtype dtype, const void *data, int64_t i)
{
    const uint16_t *half = data;

    if (dtype == TT_F32)
        return ((const float *)data)[i];
    return dtype == TT_BF16 ? tt_bf16_to_float(half[i]) : tt_f16_to_float(half[i]);
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

        if (to == TT_F64)
            ((double *)to_data)[i] = (double)value;
        else if (to == TT_F32)
            ((float *)to_data)[i] = value;
        else
            half[i] = to == TT_BF16 ? tt_bf16_from_float(value) : tt_f16_from_float(value);
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
