/* SPDX-License-Identifier: MIT
 *
 * GELU in its tanh form (Hendrycks & Gimpel 2016; "gelu_new" of transformers): y = x (1 + tanh(u)) / 2 with
 * u = sqrt(2 / pi) (x + 0.044715 x^3). Since (1 + tanh(u)) / 2 is the sigmoid of 2u, y = x / (1 + exp(-2u)).
 *   in   x (N, F)      out  y (N, F), may take x's memory
 *
 * GELU_BWD:
 *   in   dy, x (N, F)      out  dx, may take dy's memory
 */
#include "core/kernels/kernels.h"
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
    int in[2] = {grad_out[0], forward.in[0]}, grad, rc = 0;

    TT_TRY(tt_rule_node(graph, TT_OP_GELU_BWD, &forward, in, 2, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, gelu_fwd, tt_call_out_at(call, 0, part.begin), tt_call_in_at(call, 0, part.begin), part.n);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 8.0 * tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[1]];

    if (!tt_op_acc_fits(graph, node, 0, tt_value_rows(&x), tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "dy, x (N, F)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, gelu_bwd, tt_call_out_at(call, 0, part.begin), tt_call_in_at(call, 0, part.begin),
                  tt_call_in_at(call, 1, part.begin), part.n);
}

static void run_bwd(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), bwd_tile, (void *)call);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 14.0 * tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_gelu = {
    .name = "gelu",
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

const struct tt_op_row tt_op_gelu_bwd = {
    .name = "gelu_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .alias = {1},
};
