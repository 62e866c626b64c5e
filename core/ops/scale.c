/* SPDX-License-Identifier: MIT
 *
 * SCALE: y = attr.scale x. It is its own backward.
 *   in   x (N, D)      out  y (N, D), may take x's memory
 *   It runs on the few columns of a low-rank adapter, so it has no kernel of its own.
 */
#include "core/math/bf16.h"
#include "core/ops/rule.h"

enum { TILE = 8192 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int grad, rc = 0;

    TT_TRY(tt_rule_node(graph, TT_OP_SCALE, &forward, grad_out, 1, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);
    const void *x = tt_call_in_at(call, 0, part.begin);
    void *y = tt_call_out_at(call, 0, part.begin);
    float scale = call->node->attr.scale;

    (void)worker;
    if (tt_op_is_bf16(call->graph, call->node)) {
        for (int64_t i = 0; i < part.n; i++)
            ((tt_bf16 *)y)[i] = tt_bf16_from_float(scale * tt_bf16_to_float(((const tt_bf16 *)x)[i]));
    } else {
        for (int64_t i = 0; i < part.n; i++)
            ((float *)y)[i] = scale * ((const float *)x)[i];
    }
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_scale = {
    .name = "scale",
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .alias = {1},
};
