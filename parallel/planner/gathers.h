/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_GATHERS_H
#define TT_PARALLEL_PLANNER_GATHERS_H

#include "parallel/fsdp/usage.h"

/**
 * The gathers of a step, and how long their parameters stay. Successive uses of a unit share one gather if the unit
 * stays gathered in between. The scheduler decides when a gather begins.
 */

/* The time for which a unit's parameters are on this rank, from an all-gather to the last read. */
struct tt_gather {
    int unit;
    int first, last; /* positions that read the parameters */
    int previous;    /* the unit's gather before this one, TT_NONE if none */
    bool keeps;      /* a part is kept at its end (TT_KEEP) */
    bool from_kept;  /* gathers the parts that the previous one kept */
    int n_before;    /* length of the list when it was last used; tells how many gathers begin before its next use */
};

/* One parameter of a gather is no longer needed after this position. */
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

/* When a unit that is read again stays gathered, in addition to what its policy says about forward to backward. */
enum tt_stay {
    TT_STAY_BY_POLICY, /* never */
    TT_STAY_IF_NEXT,   /* if no other gather lies in between */
    TT_STAY_OVER_ONE,  /* if at most one lies in between, during which the unit would be prefetched anyway */
};

/**
 * The gathers of a step. A unit that nothing reads is not gathered.
 *   param_bytes  [param] bytes when gathered
 *   reshard      [unit] whether to free it between forward and backward
 * The caller's (tt_gather_list_release).
 */
struct tt_gather_list tt_gathers_make(const struct tt_usage *usage, const int64_t *param_bytes, const bool *reshard,
                                      enum tt_stay stay);
void tt_gather_list_release(struct tt_gather_list *list);

#endif
