/* SPDX-License-Identifier: MIT
 *
 * SWIGLU_CLAMPED: h = (u + 1) g / (1 + exp(-1.702 g)), where x has pairs of a gate g and a factor u: (g, u) are columns
 * 2i and 2i + 1. Before, g is clamped to at most 7, and u to -7..7 (gpt-oss).
 *   in   x (N, 2 F)      out  h (N, F)
 *
 * SWIGLU_CLAMPED_BWD: 0 for what was clamped.
 *   in   dh (N, F), x (N, 2 F)      out  dx (N, 2 F), may take x's memory
 */
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE = 8192 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    int64_t h[2] = {tt_value_rows(&x), tt_value_width(&x) / 2};

    if (tt_value_width(&x) % 2 != 0)
        return tt_op_mismatch(graph, node, "x (N, 2 F)");
    return tt_op_output(graph, node, 0, name, NULL, 2, h);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[2] = {grad_out[0], forward.in[0]}, grad, rc = 0;

    TT_TRY(tt_rule_node(graph, TT_OP_SWIGLU_CLAMPED_BWD, &forward, in, 2, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, swiglu_clamped_fwd, tt_call_out_at(call, 0, part.begin), tt_call_in_at(call, 0, 2 * part.begin),
                  part.n);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 6.0 * (double)tt_value_elements(&graph->values[node->out[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[1]];

    if (tt_value_width(&x) % 2 != 0 || !tt_op_acc_fits(graph, node, 0, tt_value_rows(&x), tt_value_width(&x) / 2))
        return tt_op_mismatch(graph, node, "dh (N, F), x (N, 2 F)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_in(call, 0)), TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, swiglu_clamped_bwd, tt_call_out_at(call, 0, 2 * part.begin), tt_call_in_at(call, 0, part.begin),
                  tt_call_in_at(call, 1, 2 * part.begin), part.n);
}

static void run_bwd(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_in(call, 0)), TILE), bwd_tile, (void *)call);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 14.0 * (double)tt_value_elements(&graph->values[node->in[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_swiglu_clamped = {
    .name = "swiglu_clamped",
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
};

const struct tt_op_row tt_op_swiglu_clamped_bwd = {
    .name = "swiglu_clamped_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .alias = {2},
};
