/* SPDX-License-Identifier: MIT */
#ifndef TT_PASSES_AUTODIFF_H
#define TT_PASSES_AUTODIFF_H

#include "core/graph/graph.h"

/**
 * The backward pass of a graph, and the passes that add terms to the differentiated loss.
 */

/* A starting point of a backward pass: a value, and its gradient before any node of this graph adds to it. */
struct tt_seed {
    int value;
    int grad; /* a value of the graph, or TT_GRAD_OF_LOSS */
};

/* `value` is the loss of each token; the differentiated function is the sum of its elements times
 * tt_scalars.inv_valid_tokens. */
enum { TT_GRAD_OF_LOSS = -2 };

/**
 * Appends the backward nodes (reverse mode), from the seeds. Afterwards ret_grad[v] is the id of the whole gradient of
 * value v, for all values that were in the graph before, or TT_NONE if no seed depends on v or v is constant.
 * Contributions are summed in the order of the backward pass, beginning with a seed.
 */
int tt_graph_differentiate(struct tt_graph *graph, const struct tt_seed *seeds, int n_seeds,
                           int *ret_grad) TT_MUST_CHECK;

/**
 * Makes the gradient of every parameter the sum over this and the earlier microbatches (for gradient_sync
 * last_microbatch): the node that computes the first contribution gets a TT_VALUE_PARAM_GRAD without a producer as its
 * accumulate input. That input is absent in the first microbatch of a step. Call it after tt_graph_differentiate.
 */
int tt_graph_carry_gradients(struct tt_graph *graph) TT_MUST_CHECK;

/**
 * Adds coefficient * logsumexp^2 of every token that counts to the differentiated loss, before or after
 * tt_graph_differentiate: token_loss is then (2, N). Does not change a graph without a loss.
 */
int tt_graph_add_z_loss(struct tt_graph *graph, double coefficient) TT_MUST_CHECK;

/**
 * Adds auxiliary losses of all routers to the differentiated loss, before or after tt_graph_differentiate: each router
 * then gets an output with the terms of these losses. Does not change a graph without routers.
 */
int tt_graph_add_router_losses(struct tt_graph *graph, const struct tt_router_losses *losses) TT_MUST_CHECK;

#endif
