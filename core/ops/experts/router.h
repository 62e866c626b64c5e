/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_EXPERTS_ROUTER_H
#define TT_OPS_EXPERTS_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/graph/graph.h"
#include "core/ops/op.h"

/**
 * Auxiliary losses of a router (struct tt_router_losses), which are added to what is differentiated. Each is a sum of
 * terms of the tokens, divided by the tokens of the global batch; padding is no token. All depend on one microbatch and
 * on the loads of the step before only, so they do not depend on the layout. Ranks may have parts of its rows: their
 * loads are those of all rows, so they gather the experts of all tokens, and the op ROUTER_LOSSES has the terms of
 * balance losses (router.c).
 *
 * A balance loss of G tokens, which are a sequence or the microbatch: X sum_x f_x P_x (Switch Transformer, with f
 * divided by k too; DeepSeek-V3 has it for each sequence). f_x is the share of the G k slots that expert x got, and has
 * no gradient; P_x is the mean of its scores, divided by the sum of the token's scores. That of the global batch has
 * the f_x of all slots of the step before, or 1 / X if there is none: those of this step are known only after its last
 * microbatch. The z-loss of a token is the square of the logsumexp of its logits, of a router with softmax.
 */
enum {
    TT_ROUTER_SEQUENCE,
    TT_ROUTER_MICROBATCH,
    TT_ROUTER_Z,
    TT_ROUTER_GLOBAL_BATCH,
    TT_ROUTER_LOSSES,                 /* rows of the router's output 3 with terms, coefficients included */
    TT_ROUTER_LSE = TT_ROUTER_LOSSES, /* one more row: the logsumexp of the logits */
    TT_ROUTER_LOSS_ROWS
};

/** Whether there are losses of sequences or microbatches and other ranks have rows, so that ROUTER_LOSSES has the
 * terms. */
bool tt_router_losses_apart(const struct tt_attr *attr, int64_t rows);

/* The input of ROUTER_LOSSES that is output 0 of the router. */
enum { TT_COUNTED_IDS = 3 };

/* What a step counts of a router: values of the graph. */
struct tt_router_counted {
    int ids, losses; /* losses: TT_NONE, if there are none */
};

/** Whether a step counts experts and losses after this node: a router, or ROUTER_LOSSES, which follows it. */
bool tt_node_counted(const struct tt_graph *graph, int node, struct tt_router_counted *ret_counted);

/* The factors of a token, one for each expert. NULL: balance losses are 0. */
struct tt_token_factors {
    const float *sequence, *microbatch, *global;
};

/* What the terms of a token follow from. Those of padding are 0. */
struct tt_loss_token {
    const float *scores;
    float lse;
    bool padding;
};

/** Floats of the factors of all `rows` tokens; 0 without balance losses. */
int64_t tt_router_factor_floats(const struct tt_attr *attr, int64_t rows, int64_t experts);

/** Fills the factors, by which balance losses depend on the scores: of each sequence, then of the microbatch, then of
 * the global batch, coefficient X f_x for every expert. ids: of all rows, in the order of pieces.h. loads: (X), of the
 * layer in the step before; NULL: even. */
void tt_router_factors(const struct tt_attr *attr, const int32_t *ids, const int64_t *loads, int64_t rows,
                       int64_t experts, float *factors);

/** Those of token `row` of this rank, in the factors of all rows; NULL without balance losses. */
struct tt_token_factors tt_router_token_factors(const struct tt_attr *attr, const float *factors, int64_t row,
                                                int64_t all_rows, int64_t experts);

/** The terms of token `row` of this rank's `rows` and its logsumexp, into a column of losses (TT_ROUTER_LOSS_ROWS,
 * rows). */
void tt_router_loss_terms(const struct tt_attr *attr, struct tt_token_factors factors,
                          const struct tt_loss_token *token, int64_t row, int64_t rows, int64_t experts, float *losses);

/**
 * The expert of an id. The ids of padding are stored as their complements, which are negative: its rows go to experts
 * like any others, since shapes are static, but nothing is counted of them.
 */
static inline int32_t tt_id_expert(int32_t id)
{
    return id < 0 ? ~id : id;
}

#endif
