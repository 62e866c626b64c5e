/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_PLAN_SEARCH_H
#define TT_PARALLEL_PLANNER_PLAN_SEARCH_H

#include "parallel/planner/planner.h"
#include "parallel/planner/simple_fsdp.h"

/**
 * The search for a plan that keeps two promises, of the memory that a step takes and of what of it is exchanged, with the
 * reshard flags as they are. The planner (planner.c) sets the promises and flags, and searches as often as it needs to.
 */
enum { TT_PLAN_ROUNDS = 5 }; /* each asks for a little more tightness than the one before */

struct tt_plan_search {
    const struct tt_planner *in;
    struct tt_simple_fsdp fsdp;
    struct tt_step_facts facts;
    int64_t step_bytes;      /* the promise */
    bool out_of_reach;       /* not even the frugal schedule would hold it */
    int64_t exchanged_bytes; /* the promise of what of it is exchanged */
    bool off_peak;           /* more may be, where less memory is needed than at the peak */
    struct tt_program *best; /* of the lowered ones */
    bool best_kept;          /* it holds both */
    bool gave_way;           /* a search found nothing that does but, at most, the frugal schedule */
};

/** Everything of the step that no promise changes; the promises are step_limit or the eager engine's memory, and none. */
void tt_plan_search_begin(const struct tt_planner *in, struct tt_plan_search *ret_search);

/** Also frees best, unless it was taken. */
void tt_plan_search_end(struct tt_plan_search *s);

/**
 * Up to `rounds` (at most TT_PLAN_ROUNDS) rounds of candidates; best becomes the first that keeps both promises, else the
 * one that comes closest, the frugal schedule among them.
 */
int tt_plan_search_run(struct tt_plan_search *s, int rounds) TT_MUST_CHECK;

/** What the frugal schedule needs, which lets go of everything at once and fetches late; sets out_of_reach by it. */
struct tt_plan_outcome tt_plan_search_least(struct tt_plan_search *s);

/** Predicted seconds of the best candidate, and whether that is within the promises; nothing is lowered. */
bool tt_plan_search_predict(const struct tt_plan_search *s, double *ret_step_sec);

/** Predicted seconds of a program. */
double tt_plan_search_sec(const struct tt_plan_search *s, const struct tt_program *program);

#endif
