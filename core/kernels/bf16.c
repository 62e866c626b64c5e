/* SPDX-License-Identifier: MIT
 *
 * bfloat16 in the portable kernels, for gathers and reduce-scatters (core/program/mixed.h). It is not an op.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"

static uint16_t to_bfloat16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffU) > 0x7f800000U) /* NaN stays NaN */
        return (uint16_t)(bits >> 16 | 0x40U);
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

void tt_bf16_round_generic(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = to_bfloat16(from[i]);
}

void tt_bf16_widen_generic(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;

        memcpy(&to[i], &bits, sizeof bits);
    }
}

/* By arithmetic in double: 8 digits of the mantissa, or fewer below the smallest normal number, 2^-126. */
void tt_bf16_round_ref(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = (double)from[i], unit;
        float rounded = from[i];
        uint32_t bits;

        if (isfinite(x) && x != 0.0) {
            unit = ldexp(1.0, (ilogb(x) < -126 ? -126 : ilogb(x)) - 7);
            rounded = (float)copysign(nearbyint(x / unit) * unit, x); /* ties to even; may be infinite */
        }
        memcpy(&bits, &rounded, sizeof bits);
        to[i] = (uint16_t)(bits >> 16 | (isnan(x) ? 0x40U : 0U));
    }
}

void tt_bf16_widen_ref(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int exponent = from[i] >> 7 & 0xff, digits = from[i] & 0x7f;
        double x = exponent ? ldexp(128.0 + digits, exponent - 134) : ldexp(digits, -133);

        if (exponent == 0xff)
            x = digits ? (double)NAN : (double)INFINITY;
        to[i] = (float)copysign(x, from[i] >> 15 ? -1.0 : 1.0);
    }
}
