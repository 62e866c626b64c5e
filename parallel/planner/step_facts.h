/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_STEP_FACTS_H
#define TT_PARALLEL_PLANNER_STEP_FACTS_H

#include "parallel/fsdp/usage.h"
#include "parallel/planner/cost.h"

/** What a step takes whichever way it is planned: seconds and bytes by position. */
struct tt_step_facts {
    const struct tt_usage *usage; /* not owned */
    double *node_sec;             /* [n_positions] of its node, predicted */
    double *begin_sec;            /* [n_positions + 1] of a position when nothing waits */
    int64_t *grad_bytes;          /* [n_positions] of whole gradients that begin to live there */
    int64_t *other_bytes;         /* [n_positions] transient memory beside what is exchanged */
    int64_t *param_bytes;         /* [param] gathered; 0 where it is read from its shard */
    int64_t *unit_bytes;          /* [unit] the same of its parameters together */
    int64_t *unit_grad_bytes;     /* [unit] its whole gradient; 0 where that is written where it is summed */
};

/**
 * What is gathered and reduced is what lowering makes of it.
 *   eager  the eager engine's program of the same order, for other_bytes
 * The caller's (tt_step_facts_release).
 */
void tt_step_facts_make(const struct tt_usage *usage, const struct tt_lowering *lowering,
                        const struct tt_machine *machine, const struct tt_program *eager,
                        struct tt_step_facts *ret_facts);
void tt_step_facts_release(struct tt_step_facts *facts);

/** Bytes for the sake of exchange where a program needs most memory. */
int64_t tt_program_exchanged_bytes(const struct tt_program *program);

#endif
