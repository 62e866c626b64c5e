/* SPDX-License-Identifier: MIT
 *
 * PICK_ROWS: of n blocks of rows, each from a peer that looked up its part of the vocabulary, the rows that were
 * found. Row r of the result is that of token peers.index N + r, from the block of the peer that has the token.
 *   in   x (n N, D), in n blocks, tokens (n N)      out  y (N, D)
 *
 * PICK_ROWS_BWD: puts every row back into the block that it is from; other rows are 0.
 *   in   dy (N, D), tokens                          out  dx (n N, D)
 *   attr out (V), peers: n and this rank's place
 */
#include <string.h>

#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    int64_t rows = tt_value_rows(x), n = node->attr.peers.n, shape[2] = {0, tt_value_width(x)};

    if (n < 1 || rows % n != 0 || tt_value_elements(&graph->values[node->in[1]]) != rows)
        return tt_op_mismatch(graph, node, "x in as many blocks as there are peers, and its tokens");
    shape[0] = rows / n;
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[2] = {grad_out[0], forward.in[1]}, rc = 0, grad;

    TT_TRY(tt_rule_node(graph, TT_OP_PICK_ROWS_BWD, &forward, in, 2, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dy = &graph->values[node->in[0]];
    int64_t shape[2] = {tt_value_rows(dy) * node->attr.peers.n, tt_value_width(dy)};

    if (tt_value_elements(&graph->values[node->in[1]]) != shape[0])
        return tt_op_mismatch(graph, node, "dy (N, D), and the tokens of all peers");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

/* A tile is a range of the own rows; forward from the blocks, backward to them. */
static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    bool back = call->node->op == TT_OP_PICK_ROWS_BWD;
    const struct tt_value *rows = back ? tt_call_in(call, 0) : tt_call_out(call, 0);
    int64_t own = tt_value_rows(rows), width = tt_value_width(rows);
    const int32_t *tokens = (const int32_t *)call->in[1] + call->node->attr.peers.index * own;
    struct tt_range part = tt_tile_range(own, TILE_ROWS, tile);
    size_t bytes = (size_t)width * tt_dtype_size(rows->dtype);

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        int owner = tt_vocabulary_owner(&call->node->attr, tokens[r]);

        if (!back) {
            memcpy(tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, (owner * own + r) * width), bytes);
            continue;
        }
        for (int b = 0; b < call->node->attr.peers.n; b++) {
            void *to = tt_call_out_at(call, 0, (b * own + r) * width);

            if (b == owner)
                memcpy(to, tt_call_in_at(call, 0, r * width), bytes);
            else
                memset(to, 0, bytes);
        }
    }
}

static void run(const struct tt_call *call)
{
    bool back = call->node->op == TT_OP_PICK_ROWS_BWD;
    const struct tt_value *rows = back ? tt_call_in(call, 0) : tt_call_out(call, 0);

    tt_team_run(call->team, tt_tiles(tt_value_rows(rows), TILE_ROWS), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 0.0;
    ret_cost->bytes = 2.0 * (double)tt_value_bytes(&graph->values[node->out[0]]);
}

const struct tt_op_row tt_op_pick_rows = {
    .name = "pick_rows",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
};

const struct tt_op_row tt_op_pick_rows_bwd = {
    .name = "pick_rows_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run,
    .cost = cost,
};
