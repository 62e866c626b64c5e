/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_FSDP_USAGE_H
#define TT_PARALLEL_FSDP_USAGE_H

#include "core/program/layout.h"
#include "core/program/order.h"

/**
 * Which unit is read where, and where its gradients are complete: what every scheduler inserts collectives by. Computed
 * once from an order of compute, the stages and the layout.
 *
 * A position is a node of a microbatch, numbered in the order of compute. A unit may have parameters in several stages;
 * a microbatch's gradients of it are complete after the last of them.
 */

/* One turn's use of a unit: from the first node that reads a parameter or, in backward, writes a
 * gradient, to the last. */
struct tt_use {
    int unit;
    int turn;
    int first, last;           /* positions */
    int first_read, last_read; /* of those that read a parameter; TT_NONE if none does */
    int param_reads;           /* index into param_last_read of the unit's first parameter */
    bool after;                /* no node of its own: comes after position `first`, see below */
    bool completes;            /* the gradients that are reduced are complete after it */
};

/* A unit's gradients are complete, and it is time to reduce them. */
struct tt_complete {
    int pos; /* after it */
    int unit;
};

struct tt_usage {
    const struct tt_order *order; /* not owned, as stages and layout */
    const struct tt_stage *stages;
    const struct tt_layout *layout;
    struct tt_position *positions;
    int n_positions;
    /*
     * By first position. The head makes the gradient of the output's weight in forward. Where no backward node
     * touches that unit, a use without nodes comes after the head, in the turn of backward: every unit then has
     * one, as in FSDP2.
     */
    struct tt_use *uses;
    int n_uses, cap_uses;
    int *param_last_read;         /* [tt_use.param_reads + slot] last position of the use that reads it, or TT_NONE */
    struct tt_complete *complete; /* by position; of units with the same one, in their order */
    int n_complete, cap_complete;
    int *complete_from; /* [n_positions + 1] first of them at a position or later */
    int *begins_grad;   /* [n_positions + 1] index into begun_grads: the whole gradients that a position begins */
    int *begun_grads;   /* values of the position's stage */
};

/**
 * The caller's (tt_usage_release). Errors: as tt_order_positions; TT_EINTERNAL when nothing reads some unit, or nothing
 * makes its gradient in an order that trains.
 */
int tt_usage_make(const struct tt_order *order, const struct tt_stage *stages, int n_stages,
                  const struct tt_layout *layout, struct tt_usage *ret_usage) TT_MUST_CHECK;
void tt_usage_release(struct tt_usage *usage);

static inline enum tt_pass tt_use_pass(const struct tt_usage *usage, const struct tt_use *use)
{
    return usage->order->turns[use->turn].pass;
}

/** The graph of a position's stage. */
static inline const struct tt_graph *tt_usage_graph(const struct tt_usage *usage, int pos)
{
    return usage->stages[usage->positions[pos].stage].graph;
}

static inline int tt_use_microbatch(const struct tt_usage *usage, const struct tt_use *use)
{
    return usage->order->turns[use->turn].microbatch;
}

#endif
