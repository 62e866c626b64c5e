/* SPDX-License-Identifier: MIT
 *
 * Method: reduce the argument to an interval around 0 (Cody & Waite 1980), sum the Taylor series there in double, and
 * carry the rounding error of the reduction along. tt_pow and tt_erfc compute in pairs of doubles (Dekker 1971), which
 * hold about 106 bits.
 */
#include "core/math/elementary.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static double nearest_integer(double x) /* |x| < 2^51 */
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

/* 2^k for -1022 <= k <= 1023. */
static double power_of_two(int k)
{
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x 2^k, rounded once: a result is denormal only after the last factor. */
static double scaled(double x, int k)
{
    if (k > 1023)
        return x * power_of_two(1023) * power_of_two(k - 1023);
    if (k < -1022)
        return x * power_of_two(k + 1022) * power_of_two(-1022);
    return x * power_of_two(k);
}

/* x = m 2^k with sqrt(1/2) <= m < sqrt(2), for finite x > 0. */
static double split(double x, int *ret_k)
{
    uint64_t bits;
    int k = 0;

    if (x < DBL_MIN) {
        x *= 0x1p54;
        k = -54;
    }
    memcpy(&bits, &x, sizeof bits);
    k += (int)(bits >> 52) - 1023;
    bits = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1023) << 52;
    memcpy(&x, &bits, sizeof x);
    if (x >= 0x1.6a09e667f3bcdp+0) {
        x *= 0.5;
        k++;
    }
    *ret_k = k;
    return x;
}

/* The sum of coefficients[i] x^i. */
static double polynomial(const double *coefficients, int n, double x)
{
    double sum = coefficients[n - 1];

    for (int i = n - 2; i >= 0; i--)
        sum = sum * x + coefficients[i];
    return sum;
}
#define POLYNOMIAL(coefficients, x) polynomial(coefficients, sizeof(coefficients) / sizeof *(coefficients), x)

/* ln 2 in two parts; the first has 32 bits, so that its product with an exponent is exact. */
static const double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;

/* ln(1 + f) = f - f^2 / 2 + s (f^2 / 2 + r) with s = f / (2 + f), r = 2 s^2 / 3 + 2 s^4 / 5 + ... */
double tt_log(double x)
{
    static const double series[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                                    2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
    double f, s, r, half_square;
    int k;

    if (!(x > 0.0) || x > DBL_MAX)
        return x == 0.0 ? -INFINITY : x > 0.0 ? x : NAN;
    f = split(x, &k) - 1.0;
    s = f / (2.0 + f);
    r = s * s * POLYNOMIAL(series, s * s);
    half_square = 0.5 * f * f;
    return (double)k * ln2_high - ((half_square - (s * (half_square + r) + (double)k * ln2_low)) - f);
}

double tt_exp(double x)
{
    static const double series[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                                    1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
    double k, high, low, r;

    if (!(x < 710.0))
        return x > 0.0 ? INFINITY : x; /* NaN */
    if (x < -746.0)
        return 0.0;
    k = nearest_integer(x * 0x1.71547652b82fep+0);
    high = x - k * ln2_high;
    low = k * ln2_low;
    r = high - low;
    low = (high - r) - low;
    return scaled(1.0 + (r + (low + r * r * POLYNOMIAL(series, r))), (int)k);
}

/* x = n pi / 2 + r + low with |r| <= pi / 4; the first two parts of pi / 2 have 33 bits. Returns r. */
static double reduced(double x, int64_t *ret_n, double *ret_low)
{
    double n = nearest_integer(x * 0x1.45f306dc9c883p-1);
    double high = x - n * 0x1.921fb544p+0, middle = n * 0x1.0b4611a6p-34, r = high - middle;
    double left = ((high - r) - middle) - n * 0x1.3198a2e037073p-69;

    *ret_n = (int64_t)n;
    *ret_low = (r - (r + left)) + left;
    return r + left;
}

static double sin_near_0(double r, double low)
{
    static const double series[] = {-1.0 / 6,        1.0 / 120,        -1.0 / 5040,         1.0 / 362880,
                                    -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368e3, 1.0 / 355687428096e3};
    double z = r * r;

    return r + (r * z * POLYNOMIAL(series, z) + low * (1.0 - 0.5 * z));
}

static double cos_near_0(double r, double low)
{
    static const double series[] = {1.0 / 24,        -1.0 / 720,         1.0 / 40320,         -1.0 / 3628800,
                                    1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888e3, -1.0 / 6402373705728e3};
    double z = r * r, half = 0.5 * z, most = 1.0 - half;

    return most + (((1.0 - most) - half) + (z * z * POLYNOMIAL(series, z) - r * low));
}

double tt_sin(double x)
{
    double low, r;
    int64_t n;

    if (!(fabs(x) <= 0x1p50))
        return NAN;
    r = reduced(x, &n, &low);
    r = n & 1 ? cos_near_0(r, low) : sin_near_0(r, low);
    return n & 2 ? -r : r;
}

double tt_cos(double x)
{
    double low, r;
    int64_t n;

    if (!(fabs(x) <= 0x1p50))
        return NAN;
    r = reduced(x, &n, &low);
    r = n & 1 ? sin_near_0(r, low) : cos_near_0(r, low);
    return (n + 1) & 2 ? -r : r;
}

/* --- pairs of doubles: high + low, |low| <= ulp(high) / 2 --- */

struct pair {
    double high, low;
};

static struct pair sum_of(double a, double b)
{
    double sum = a + b, back = sum - a;

    return (struct pair){sum, (a - (sum - back)) + (b - back)};
}

static struct pair product_of(double a, double b)
{
    double large_a = a * 0x1.0000002p27, large_b = b * 0x1.0000002p27;
    double a_high = large_a - (large_a - a), b_high = large_b - (large_b - b);
    double a_low = a - a_high, b_low = b - b_high, product = a * b;

    return (struct pair){product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

static struct pair add(struct pair a, struct pair b)
{
    struct pair sum = sum_of(a.high, b.high);

    return sum_of(sum.high, sum.low + (a.low + b.low));
}

static struct pair multiply(struct pair a, struct pair b)
{
    struct pair product = product_of(a.high, b.high);

    return sum_of(product.high, product.low + (a.high * b.low + a.low * b.high));
}

static struct pair divide(struct pair a, double b)
{
    double quotient = a.high / b;
    struct pair back = product_of(quotient, b);

    return sum_of(quotient, ((a.high - back.high) - back.low + a.low) / b);
}

static const struct pair one = {1.0, 0.0}, ln2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};

/* ln x = k ln 2 + 2 s (1 + s^2 / 3 + s^4 / 5 + ...), for finite x > 0 */
static struct pair log_pair(double x)
{
    enum { TERMS = 24 };
    int k;
    double f = split(x, &k) - 1.0;
    struct pair below = sum_of(2.0, f), s = divide((struct pair){f, 0.0}, below.high), square, sum;

    s = sum_of(s.high, s.low - s.high * below.low / below.high);
    square = multiply(s, s);
    sum = divide(one, 2.0 * TERMS + 1.0);
    for (int i = TERMS - 1; i >= 0; i--)
        sum = add(multiply(sum, square), divide(one, 2.0 * i + 1.0));
    sum = multiply(sum, s);
    return add(multiply((struct pair){k, 0.0}, ln2), add(sum, sum));
}

/* The exponential as a pair that is still to be multiplied by 2^k; |x| < 1100. */
static struct pair exp_pair(struct pair x, int *ret_k)
{
    enum { TERMS = 28 };
    double k = nearest_integer(x.high * 0x1.71547652b82fep+0);
    struct pair r = add(x, multiply((struct pair){-k, 0.0}, ln2)), sum = one;

    for (int i = TERMS; i > 0; i--)
        sum = add(divide(multiply(sum, r), i), one);
    *ret_k = (int)k;
    return sum;
}

double tt_pow(double x, double y)
{
    struct pair power;
    int k;

    if (y == 0.0 || x == 1.0)
        return 1.0;
    if (x == 0.0 || !(x <= DBL_MAX) || !(fabs(y) <= 0x1p60))
        return x == 0.0 ? (y > 0.0 ? 0.0 : INFINITY) : NAN;
    power = multiply(log_pair(x), (struct pair){y, 0.0});
    if (power.high > 710.0)
        return INFINITY;
    if (power.high < -746.0)
        return 0.0;
    power = exp_pair(power, &k);
    return scaled(power.high + power.low, k);
}

/* erf(x) = 2 / sqrt(pi) e^(-x^2) (x + 2 x^3 / 3 + 4 x^5 / 15 + ...), whose terms are positive */
double tt_erfc(double x)
{
    static const struct pair factor = {0x1.20dd750429b6dp+0, 0x1.1ae3a914fed80p-56};
    struct pair square = product_of(x, x), term = {x, 0.0}, sum = term;
    int k;

    if (!(x <= 8.0))
        return x > 8.0 ? 0.0 : x;
    for (int n = 3; term.high > sum.high * 0x1p-110; n += 2) {
        term = divide(multiply(term, add(square, square)), (double)n);
        sum = add(sum, term);
    }
    square = exp_pair((struct pair){-square.high, -square.low}, &k);
    sum = multiply(multiply(sum, factor), square);
    sum = add(one, (struct pair){-scaled(sum.high, k), -scaled(sum.low, k)});
    return sum.high + sum.low;
}
