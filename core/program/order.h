/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_ORDER_H
#define TT_PROGRAM_ORDER_H

#include "core/base/error.h"
#include "core/graph/stage.h"

/**
 * The order of compute: what a rank computes when, and nothing else. It is made first. A scheduler (parallel/fsdp,
 * parallel/planner) only inserts collectives and resharding into an order; it never moves compute.
 */
enum tt_pass {
    TT_PASS_FORWARD,
    TT_PASS_BACKWARD, /* all of it, or what its weight part leaves, where the order has that as a turn of its own */
    TT_PASS_WEIGHTS,  /* the nodes of backward that write gradients of parameters and nothing else */
};

/* What a rank computes in one go. */
struct tt_turn {
    int microbatch;
    int stage; /* 0 where the whole model is one graph */
    enum tt_pass pass;
};

struct tt_order {
    struct tt_turn *turns;
    int n, cap;
    int microbatches; /* that turns name: 0 to microbatches - 1 */
    bool trains;      /* some turn is not forward */
};

/* One node of one microbatch. Its number in the order is what schedulers call a position. */
struct tt_position {
    int turn;
    int microbatch;
    int stage;
    int node; /* of the stage's graph */
};

/**
 * All microbatches one after another: forward through all stages, and with `trains` backward through them. The caller's
 * (tt_order_release).
 */
struct tt_order tt_order_accumulate(int microbatches, int n_stages, bool trains);
void tt_order_add(struct tt_order *order, int microbatch, int stage, enum tt_pass pass);
void tt_order_release(struct tt_order *order);

/**
 * The nodes of all turns in order; *ret_positions is the caller's (tt_free). Of a microbatch, forward of a stage needs
 * that of the stage before, backward its own forward and the backward of the stage after, the weight part its own
 * backward. Where gradients are carried from one microbatch to the next, the microbatches are in order wherever a node
 * makes a parameter's gradient. Errors: TT_EINTERNAL when a turn comes twice, comes before one that it needs, is
 * missing, or is of a stage that does not exist.
 */
int tt_order_positions(const struct tt_order *order, const struct tt_stage *stages, int n_stages,
                       struct tt_position **ret_positions, int *ret_n) TT_MUST_CHECK;

#endif
