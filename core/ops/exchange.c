/* SPDX-License-Identifier: MIT
 *
 * The exchanges inside a layer that several ranks share. No rank computes here: a program begins a collective and waits
 * for it. n is the number of peers.
 *
 * GATHER_ROWS: the rows of all peers, in the peers' order; rows of ids too.
 *   in   x (N, W)                                        out  y (n N, W)
 * SUM_ROWS: this rank's rows of the sum over the peers, rounded once to the type of the graph. It is the gradient of
 * GATHER_ROWS, and vice versa.
 *   in   x (n N, W), partial                             out  y (N, W)
 * SUM_ALL: the whole sum over the peers, added to an earlier one.
 *   in   x F32, acc of the same shape or none            out  y = [acc +] sum, may take acc's memory
 * SWAP_BLOCKS: block b goes to peer b, and block b of the result comes from peer b. It is its own gradient.
 *   in   x (n N, W), in n blocks of rows                 out  y of the same shape
 *   attr peers
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { ACCUMULATE_TILE = 16384 };

static int infer_rows(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    int times = node->op == TT_OP_SUM_ROWS ? 1 : node->attr.peers.n;
    int parts = node->op == TT_OP_GATHER_ROWS ? 1 : node->attr.peers.n;
    int64_t rows = tt_value_rows(x), shape[2] = {rows * times / parts, tt_value_width(x)};

    if (node->attr.peers.axis == TT_AXIS_NONE || rows % parts != 0)
        return tt_op_mismatch(graph, node, "x with the same number of rows for each peer");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static int infer_sum(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, tt_value_rows(&x), tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x, acc of one shape");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

/* The sum begins as soon as its terms exist, so that it travels while gradients of weights are computed. */
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

#define ANY_TYPE (TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16))

const struct tt_op_row TT_OF_TYPE(tt_op_gather_rows) = {
    .name = "gather_rows",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_GATHER,
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = ANY_TYPE | TT_COMPUTES(TT_I32),
    .infer = infer_rows,
    .backward = backward_gather,
};

const struct tt_op_row TT_OF_TYPE(tt_op_sum_rows) = {
    .name = "sum_rows",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_SCATTER,
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_GRAPH},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer_rows,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_GATHER_ROWS, 0, 1, {TT_DY0}}},
};

const struct tt_op_row TT_OF_TYPE(tt_op_sum_all) = {
    .name = "sum_all",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_SUM,
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer_sum,
    .alias = {2},
};

const struct tt_op_row TT_OF_TYPE(tt_op_swap_blocks) = {
    .name = "swap_blocks",
    .weight = TT_WEIGHT_EXCHANGE,
    .exchange = TT_EXCHANGE_BLOCKS,
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = ANY_TYPE,
    .infer = infer_rows,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_SWAP_BLOCKS, 0, 1, {TT_DY0}}},
};

/*
 * ACCUMULATE: y = [acc +] x, which continues an earlier sum of gradients, if there is one.
 *   in   x, acc of one shape or none, in F32      out  y of that shape, may take acc's memory
 */

static void accumulate_tile(const struct tt_call *call, struct tt_range part)
{
    const tt_real *x = (const tt_real *)call->in[0] + part.begin, *acc = call->in[1];
    tt_real *y = (tt_real *)call->out[0] + part.begin;

    if (acc)
        tt_kernels()->add(y, acc + part.begin, x, part.n);
    else
        memcpy(y, x, (size_t)part.n * sizeof *y);
}

static void accumulate_run(const struct tt_call *call)
{
    tt_op_run_tiles(call, tt_value_elements(tt_call_out(call, 0)), ACCUMULATE_TILE, accumulate_tile);
}

static void accumulate_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = node->in[1] == TT_NONE ? 0.0 : tt_op_elements(graph, node);
}

const struct tt_op_row TT_OF_TYPE(tt_op_accumulate) = {
    .name = "accumulate",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer_sum,
    .run = accumulate_run,
    .cost = accumulate_cost,
    .alias = {2},
};

/*
 * ADD_GRAINS: y = [acc +] the rows of x, added as a tree. It ends a sum over grains of rows, after the ranks have
 * exchanged the terms one by one.
 *   in   x (G, D), acc (D) or none, in F32      out  y (D), may take acc's memory
 */

static int grains_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    int64_t width = tt_value_width(x);

    if (!tt_op_acc_fits(graph, node, 1, 1, width))
        return tt_op_mismatch(graph, node, "x (G, D), acc (D)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &width);
}

static struct tt_row_sums grains_sums(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[0]];

    return (struct tt_row_sums){
        .blocks = {.grains = tt_value_rows(x), .per_grain = 1}, .columns = tt_value_width(x), .n = 1, .acc = 1};
}

const struct tt_op_row TT_OF_TYPE(tt_op_add_grains) = {
    .name = "add_grains",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = grains_infer,
    .run = tt_op_run_sums,
    .sums = grains_sums,
    .flops = 1.0,
    .alias = {2},
};

/*
 * REORDER: the same elements in another order: blocks [a][b] of x become [b][a] in y. Context parallelism needs it
 * around an exchange: rows (R, n W) become n blocks (n R, W) of columns, one for each peer, and rows in the order
 * [piece][sequence][position] become [sequence][piece][position].
 *   in   x, of a * b blocks      out  y (reorder.rows, the rest)
 *   attr reorder: a, b and the rows of y. Its gradient has a and b exchanged.
 */

enum { TILE_BYTES = 65536 };

static int reorder_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    const struct tt_reorder *how = &node->attr.reorder;
    int64_t n = tt_value_elements(x), shape[2] = {how->rows, 0};

    if (how->a < 1 || how->b < 1 || how->rows < 1 || n % (how->a * how->b) != 0 || n % how->rows != 0)
        return tt_op_mismatch(graph, node, "x in blocks");
    shape[1] = n / how->rows;
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static int reorder_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    struct tt_node back = graph->nodes[node];

    back.attr.reorder =
        (struct tt_reorder){back.attr.reorder.b, back.attr.reorder.a, tt_value_rows(&graph->values[back.in[0]])};
    return tt_rule_gradient(graph, &back, TT_OF_TYPE(tt_op_reorder).gradients, grad_out, grad_in);
}

static int64_t block_bytes(const struct tt_call *call)
{
    const struct tt_reorder *how = &call->node->attr.reorder;

    return tt_value_bytes(tt_call_out(call, 0)) / (how->a * how->b);
}

/* The number of blocks that fill a tile. */
static int64_t tile_blocks(const struct tt_call *call)
{
    int64_t bytes = block_bytes(call);

    return bytes < TILE_BYTES ? TILE_BYTES / bytes : 1;
}

/* A tile is a range of y's blocks. */
static void reorder_run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_reorder *how = &call->node->attr.reorder;
    struct tt_range part = tt_tile_range(how->a * how->b, tile_blocks(call), tile);
    int64_t bytes = block_bytes(call);

    (void)worker;
    for (int64_t i = part.begin; i < part.begin + part.n; i++) {
        int64_t from = i % how->a * how->b + i / how->a;

        memcpy((char *)call->out[0] + i * bytes, (const char *)call->in[0] + from * bytes, (size_t)bytes);
    }
}

static void reorder_run(const struct tt_call *call)
{
    const struct tt_reorder *how = &call->node->attr.reorder;

    tt_team_run(call->team, tt_tiles(how->a * how->b, tile_blocks(call)), reorder_run_tile, (void *)call);
}

const struct tt_op_row TT_OF_TYPE(tt_op_reorder) = {
    .name = "reorder",
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .infer = reorder_infer,
    .backward = reorder_backward,
    .gradients = {{TT_OP_REORDER, 0, 1, {TT_DY0}}},
    .run = reorder_run,
};
