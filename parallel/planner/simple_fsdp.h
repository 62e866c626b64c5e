/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_SIMPLE_FSDP_H
#define TT_PARALLEL_PLANNER_SIMPLE_FSDP_H

#include "parallel/planner/gathers.h"
#include "parallel/planner/step_facts.h"

/**
 * The planned FSDP engine (SimpleFSDP). It sees the whole step before it runs and schedules it statically. Collectives
 * of neighbouring units are issued as one, a bucket. The gather of the next bucket begins before the present one is
 * awaited, as soon as its memory is free until it is needed. Reduce-scatters are awaited only when their memory is
 * needed. All-reduces over replicas begin as soon as a unit's sum is complete. Parameters that nothing reads are not
 * gathered. The order of additions does not change, so losses are those of the eager engine, bit for bit.
 *
 * The schedule is a pure function of graph, layout, cost table and options, so every rank makes the same one.
 */

/* Limits that a plan must not exceed, in bytes. */
struct tt_plan_limits {
    int64_t step_bytes;      /* all transient memory */
    int64_t exchanged_bytes; /* memory for exchange, at positions that need more than slack_bytes in all */
    int64_t slack_bytes;     /* up to this total, exchange may take all that is left */
};

/* One way to plan a step; the planner tries several. */
struct tt_candidate {
    const bool *reshard;  /* [unit] whether to free it between forward and backward; not owned */
    int64_t bucket_bytes; /* most whole bytes of a bucket; a larger unit is a bucket of its own */
    bool within_compute;  /* a bucket's gather must not take longer than the compute that hides it */
    bool expects_waits;   /* wait for reductions that are not complete, rather than begin gathers later */
    enum tt_stay stay;    /* when units stay gathered although their policy would reshard them */
    struct tt_plan_limits limits;
};

/* The step, which is the same for all candidates. */
struct tt_simple_fsdp {
    const struct tt_lowering *lowering; /* says what travels, and the memory to receive it */
    const struct tt_step_facts *facts;
    const struct tt_machine *machine;
    int prefetch; /* buckets to gather ahead of the one in use */
};

struct tt_plan {
    struct tt_schedule schedule; /* lower it with free_early */
    double step_sec;             /* predicted, up to the optimizer */
    double comm_sec;             /* predicted, of all transfers, hidden or not */
    int calls;                   /* collectives */
    /* as counted while scheduling: most bytes at any time, and the part of them for exchange */
    int64_t step_bytes, exchanged_bytes;
    bool fits;      /* whether the limits are kept; if not, nothing smaller was possible */
    int64_t looked; /* positions that were visited to look ahead, in addition to the walk itself */
};

/** The plan of one optimizer step. The caller's (tt_plan_release). */
struct tt_plan tt_simple_fsdp_plan(const struct tt_simple_fsdp *fsdp, struct tt_candidate candidate);
void tt_plan_release(struct tt_plan *plan);

#endif
