/* SPDX-License-Identifier: MIT */
#ifndef TT_STEP_MIXED_H
#define TT_STEP_MIXED_H

#include <stdint.h>

/**
 * Mixed precision: the conversions around a collective whose payload is bfloat16. The rows of purposes
 * (core/program/instr/params.c, grads.c) have the device run them as the step ops of mixed.c.
 *
 *   parameters   The shards stay float32. Gathered parameters are the shards rounded to bfloat16 (to nearest, ties to
 *                even), on one rank too, and the graph computes in bfloat16: so are activations and their gradients;
 *                statistics, sums and the gradients of parameters are float32. Shards that are bfloat16 themselves
 *                (tt_lowering.shard_dtype) are gathered as they are, and used where they are if a rank has all of a
 *                unit.
 *   gradients    Every microbatch's gradient on every rank is rounded, then all of them are added in float32 in the
 *                order of the tree. A sum is never rounded, so the bits do not depend on the layout: partial sums
 *                cannot travel, and ranks exchange their blocks directly (the same bytes, more messages). The sum over
 *                replicas is of sums and travels as float32.
 *
 * A buffer of n floats holds n gradients of bfloat16 in its upper half while they travel, and turns into them where it
 * is: no memory beyond that of float32.
 */

/** Where the n bfloat16 of a buffer of n floats lie. */
static inline char *tt_mixed_half(void *whole, int64_t n)
{
    return (char *)whole + n * (int64_t)sizeof(uint16_t);
}

#endif
