/* SPDX-License-Identifier: MIT
 *
 * What ranks that share a layer exchange inside of it. No rank computes here: a program begins a collective and awaits
 * it. n is the number of peers.
 *
 * GATHER_ROWS: the rows of all peers, in their order; also of ids.
 *   in   x (N, W)                                        out  y (n N, W)
 * SUM_ROWS: this rank's rows of the sum over the peers, rounded once to the type of the graph. It is GATHER_ROWS'
 *   gradient, and the other way round.
 *   in   x (n N, W), partial                             out  y (N, W)
 * SUM_ALL: the whole sum over the peers, added to an earlier one.
 *   in   x F32, acc of the same shape or none            out  y = [acc +] sum, may take acc's memory
 * SWAP_BLOCKS: block b goes to peer b, and block b of the result is that of peer b. It is its own gradient.
 *   in   x (n N, W), in n blocks of rows                 out  y of the same shape
 *   attr peers
 */
#include "core/ops/rule.h"

/* y has `times` / `parts` as many rows as x. */
static int infer_rows(struct tt_graph *graph, struct tt_node *node, const char *name, int times, int parts)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    int64_t rows = tt_value_rows(x), shape[2] = {rows * times / parts, tt_value_width(x)};

    if (node->attr.peers.axis == TT_AXIS_NONE || rows % parts != 0)
        return tt_op_mismatch(graph, node, "x with as many rows for each peer");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static int infer_gather(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    return infer_rows(graph, node, name, node->attr.peers.n, 1);
}

static int infer_scatter(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    return infer_rows(graph, node, name, 1, node->attr.peers.n);
}

static int infer_blocks(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    return infer_rows(graph, node, name, node->attr.peers.n, node->attr.peers.n);
}

static int infer_sum(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, tt_value_rows(&x), tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x, acc of one shape");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

/* The gradient of an exchange is another one, whose result is added to what x has already. */
static int exchange_back(struct tt_graph *graph, enum tt_op_id op, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int rc = 0, grad;

    TT_TRY(tt_rule_node(graph, op, &forward, grad_out, 1, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

/* The sum begins as soon as its terms are there, so that it travels while gradients of weights are computed. */
static int backward_gather(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int producer = graph->values[grad_out[0]].producer, rc = 0, grad;

    TT_TRY(tt_rule_node(graph, TT_OP_SUM_ROWS, &forward, grad_out, 1, forward.in, 1, &grad));
    if (producer != TT_NONE && graph->nodes[producer].backward)
        tt_rule_move_last(graph, producer + 1);
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

static int backward_scatter(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    return exchange_back(graph, TT_OP_GATHER_ROWS, node, grad_out, grad_in);
}

static int backward_blocks(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    return exchange_back(graph, TT_OP_SWAP_BLOCKS, node, grad_out, grad_in);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->bytes = tt_op_bytes(graph, node);
}

#define ANY_TYPE (TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16))

const struct tt_op_row tt_op_gather_rows = {
    .name = "gather_rows",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_GATHER,
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = ANY_TYPE | TT_COMPUTES(TT_I32),
    .infer = infer_gather,
    .backward = backward_gather,
    .cost = cost,
};

const struct tt_op_row tt_op_sum_rows = {
    .name = "sum_rows",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_SCATTER,
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_GRAPH},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer_scatter,
    .backward = backward_scatter,
    .cost = cost,
};

const struct tt_op_row tt_op_sum_all = {
    .name = "sum_all",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_SUM,
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer_sum,
    .cost = cost,
    .alias = {2},
};

const struct tt_op_row tt_op_swap_blocks = {
    .name = "swap_blocks",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_BLOCKS,
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = ANY_TYPE,
    .infer = infer_blocks,
    .backward = backward_blocks,
    .cost = cost,
};
