/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_FSDP_USAGE_H
#define TT_PARALLEL_FSDP_USAGE_H

#include "parallel/planner/cost.h"

/**
 * When a step needs what: facts about a graph and a layout that the planned engine schedules by.
 *
 * A position is a node of a microbatch in the order of the step: microbatch * n_nodes + node.
 */
struct tt_usage {
    const struct tt_graph *graph;
    const struct tt_layout *layout;
    int microbatches;
    int n_nodes;
    double *node_sec;     /* [node] predicted */
    double *begin_sec;    /* [n_nodes + 1] of a microbatch's node when nothing waits */
    bool reduce_last;     /* gradients stay from the first microbatch to the last and are complete behind that */
    int64_t *grad_bytes;  /* [node] whole gradients whose first contribution it writes */
    int (*first)[2];      /* [unit][backward] first node that reads a parameter, TT_NONE if none does */
    int (*last)[2];       /* [unit][backward] last node that does */
    int (*param_last)[2]; /* [param][backward] last node that reads it, TT_NONE if none does */
    int *ready_units;     /* [n_ready] units in the order in which their gradients are complete */
    int *ready_nodes;     /* [n_ready] the node after which they are */
    int n_ready;
    int *ready_from;     /* [n_nodes + 1] first of them at a node or later */
    int64_t *unit_bytes; /* [unit] gathered; also its whole gradient */
};

/** The caller's (tt_usage_release). Errors: TT_EINTERNAL when nothing makes a gradient of some unit. */
int tt_usage_make(const struct tt_graph *graph, const struct tt_layout *layout, int microbatches, int threads,
                  const struct tt_machine *machine, struct tt_usage *ret_usage) TT_MUST_CHECK;
void tt_usage_release(struct tt_usage *usage);

/** Bytes of a unit's k-th parameter when it is whole, as the memory plan counts them. */
int64_t tt_usage_param_bytes(const struct tt_layout *layout, int unit, int k);

/* One stay of a unit's parameters on this rank, from an all-gather to the last read. */
struct tt_gather {
    int unit;
    int first, last; /* positions that read it */
    int previous;    /* the unit's gather before this one, TT_NONE if none */
    bool keeps;      /* ends by keeping a part: TT_KEEP */
    bool from_kept;  /* gathers the parts that the one before kept */
    int after;       /* gathers that there were at its last use; for deciding what is near */
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

/* What a unit that was read and is read again does in between. */
enum tt_near {
    TT_NEAR_NONE,     /* reshards, unless its policy keeps it from forward to backward */
    TT_NEAR_ADJACENT, /* stays when no other gather lies in between */
    TT_NEAR_ONE,      /* stays when at most one does: it would be prefetched during that one anyway */
};

/**
 * The gathers of a step. What nothing reads is not gathered.
 *   reshard  [unit] free it between forward and backward
 */
struct tt_gather_list tt_usage_gathers(const struct tt_usage *usage, const bool *reshard, enum tt_near near);
void tt_gather_list_release(struct tt_gather_list *list);

#endif
