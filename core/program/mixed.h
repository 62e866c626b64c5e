/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_MIXED_H
#define TT_PROGRAM_MIXED_H

#include <stdint.h>

#include "core/os/team.h"

/**
 * Mixed precision: the conversions around a collective whose payload is bfloat16. The rows of purposes call them
 * (instr/params.c, instr/grads.c).
 *
 *   parameters   The shards stay float32. Gathered parameters are the shards rounded to bfloat16 (to nearest, ties to
 *                even), on one rank too, and used as float32 numbers.
 *   gradients    Every microbatch's gradient on every rank is rounded, then all of them are added in float32 in the
 *                order of the tree. A sum is never rounded, so the bits do not depend on the layout: partial sums
 *                cannot travel, and ranks exchange their blocks directly (the same bytes, more messages). The sum over
 *                replicas is of sums and travels as float32.
 *
 * A buffer of n floats holds n bfloat16 in its upper half while they travel, and turns into floats, or from floats,
 * where it is: no memory beyond that of float32.
 */

/** Where the n bfloat16 of a buffer of n floats lie. */
static inline char *tt_mixed_half(void *whole, int64_t n)
{
    return (char *)whole + n * (int64_t)sizeof(uint16_t);
}

/** Rounds n floats to what bfloat16 holds; they stay floats, where they are. */
void tt_mixed_round_here(struct tt_team *team, float *data, int64_t n);

/** Rounds n floats into bfloat16 elsewhere. */
void tt_mixed_round(struct tt_team *team, const float *from, int64_t n, uint16_t *to);

/** Turns n floats into n bfloat16 in the upper half, and back. */
void tt_mixed_narrow(struct tt_team *team, float *whole, int64_t n);
void tt_mixed_widen(struct tt_team *team, float *whole, int64_t n);

/** sum[i] = the tree over n_leaves arrays of n bfloat16, one after another, widened. */
void tt_mixed_fold(struct tt_team *team, const uint16_t *leaves, int64_t n_leaves, int64_t stride, int64_t n,
                   float *sum);

#endif
