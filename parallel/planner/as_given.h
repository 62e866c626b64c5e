/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_AS_GIVEN_H
#define TT_PARALLEL_PLANNER_AS_GIVEN_H

#include "parallel/planner/plan_search.h"

/**
 * The program of a given reshard policy, planned against the eager engine's of the same policy:
 *   never more memory than that, and within step_limit where any plan is;
 *   never predicted to be slower than that, where that is within step_limit, too;
 *   at most 0.85 of what it exchanges at its peak, where a plan manages that without being slower.
 * Where no plan is within step_limit: the one of least memory that is found; it takes no more than without a limit.
 *
 *   reshard  [unit] free it between forward and backward
 */
int tt_plan_as_given(const struct tt_plan_search *s, const bool *reshard, int64_t step_limit,
                     struct tt_plan_found *ret_found) TT_MUST_CHECK;

/**
 * The better of two for a limit: one that fits before one that does not; of those that fit the faster,
 * else the smaller.
 */
bool tt_plan_is_better(int64_t step_limit, const struct tt_plan_found *a, const struct tt_plan_found *b);

#endif
