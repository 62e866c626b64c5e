/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_PLANNER_H
#define TT_PARALLEL_PLANNER_PLANNER_H

#include "parallel/fsdp/usage.h"
#include "parallel/planner/cost.h"

/**
 * Chooses the program of the planned engine: makes candidates (parallel/planner/simple_fsdp.h), ranks them by predicted
 * time, and takes the first that keeps its target when it is lowered (parallel/planner/as_given.h).
 */
struct tt_planner {
    const struct tt_lowering *lowering; /* of the step; graph and layout in it */
    const struct tt_usage *usage;
    const struct tt_program *eager; /* the eager engine's program of the same order */
    const struct tt_machine *machine;
    int prefetch;         /* buckets ahead of the one in use */
    int64_t bucket_bytes; /* of whole parameters; 0: from the cost table */
    int64_t step_limit;   /* bytes that the transient memory of a step may take; INT64_MAX: no limit */
    const bool *reshard;  /* [n_units] free the unit between forward and backward */
    /*
     * Choose what to keep instead, so that the step fits step_limit and exchange holds up compute least; then
     * step_limit is the only limit of memory. Never slower than what is made of `reshard` without choice,
     * where that fits.
     */
    bool choose_reshard;
};

struct tt_planned {
    struct tt_program *program;
    bool *reshard; /* [n_units] what the program does */
};

/** The result is the caller's (tt_planned_release). */
int tt_planner_run(const struct tt_planner *in, struct tt_planned *ret_planned) TT_MUST_CHECK;
void tt_planned_release(struct tt_planned *planned);

#endif
