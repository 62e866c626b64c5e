/* SPDX-License-Identifier: MIT
 *
 * The conversions between float and bfloat16. They are not ops.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"

void tt_bf16_round_generic(tt_bf16 *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = tt_bf16_from_float(from[i]);
}

void tt_bf16_widen_generic(float *to, const tt_bf16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = tt_bf16_to_float(from[i]);
}

/* By arithmetic in double: 8 digits of the mantissa, or fewer below the smallest normal number, 2^-126. */
void tt_bf16_round_ref(tt_bf16 *to, const float *from, int64_t n)
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
        to[i] = (tt_bf16)(bits >> 16 | (isnan(x) ? 0x40U : 0U));
    }
}

void tt_bf16_widen_ref(float *to, const tt_bf16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int exponent = from[i] >> 7 & 0xff, digits = from[i] & 0x7f;
        double x = exponent ? ldexp(128.0 + digits, exponent - 134) : ldexp(digits, -133);

        if (exponent == 0xff)
            x = digits ? (double)NAN : (double)INFINITY;
        to[i] = (float)copysign(x, from[i] >> 15 ? -1.0 : 1.0);
    }
}
