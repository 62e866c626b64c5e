/* SPDX-License-Identifier: MIT
 *
 * REORDER: the same elements in another order: blocks [a][b] of x become [b][a] in y. Context parallelism needs it
 * around an exchange: rows (R, n W) become n blocks (n R, W) of columns, one for each peer, and rows in the order
 * [piece][sequence][position] become [sequence][piece][position].
 *   in   x, of a * b blocks      out  y (reorder.rows, the rest)
 *   attr reorder: a, b and the rows of y. Its gradient has a and b exchanged.
 */
#include <string.h>

#include "core/ops/rule.h"

enum { TILE_BYTES = 65536 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    const struct tt_reorder *how = &node->attr.reorder;
    int64_t n = tt_value_elements(x), shape[2] = {how->rows, 0};

    if (how->a < 1 || how->b < 1 || how->rows < 1 || n % (how->a * how->b) != 0 || n % how->rows != 0)
        return tt_op_mismatch(graph, node, "x in blocks");
    shape[1] = n / how->rows;
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    struct tt_node back = forward;
    int rc = 0, grad;

    back.attr.reorder = (struct tt_reorder){forward.attr.reorder.b, forward.attr.reorder.a,
                                            tt_value_rows(&graph->values[forward.in[0]])};
    TT_TRY(tt_rule_node(graph, TT_OP_REORDER, &back, grad_out, 1, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

static int64_t block_bytes(const struct tt_call *call)
{
    const struct tt_reorder *how = &call->node->attr.reorder;

    return tt_value_bytes(tt_call_out(call, 0)) / (how->a * how->b);
}

/* The blocks of a tile: as many as fill it. */
static int64_t tile_blocks(const struct tt_call *call)
{
    int64_t bytes = block_bytes(call);

    return bytes < TILE_BYTES ? TILE_BYTES / bytes : 1;
}

/* A tile is a range of y's blocks. */
static void run_tile(void *arg, int64_t tile, int worker)
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

static void run(const struct tt_call *call)
{
    const struct tt_reorder *how = &call->node->attr.reorder;

    tt_team_run(call->team, tt_tiles(how->a * how->b, tile_blocks(call)), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 0.0;
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_reorder = {
    .name = "reorder",
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
};
