/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_EXACT_H
#define TT_MATH_EXACT_H

#include <stdint.h>

/**
 * Exact sums of doubles: a fixed-point number wide enough for every finite double, so that the result does not depend
 * on the order of the terms, and therefore not on ranks, shards, threads or accumulation. Used for the loss and the
 * gradient norm. (This is Kulisch's long accumulator, with 32-bit digits stored in 64 bits, so that carries can wait.)
 *
 * The digits are plain integers: a sum over ranks adds them element by element (after tt_exact_normalize).
 */
enum { TT_EXACT_DIGITS = 68, TT_EXACT_WORDS = TT_EXACT_DIGITS + 1 };

struct tt_exact {
    int64_t digit[TT_EXACT_DIGITS]; /* value = sum digit[i] * 2^(32 i - 1088) */
    int64_t nonfinite;              /* terms that were infinite or NaN; the sum is then NaN */
};

/** Adds one term. Normalize after at most 2^30 terms. */
void tt_exact_add(struct tt_exact *sum, double term);

/** sum += other. */
void tt_exact_merge(struct tt_exact *sum, const struct tt_exact *other);

/** Propagates the carries, so that all digits except the top one lie in [0, 2^32). Call it before summing over
 * ranks. */
void tt_exact_normalize(struct tt_exact *sum);

/** The nearest double (within one unit in the last place, the same for equal sums); NaN if a term was not finite. */
double tt_exact_value(const struct tt_exact *sum);

#endif
