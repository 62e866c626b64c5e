/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_SIMPLE_FSDP_H
#define TT_PARALLEL_PLANNER_SIMPLE_FSDP_H

#include "parallel/planner/gathers.h"
#include "parallel/planner/step_facts.h"

/**
 * The planned FSDP engine (SimpleFSDP): sees the whole step before it runs and schedules it statically. Collectives of
 * neighbouring units are issued as one (buckets); the next bucket's gather is begun before the present one is waited
 * for, at the first moment at which its memory is free until it is needed; reduce-scatters are waited for when memory
 * is wanted, not before; all-reduces over replicas start as soon as a unit's sum is complete; what nobody reads is not
 * gathered. Which sums are added in which order does not change, so losses are those of the eager engine, bit for bit.
 *
 * A pure function of graph, layout, machine table and options: every rank makes the same schedule.
 */

/* What a plan must not exceed, in bytes. */
struct tt_plan_limits {
    int64_t step_bytes;      /* all transient memory */
    int64_t exchanged_bytes; /* of it, memory for exchange, where more than slack_bytes are needed */
    int64_t slack_bytes;     /* where all memory is within this, exchange may take what is left of it */
};

/* One way to plan a step; the planner tries several. */
struct tt_candidate {
    const bool *reshard;  /* [unit] free it between forward and backward; not owned */
    int64_t bucket_bytes; /* whole bytes of a bucket; a unit that is larger is a bucket of its own */
    bool within_compute;  /* a bucket must not take longer than the compute that hides it */
    bool expects_waits;   /* count on waiting for reduces that are not done, rather than begin gathers later */
    enum tt_stay stay;    /* what stays gathered although its policy would reshard it */
    struct tt_plan_limits limits;
};

/* The step, the same for all candidates. */
struct tt_simple_fsdp {
    const struct tt_lowering *lowering; /* what travels, and what receiving it takes */
    const struct tt_step_facts *facts;
    const struct tt_machine *machine;
    int prefetch; /* buckets gathered ahead of the one in use */
};

struct tt_plan {
    struct tt_schedule schedule; /* lower it with free_early */
    double step_sec;             /* predicted, up to the optimizer */
    double comm_sec;             /* of it, transfers by themselves */
    int calls;                   /* collectives */
    /* as counted while scheduling: most bytes at once, and what of them is exchanged */
    int64_t step_bytes, exchanged_bytes;
    bool fits;      /* the limits; not where nothing smaller was possible */
    int64_t looked; /* positions that were walked over to look ahead: what planning takes beside the step itself */
};

/** The plan of one optimizer step. The caller's (tt_plan_release). */
struct tt_plan tt_simple_fsdp_plan(const struct tt_simple_fsdp *fsdp, struct tt_candidate candidate);
void tt_plan_release(struct tt_plan *plan);

#endif
