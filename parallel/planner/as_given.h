/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_AS_GIVEN_H
#define TT_PARALLEL_PLANNER_AS_GIVEN_H

#include "parallel/planner/plan_search.h"

/**
 * Plans a program for a given reshard policy and compares it with the eager engine's program for that policy:
 *   it never takes more memory, and is within step_limit if any plan is;
 *   it is never predicted to be slower, if eager's is within step_limit too;
 *   it takes at most 0.85 of eager's memory for exchange at the peak, if a plan can without being slower.
 * If no plan is within step_limit, it is the smallest that was found, which takes no more than without a limit.
 *
 *   reshard  [unit] free it between forward and backward
 */
int tt_plan_as_given(const struct tt_plan_search *s, const bool *reshard, int64_t step_limit,
                     struct tt_plan_found *ret_found) TT_MUST_CHECK;

/**
 * Whether a is better than b for a limit. One that fits is better than one that does not. Of two that fit the faster is
 * better, of two that do not the smaller.
 */
bool tt_plan_is_better(int64_t step_limit, const struct tt_plan_found *a, const struct tt_plan_found *b);

#endif
