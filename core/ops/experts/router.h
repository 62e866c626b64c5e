/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_EXPERTS_ROUTER_H
#define TT_OPS_EXPERTS_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/graph/graph.h"
#include "core/ops/op.h"

/**
 * Auxiliary losses of a router (struct tt_router_losses), which are added to the differentiated loss. Each is a sum of
 * terms of the tokens, divided by the number of tokens in the global batch; padding is no token. They depend only on
 * one microbatch and on the loads of the previous step, not on the layout. If each rank has only some of the
 * microbatch's rows, the loads still count all rows: the ranks gather the experts of all tokens, and the op
 * ROUTER_LOSSES computes the terms of balance losses (router.c).
 *
 * The balance loss of G tokens (a sequence, or the microbatch): X sum_x f_x P_x (Switch Transformer, with f divided by
 * k too; DeepSeek-V3 uses it for each sequence). f_x is the share of the G k slots that expert x got, and has no
 * gradient; P_x is the mean of its scores, each divided by the sum of the token's scores. The loss of the global batch
 * uses the f_x of the previous step, or 1 / X in the first step: those of the current step are known only after its
 * last microbatch. The z-loss of a token, for routers with softmax, is the square of the logsumexp of its logits.
 */
enum {
    TT_ROUTER_SEQUENCE,
    TT_ROUTER_MICROBATCH,
    TT_ROUTER_Z,
    TT_ROUTER_GLOBAL_BATCH,
    TT_ROUTER_LOSSES,                 /* rows of output 3 of the router that contain terms, coefficients included */
    TT_ROUTER_LSE = TT_ROUTER_LOSSES, /* one more row: the logsumexp of the logits */
    TT_ROUTER_LOSS_ROWS
};

/**
 * Whether ROUTER_LOSSES computes the terms: there are losses of sequences or microbatches, and other ranks have some of
 * the rows.
 */
bool tt_router_losses_apart(const struct tt_attr *attr, int64_t rows);

/* The index of the input of ROUTER_LOSSES that takes output 0 of the router. */
enum { TT_COUNTED_IDS = 3 };

/* The graph values from which a step counts the experts and losses of a router. */
struct tt_router_counted {
    int ids, losses; /* losses: TT_NONE, if there are none */
};

/** Whether a step counts experts and losses after this node: a router, or ROUTER_LOSSES, which follows it. */
bool tt_node_counted(const struct tt_graph *graph, int node, struct tt_router_counted *ret_counted);

/* The factors of a token, one for each expert. NULL: balance losses are 0. */
struct tt_token_factors {
    const tt_real *sequence, *microbatch, *global;
};

/* The inputs of the terms of a token. The terms of padding are 0. */
struct tt_loss_token {
    const tt_real *scores;
    tt_real lse;
    bool padding;
};

/** The number of floats for the factors of all `rows` tokens; 0 without balance losses. */
int64_t tt_router_factor_floats(const struct tt_attr *attr, int64_t rows, int64_t experts);

/**
 * Fills in the factors of the scores in balance losses: for each sequence, then for the microbatch, then for the global
 * batch, coefficient X f_x for every expert. ids: of all rows, in the order of pieces.h. loads: (X), of the layer in
 * the previous step; NULL: even.
 */
void tt_router_factors(const struct tt_attr *attr, const int32_t *ids, const int64_t *loads, int64_t rows,
                       int64_t experts, tt_real *factors);

/** The factors of token `row` of this rank, among the factors of all rows; NULL without balance losses. */
struct tt_token_factors tt_router_token_factors(const struct tt_attr *attr, const tt_real *factors, int64_t row,
                                                int64_t all_rows, int64_t experts);

/**
 * Writes the terms of token `row` of this rank's `rows`, and its logsumexp, into a column of losses
 * (TT_ROUTER_LOSS_ROWS, rows).
 */
void tt_router_loss_terms(const struct tt_attr *attr, struct tt_token_factors factors,
                          const struct tt_loss_token *token, int64_t row, int64_t rows, int64_t experts,
                          tt_real *losses);

/**
 * The expert of an id. The ids of padding are stored as their complements, which are negative: the rows of padding go
 * to experts like any others, since shapes are static, but nothing counts them.
 */
static inline int32_t tt_id_expert(int32_t id)
{
    return id < 0 ? ~id : id;
}

#endif
