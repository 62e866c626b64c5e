/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_ELEMENTARY_H
#define TT_MATH_ELEMENTARY_H

/**
 * Elementary functions for every number that affects a training curve. The last bits of a C library's functions depend
 * on its version, and on whether the processor has fused multiply-adds. These functions use only additions,
 * multiplications, divisions and shifts of the exponent, so they give the same bits wherever double is the IEEE 754
 * type. Kernels use their own exponential (vector_math.h, vector/simd.h).
 */

/** e^x, at most 1 ulp off, even where the result is denormal. */
double tt_exp(double x);

/** ln x, at most 1 ulp off; -inf for 0, NaN for negative x. */
double tt_log(double x);

/** x^y for x >= 0, at most 0.51 ulp off where the result is normal. Takes a microsecond. */
double tt_pow(double x, double y);

/**
 * For |x| below 1.6 million, at most 1.1 ulp off. For larger |x|, up to 2^50, the error is as if the argument were half
 * an ulp off.
 */
double tt_sin(double x);
double tt_cos(double x);

/** 1 - erf(x) for x >= 0, at most 0.51 ulp plus 1e-29 off. Takes some microseconds. */
double tt_erfc(double x);

#endif
