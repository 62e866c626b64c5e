/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_SIMPLE_FSDP_H
#define TT_PARALLEL_PLANNER_SIMPLE_FSDP_H

#include "parallel/fsdp/usage.h"
#include "parallel/planner/cost.h"

/**
 * The planned scheduler (SimpleFSDP). It schedules the whole step statically, before it runs. Collectives of
 * neighbouring units are issued as one bucket. The all-gather of the next bucket begins before the wait for the current
 * one, as soon as enough memory stays free until its use. The step waits for a reduce-scatter only when it needs the
 * memory. All-reduces over replicas begin as soon as a unit's sum is complete. Parameters that nothing reads are not
 * gathered. The order of additions does not change, so losses have the bits of the eager scheduler.
 *
 * The schedule is a pure function of graph, layout, cost table and options, so every rank makes the same one.
 */

/* Limits that a plan must not exceed, in bytes. */
struct tt_plan_limits {
    int64_t step_bytes;      /* all transient memory */
    int64_t exchanged_bytes; /* memory for exchange, at positions that need more than slack_bytes in all */
    int64_t slack_bytes;     /* up to this total, exchange may take all remaining memory */
};

/* When a unit stays gathered between two reads. Between forward and backward, the reshard policy of the unit
 * decides. */
enum tt_stay {
    TT_STAY_BY_POLICY, /* never */
    TT_STAY_IF_NEXT,   /* stays if no other gather begins in between */
    TT_STAY_OVER_ONE,  /* with at most one gather in between, during which the unit would be prefetched anyway */
};

/* One way to plan a step; the planner tries several. */
struct tt_candidate {
    const bool *reshard;  /* [unit] whether to free it between forward and backward; not owned */
    int64_t bucket_bytes; /* most whole bytes of a bucket; a larger unit is a bucket of its own */
    bool within_compute;  /* a bucket's gather must not take longer than the compute that hides it */
    bool expects_waits;   /* wait for incomplete reductions instead of beginning gathers later */
    enum tt_stay stay;    /* when units stay gathered although their policy would reshard them */
    struct tt_plan_limits limits;
};

/* The step, which is the same for all candidates. */
struct tt_simple_fsdp {
    const struct tt_lowering *lowering; /* shows which collectives travel, and the memory to receive them */
    const struct tt_step_facts *facts;
    const struct tt_machine *machine;
    int prefetch; /* buckets to gather ahead of the one in use */
};

struct tt_plan {
    struct tt_schedule schedule; /* lower it with free_early */
    double step_sec;             /* predicted seconds, until the optimizer begins */
    double comm_sec;             /* predicted seconds of all transfers, hidden or not */
    int calls;                   /* collectives */
    /* counted while scheduling: the largest number of bytes at any time, in all and for exchange */
    int64_t step_bytes, exchanged_bytes;
    bool fits;      /* whether the plan keeps the limits; if not, nothing smaller was possible */
    int64_t looked; /* how many positions were visited to look ahead, in addition to the walk itself */
};

/** The plan of one optimizer step. Free it with tt_plan_release. */
struct tt_plan tt_simple_fsdp_plan(const struct tt_simple_fsdp *fsdp, struct tt_candidate candidate);
void tt_plan_release(struct tt_plan *plan);

/** The facts about a step that no plan changes: seconds and bytes by position. */
struct tt_step_facts {
    const struct tt_usage *usage; /* not owned */
    double *node_sec;             /* [n_positions] predicted seconds of its node */
    double *begin_sec;            /* [n_positions + 1] time at which a position begins, if no node waits */
    int64_t *grad_bytes;          /* [n_positions] bytes of whole gradients that begin to live there */
    int64_t *other_bytes;         /* [n_positions] bytes of transient memory that is not for exchange */
    int64_t *param_bytes;         /* [param] bytes when gathered; 0 if it is read from its shard */
    int64_t *unit_bytes;          /* [unit] sum over its parameters */
    int64_t *unit_grad_bytes;     /* [unit] bytes of its whole gradients; 0 if nodes write them directly into the sum */
};

/**
 * Computes the facts. Lowering gives the sizes of the collectives.
 *   eager  the eager scheduler's program of the same order; gives other_bytes
 * The caller's (tt_step_facts_release).
 */
void tt_step_facts_make(const struct tt_usage *usage, const struct tt_lowering *lowering,
                        const struct tt_machine *machine, const struct tt_program *eager,
                        struct tt_step_facts *ret_facts);
void tt_step_facts_release(struct tt_step_facts *facts);

/** The bytes for exchange at the instruction at which a program needs the most memory. */
int64_t tt_program_exchanged_bytes(const struct tt_program *program);

#endif
