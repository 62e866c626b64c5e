/* SPDX-License-Identifier: MIT
 *
 * The long accumulator. A double m * 2^e (m an integer of 53 bits) is added as at most three 32-bit digits.
 */
#include "core/math/exact.h"

#include <math.h>
#include <string.h>

enum { LOWEST_EXPONENT = -1088 }; /* a multiple of 32 below the smallest denormal's 2^-1074 */

void tt_exact_add(struct tt_exact *sum, double term)
{
    int exponent, shift, first;
    int64_t m;
    uint64_t magnitude;
    int64_t sign;

    if (!isfinite(term)) {
        sum->nonfinite++;
        return;
    }
    m = (int64_t)ldexp(frexp(term, &exponent), 53);
    if (m == 0)
        return;
    sign = m < 0 ? -1 : 1;
    magnitude = (uint64_t)(m < 0 ? -m : m);
    exponent = exponent - 53 - LOWEST_EXPONENT;
    if (exponent < 0) { /* a subnormal: the bits shifted out are 0 */
        magnitude >>= -exponent;
        exponent = 0;
    }
    first = exponent / 32;
    shift = exponent % 32;
    sum->digit[first] += sign * (int64_t)((magnitude << shift) & 0xffffffffu);
    sum->digit[first + 1] += sign * (int64_t)((magnitude >> (32 - shift)) & 0xffffffffu);
    sum->digit[first + 2] += sign * (int64_t)(shift ? magnitude >> 32 >> (32 - shift) : 0);
}

void tt_exact_merge(struct tt_exact *sum, const struct tt_exact *other)
{
    for (int i = 0; i < TT_EXACT_DIGITS; i++)
        sum->digit[i] += other->digit[i];
    sum->nonfinite += other->nonfinite;
}

void tt_exact_normalize(struct tt_exact *sum)
{
    int64_t carry = 0;

    for (int i = 0; i < TT_EXACT_DIGITS - 1; i++) {
        int64_t v = sum->digit[i] + carry;

        sum->digit[i] = (int64_t)((uint64_t)v & 0xffffffffu);
        carry = (v - sum->digit[i]) / ((int64_t)1 << 32);
    }
    sum->digit[TT_EXACT_DIGITS - 1] += carry;
}

double tt_exact_value(const struct tt_exact *sum)
{
    struct tt_exact s = *sum;
    double value = 0.0;
    int negative;

    if (s.nonfinite)
        return (double)NAN;
    tt_exact_normalize(&s);
    negative = s.digit[TT_EXACT_DIGITS - 1] < 0;
    if (negative) {
        for (int i = 0; i < TT_EXACT_DIGITS; i++)
            s.digit[i] = -s.digit[i];
        tt_exact_normalize(&s);
    }
    for (int i = TT_EXACT_DIGITS - 1; i >= 0; i--)
        value += ldexp((double)s.digit[i], 32 * i + LOWEST_EXPONENT);
    return negative ? -value : value;
}
