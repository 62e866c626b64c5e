/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_CEILING_H
#define TT_PARALLEL_PLANNER_CEILING_H

#include <stdint.h>

/** A tree of maxima over an array. It gives the largest value of any range in logarithmic time. */
struct tt_ceiling;

/** A tree over n > 0 values, which are copied. The caller's (tt_ceiling_free). */
struct tt_ceiling *tt_ceiling_new(const int64_t *values, int n);
void tt_ceiling_free(struct tt_ceiling *ceiling);

/** The largest of values[from] to values[until - 1]; 0 <= from < until <= n. */
int64_t tt_ceiling_most(const struct tt_ceiling *ceiling, int from, int until);

#endif
