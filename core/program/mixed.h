/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_MIXED_H
#define TT_PROGRAM_MIXED_H

#include "core/os/team.h"
#include "core/program/executor.h"

/**
 * Mixed precision: what the executor does around a collective whose payload is bfloat16. Nothing happens here when the
 * program's type is TT_F32.
 *
 *   parameters   The shards stay float32. Gathered parameters are the shards rounded to bfloat16 (to nearest, ties to
 *                even), on one rank too, and used as float32 numbers.
 *   gradients    Every microbatch's gradient on every rank is rounded, then all of them are added in float32 in the order
 *                of the tree. A sum is never rounded, so the bits do not depend on the layout: partial sums cannot
 *                travel, and ranks exchange their blocks directly (the same bytes, more messages). The sum over
 *                replicas is of sums and travels as float32.
 *
 * A buffer of n floats holds n bfloat16 in its upper half while they travel, and turns into floats, or from floats, where
 * it is: no memory beyond that of float32.
 */

/** Before the exchange of a TT_UNSHARD, and after that of any unshard; `address` are the operands of `instr`. */
void tt_mixed_unshard_begin(const struct tt_program *program, const struct tt_instr *instr, void *const *address,
                            const struct tt_state *state, struct tt_team *team);
void tt_mixed_unshard_end(const struct tt_program *program, const struct tt_instr *instr, void *const *address,
                          struct tt_team *team);

/**
 * Copies gathered parameters, `bytes` of float32, to where they wait for backward, in the program's type: what was
 * gathered in bfloat16 loses nothing. Returns the bytes written.
 */
int64_t tt_mixed_keep(const struct tt_program *program, const void *whole, int64_t bytes, void *kept,
                      struct tt_team *team);

/** Before and after the exchange of a TT_REDUCE. With one shard there is none, and no end. */
void tt_mixed_reduce_begin(const struct tt_program *program, const struct tt_instr *instr, void *const *address,
                           struct tt_team *team);
void tt_mixed_reduce_end(const struct tt_program *program, const struct tt_instr *instr, void *const *address,
                         struct tt_team *team);

/** Where the n bfloat16 of a buffer of n floats lie. */
static inline char *tt_mixed_half(void *whole, int64_t n)
{
    return (char *)whole + n * (int64_t)sizeof(uint16_t);
}

/* The conversions by themselves. */

/** Rounds floats elsewhere. */
void tt_mixed_round(struct tt_team *team, const float *from, int64_t n, uint16_t *to);

/** Turns n floats into n bfloat16 in the upper half, and back. */
void tt_mixed_narrow(struct tt_team *team, float *whole, int64_t n);
void tt_mixed_widen(struct tt_team *team, float *whole, int64_t n);

/** sum[i] = the tree over n_leaves arrays of n bfloat16, one after another, widened. */
void tt_mixed_fold(struct tt_team *team, const uint16_t *leaves, int64_t n_leaves, int64_t stride, int64_t n,
                   float *sum);

#endif
