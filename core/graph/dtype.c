/* SPDX-License-Identifier: MIT
 *
 * Element types: sizes, names, conversions of single values.
 */
#include "core/graph/dtype.h"

#include <math.h>
#include <string.h>

int64_t tt_dtype_bytes(enum tt_dtype dtype)
{
    static const int64_t size[] = {
#define X(name, text, bytes) bytes,
        TT_DTYPE_MAP(X)
#undef X
    };

    return size[dtype];
}

static const char *const names[] = {
#define X(name, text, bytes) text,
    TT_DTYPE_MAP(X)
#undef X
};

const char *tt_dtype_name(enum tt_dtype dtype)
{
    return names[dtype];
}

int tt_dtype_from_name(const char *name)
{
    for (int i = 0; i < TT_DTYPES; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

uint16_t tt_bf16_from_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float tt_bf16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, 4);
    return value;
}

float tt_f16_to_float(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float magnitude;

    if (exponent == 31)
        magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexpf((float)fraction, -24);
    else
        magnitude = ldexpf((float)(fraction + 1024), exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}
