/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_PLANNER_H
#define TT_PARALLEL_PLANNER_PLANNER_H

#include "parallel/fsdp/usage.h"
#include "parallel/planner/cost.h"

/**
 * Chooses the program of the planned scheduler: makes candidates (parallel/planner/simple_fsdp.h), ranks them by
 * predicted time, and takes the first one that still keeps its target after lowering.
 */
struct tt_planner {
    const struct tt_lowering *lowering; /* usage of the step, with its graph and layout */
    const struct tt_usage *usage;
    const struct tt_program *eager; /* the eager scheduler's program of the same order */
    const struct tt_machine *machine;
    int prefetch;         /* buckets to gather ahead of the one in use */
    int64_t bucket_bytes; /* most bytes of whole parameters in a bucket; 0: from the cost table */
    int64_t step_limit;   /* largest transient memory of a step, in bytes; INT64_MAX: no limit */
    bool *reshard;        /* [n_units] whether to free the unit between forward and backward */
    /*
     * Chooses `reshard` anew: the step must fit into step_limit, which is then the only memory limit, and exchange
     * should delay compute as little as possible. The result is never slower than the program for the given units, if
     * that program fits.
     */
    bool choose_reshard;
};

/** Makes the program, which the caller frees with tt_program_free. Not collective: equal input gives the same program
 * on every rank. */
int tt_planner_run(const struct tt_planner *in, struct tt_program **ret_program) TT_MUST_CHECK;

#endif
