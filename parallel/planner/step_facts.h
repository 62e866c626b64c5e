/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_STEP_FACTS_H
#define TT_PARALLEL_PLANNER_STEP_FACTS_H

#include "parallel/fsdp/usage.h"
#include "parallel/planner/cost.h"

/** What does not depend on how a step is planned: seconds and bytes by position. */
struct tt_step_facts {
    const struct tt_usage *usage; /* not owned */
    double *node_sec;             /* [n_positions] predicted, of its node */
    double *begin_sec;            /* [n_positions + 1] time at which a position begins if nothing waits */
    int64_t *grad_bytes;          /* [n_positions] bytes of whole gradients that begin to live there */
    int64_t *other_bytes;         /* [n_positions] bytes of transient memory that is not for exchange */
    int64_t *param_bytes;         /* [param] bytes when gathered; 0 if it is read from its shard */
    int64_t *unit_bytes;          /* [unit] sum over its parameters */
    int64_t *unit_grad_bytes;     /* [unit] bytes of its whole gradients; 0 if they are written where they are summed */
};

/**
 * Computes the facts. Sizes of collectives are those that lowering gives.
 *   eager  the eager engine's program of the same order; gives other_bytes
 * The caller's (tt_step_facts_release).
 */
void tt_step_facts_make(const struct tt_usage *usage, const struct tt_lowering *lowering,
                        const struct tt_machine *machine, const struct tt_program *eager,
                        struct tt_step_facts *ret_facts);
void tt_step_facts_release(struct tt_step_facts *facts);

/** The bytes for exchange at the instruction at which a program needs most memory. */
int64_t tt_program_exchanged_bytes(const struct tt_program *program);

#endif
