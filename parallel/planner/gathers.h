/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_GATHERS_H
#define TT_PARALLEL_PLANNER_GATHERS_H

#include "parallel/fsdp/usage.h"

/**
 * Which gathers a step has, and how long what they gather stays: uses of a unit that follow each other share one gather
 * where the unit stays in between. When a gather begins is the scheduler's choice.
 */

/* One stay of a unit's parameters on this rank, from an all-gather to the last read. */
struct tt_gather {
    int unit;
    int first, last; /* positions that read it */
    int previous;    /* the unit's gather before this one, TT_NONE if none */
    bool keeps;      /* ends by keeping a part: TT_KEEP */
    bool from_kept;  /* gathers the parts that the one before kept */
    int n_before;    /* gathers in the list when it was last used: how many begin before it is used again */
};

/* The end of one parameter in a gather. */
struct tt_release {
    int pos;
    int gather;
    int64_t bytes;
};

struct tt_gather_list {
    struct tt_gather *items; /* in the order in which they are needed */
    int n, cap;
    struct tt_release *releases; /* in order of position */
    int n_releases, cap_releases;
};

/* What a unit that is read again stays gathered for, beside its policy from forward to backward. */
enum tt_stay {
    TT_STAY_BY_POLICY, /* nothing */
    TT_STAY_IF_NEXT,   /* when no other gather lies in between */
    TT_STAY_OVER_ONE,  /* when at most one does: it would be prefetched during that one anyway */
};

/**
 * The gathers of a step. What nothing reads is not gathered.
 *   param_bytes  [param] gathered
 *   reshard      [unit] free it between forward and backward
 * The caller's (tt_gather_list_release).
 */
struct tt_gather_list tt_gathers_make(const struct tt_usage *usage, const int64_t *param_bytes, const bool *reshard,
                                      enum tt_stay stay);
void tt_gather_list_release(struct tt_gather_list *list);

#endif
