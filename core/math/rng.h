/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_RNG_H
#define TT_MATH_RNG_H

#include <stdint.h>

/**
 * Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): the i-th number of a stream is a pure function of
 * (seed, stream, i), so a parameter element has the same value on every mesh, whichever rank computes it.
 */
struct tt_rng {
    uint64_t seed;
    uint64_t stream; /* for parameters: the hash of the name */
};

/** The stream called `name`, for instance the name of a parameter. */
struct tt_rng tt_rng_make(uint64_t seed, const char *name);

/** The seed of one step's streams, in a run with `seed`. */
uint64_t tt_rng_seed_of_step(uint64_t seed, int64_t step);

/** 64 random bits. */
uint64_t tt_rng_bits(const struct tt_rng *rng, uint64_t index);

/** Uniform in the open interval (0, 1); 53 bits. */
double tt_rng_uniform(const struct tt_rng *rng, uint64_t index);

/** Standard normal by inversion, one uniform per value; cut > 0 truncates to [-cut, cut] (0: no cut). */
double tt_rng_normal(const struct tt_rng *rng, uint64_t index, double cut);

/** Writes the normal numbers with indices [first, first + n), multiplied by std. */
void tt_rng_normals(const struct tt_rng *rng, uint64_t first, int64_t n, double std, double cut, float *to);

/** Writes a random permutation of 0..n-1 into order (Fisher-Yates driven by the stream). */
void tt_rng_permutation(const struct tt_rng *rng, int64_t n, int64_t *order);

#endif
