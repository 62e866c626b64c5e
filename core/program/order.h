/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_ORDER_H
#define TT_PROGRAM_ORDER_H

#include "core/base/error.h"
#include "core/passes/stage.h"

/**
 * The order of compute of a rank, without collectives. It is made first. A scheduler (parallel/fsdp, parallel/planner)
 * inserts collectives and resharding into an order and never moves compute.
 *
 * To add an order:
 *   1. A function beside tt_order_accumulate (order.c) that adds turns, each a microbatch, a stage and a pass.
 *      tt_order_positions checks the order, and both schedulers take it.
 *   2. `order` in the options of the engine, and `n_stages` for more than one stage.
 *   3. A kind in tests/par/orders.c: test_order, test_program_orders and test_stages then check its nodes, memory and
 *      bits.
 */
enum tt_pass {
    TT_PASS_FORWARD,
    TT_PASS_BACKWARD, /* all of backward, but without the weight part if that is a separate turn */
    TT_PASS_WEIGHTS,  /* the nodes of backward that write only gradients of parameters */
};

/* Transfers that are under way between two stages at the same time belong to at most this many consecutive
 * microbatches. */
enum { TT_PIPELINE_OVERTAKING = 63 };

/* One pass of one microbatch through one stage. */
struct tt_turn {
    int microbatch;
    int stage; /* 0 if the whole model is one graph */
    enum tt_pass pass;
};

struct tt_order {
    struct tt_turn *turns;
    int n, cap;
    int microbatches; /* turns name microbatches 0 to microbatches - 1 */
    bool trains;      /* some turn is not a forward */
};

/* A node of a microbatch. Schedulers call its index in the order a position. */
struct tt_position {
    int turn;
    int microbatch;
    int stage;
    int node; /* in the stage's graph */
};

/**
 * The order that computes one microbatch after another: its forward through all stages and, with `trains`, its backward
 * through them. Free it with tt_order_release.
 */
struct tt_order tt_order_accumulate(int microbatches, int n_stages, bool trains);
void tt_order_add(struct tt_order *order, int microbatch, int stage, enum tt_pass pass);
void tt_order_release(struct tt_order *order);

/** Whether a backward node belongs to the weight part, that is, produces only gradients of parameters. */
bool tt_order_is_weight_part(const struct tt_graph *graph, const struct tt_node *node);

/**
 * The nodes of all turns in order. The caller frees *ret_positions with tt_free. Within a microbatch, a stage's
 * forward needs the previous stage's forward. A backward needs its own forward and the next stage's backward, and a
 * weight part needs its own backward. If gradients are carried from one microbatch to the next, the microbatches must
 * be in order at every node that produces a parameter's gradient. Errors: TT_EINTERNAL if a turn occurs twice, comes
 * before one that it needs, is missing, or names a stage that does not exist.
 */
int tt_order_positions(const struct tt_order *order, const struct tt_stage *stages, int n_stages,
                       struct tt_position **ret_positions, int *ret_n) TT_MUST_CHECK;

#endif
