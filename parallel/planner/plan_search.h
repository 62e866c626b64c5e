/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_PLAN_SEARCH_H
#define TT_PARALLEL_PLANNER_PLAN_SEARCH_H

#include "parallel/planner/planner.h"
#include "parallel/planner/simple_fsdp.h"

/**
 * The search for one program. Candidates are planned and ranked by predicted time, and the best are lowered until one
 * keeps its target. The planner (planner.c) sets targets and may search several times.
 */
enum { TT_PLAN_ROUNDS = 5 }; /* each has a tighter limit than the one before */

struct tt_plan_search {
    const struct tt_planner *in;
    struct tt_step_facts facts;
    struct tt_simple_fsdp fsdp;
};

/* Limits that a program must keep, in bytes. */
struct tt_plan_target {
    const bool *reshard;     /* [unit] whether to free it between forward and backward; not owned */
    int64_t step_bytes;      /* most transient memory */
    int64_t exchanged_bytes; /* most memory for exchange at the peak */
    bool off_peak;           /* exchange may take more where the step needs less memory than at its peak */
};

struct tt_plan_found {
    struct tt_program *program; /* the first that keeps the target, else the one that is closest to it; the caller's */
    double step_sec;            /* predicted */
    bool keeps;                 /* the target */
    bool by_search; /* one of the ranked candidates keeps it; otherwise the one of least memory was lowered too */
};

/** Computes everything about the step that no target changes. `in` must outlive the search (tt_plan_search_end). */
void tt_plan_search_begin(const struct tt_planner *in, struct tt_plan_search *ret_search);
void tt_plan_search_end(struct tt_plan_search *s);

/** Runs up to `rounds` rounds of candidates (at most TT_PLAN_ROUNDS). If none keeps the target, tries the candidate of
 * least memory. */
int tt_plan_search_run(const struct tt_plan_search *s, struct tt_plan_target target, int rounds,
                       struct tt_plan_found *ret_found) TT_MUST_CHECK;

/** The most bytes at any time, in all and for exchange, of the candidate of least memory, which frees early and gathers
 * late. */
struct tt_plan_need {
    int64_t step_bytes, exchanged_bytes;
};
struct tt_plan_need tt_plan_search_least(const struct tt_plan_search *s, const bool *reshard);

/** Predicts the seconds of the best candidate, and returns whether it keeps the target. Lowers nothing. */
bool tt_plan_search_predict(const struct tt_plan_search *s, struct tt_plan_target target, double *ret_step_sec);

/** Predicted seconds of a program. */
double tt_plan_search_sec(const struct tt_plan_search *s, const struct tt_program *program);

#endif
