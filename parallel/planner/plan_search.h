/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_PLAN_SEARCH_H
#define TT_PARALLEL_PLANNER_PLAN_SEARCH_H

#include "parallel/planner/planner.h"
#include "parallel/planner/simple_fsdp.h"

/**
 * The search for one program: candidates are planned, ranked by predicted time, and the best are lowered until one
 * keeps its target. The planner (planner.c) sets targets, and searches as often as it needs to.
 */
enum { TT_PLAN_ROUNDS = 5 }; /* each asks for a little more tightness than the one before */

struct tt_plan_search {
    const struct tt_planner *in;
    struct tt_step_facts facts;
    struct tt_simple_fsdp fsdp;
};

/* What a program has to keep. */
struct tt_plan_target {
    const bool *reshard;     /* [unit] free it between forward and backward; not owned */
    int64_t step_bytes;      /* at most, of transient memory */
    int64_t exchanged_bytes; /* at most, of what of it is exchanged at the peak */
    bool off_peak;           /* more may be, where less memory is needed than at the peak */
};

struct tt_plan_found {
    struct tt_program *program; /* the first that keeps the target, else the one that comes closest; the caller's */
    double step_sec;            /* predicted */
    bool keeps;                 /* the target */
    bool by_search;             /* one of the candidates does; else the one of least memory was looked at, too */
};

/** Everything of the step that no target changes. */
void tt_plan_search_begin(const struct tt_planner *in, struct tt_plan_search *ret_search);
void tt_plan_search_end(struct tt_plan_search *s);

/** Up to `rounds` (at most TT_PLAN_ROUNDS) rounds of candidates, then that of least memory. */
int tt_plan_search_run(const struct tt_plan_search *s, struct tt_plan_target target, int rounds,
                       struct tt_plan_found *ret_found) TT_MUST_CHECK;

/** Bytes at once, all and exchanged, of the candidate of least memory: it frees at once and gathers late. */
struct tt_plan_need {
    int64_t step_bytes, exchanged_bytes;
};
struct tt_plan_need tt_plan_search_least(const struct tt_plan_search *s, const bool *reshard);

/** Predicted seconds of the best candidate, and whether that is within the target; nothing is lowered. */
bool tt_plan_search_predict(const struct tt_plan_search *s, struct tt_plan_target target, double *ret_step_sec);

/** Predicted seconds of a program. */
double tt_plan_search_sec(const struct tt_plan_search *s, const struct tt_program *program);

#endif
