/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_FSDP_USAGE_H
#define TT_PARALLEL_FSDP_USAGE_H

#include "core/program/layout.h"
#include "core/program/order.h"
#include "parallel/pipeline/crossings.h"

/**
 * The uses of each unit in an order of compute: where its parameters are read, and where its gradients are complete.
 * Schedulers place collectives accordingly. It is computed once from the order, the stages and the layout.
 *
 * A position is a node of a microbatch. Positions are numbered in the order of compute. A unit may have parameters in
 * several stages; its gradients of a microbatch are complete after the last of these stages.
 */

/* The use of a unit in one turn: from the first node that reads a parameter or, in backward, writes a gradient, to the
 * last one that does. */
struct tt_use {
    int unit;
    int turn;
    int first, last;           /* positions */
    int first_read, last_read; /* first and last position that reads a parameter, or TT_NONE */
    int param_reads;           /* index into param_last_read of the unit's first parameter */
    bool after;                /* the use contains no node and comes after position `first` (see below) */
    bool adds;                 /* after it, the microbatch's gradients are added to its block's sum */
    bool completes;            /* after it, gradients are complete and can be reduced */
};

/* The point at which a microbatch completes its gradients of a unit. If it is the last of its block, they can be
 * reduced. */
struct tt_complete {
    int pos; /* after this position */
    int unit;
    bool adds;    /* they are added to the sums of the block's earlier microbatches */
    int frees;    /* how many sums of the unit's whole gradients this addition frees */
    bool reduces; /* the block is complete */
};

struct tt_usage {
    const struct tt_order *order; /* not owned, like stages and layout */
    const struct tt_stage *stages;
    const struct tt_layout *layout;
    struct tt_position *positions;
    int n_positions;
    struct tt_crossings crossings; /* transfers with other ranks of a pipeline; the caller of tt_usage_make sets them */
    int run_microbatches;          /* microbatches of a run through the pipeline; 0: no pipeline. The caller sets it */
    /*
     * Sorted by first position. The head computes the gradient of the output's weight in forward. If no backward node
     * uses that unit, a use without nodes follows the head, in the turn of backward. So every trained unit has a
     * backward use, as in FSDP2.
     */
    struct tt_use *uses;
    int n_uses, cap_uses;
    int *param_last_read; /* [param_reads + index in the unit] last position of the use that reads it, or TT_NONE */
    struct tt_complete *complete; /* sorted by position, then by unit */
    int n_complete, cap_complete;
    int *complete_from; /* [n_positions + 1] index into complete: the first one at this position or later */
    int *begins_grad; /* [n_positions + 1] index into begun_grads: the first whole gradient that this position begins */
    int *begun_grads; /* values of the position's stage */
};

/**
 * Computes the usage, which the caller frees with tt_usage_release. order, stages and layout must outlive it. Gradients
 * of `block` consecutive microbatches, a divisor of their number, are added before they are reduced. Errors: as
 * tt_order_positions; TT_EINTERNAL if no node reads some unit, or if in training no node computes its gradients. Only
 * trainable parameters have gradients and moments; a frozen unit is neither reduced nor updated.
 */
int tt_usage_make(const struct tt_order *order, const struct tt_stage *stages, int n_stages,
                  const struct tt_layout *layout, int block, struct tt_usage *ret_usage) TT_MUST_CHECK;
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
