/* SPDX-License-Identifier: MIT
 *
 * SWIGLU: h = silu(g) * u with silu(g) = g / (1 + exp(-g)) (Shazeer 2020).
 *   in   g, u (N, F)      out  h (N, F), may take g's memory
 *
 * SWIGLU_BWD:
 *   in   dh, g, u (N, F)      out  dg, du; elementwise, so dg may take dh's memory and du u's
 */
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE = 8192 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value g = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, tt_value_rows(&g), tt_value_width(&g)))
        return tt_op_mismatch(graph, node, "g, u (N, F)");
    return tt_op_output(graph, node, 0, name, NULL, g.ndim, g.shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[3] = {grad_out[0], forward.in[0], forward.in[1]}, grad[2], rc = 0;

    TT_TRY(tt_rule_node(graph, TT_OP_SWIGLU_BWD, &forward, in, 3, forward.in, 2, grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad[0], grad_in));
    TT_TRY(tt_rule_add(graph, &forward, 1, grad[1], grad_in));
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, swiglu_fwd, tt_call_out_at(call, 0, part.begin), tt_call_in_at(call, 0, part.begin),
                  tt_call_in_at(call, 1, part.begin), part.n);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 4.0 * tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value g = graph->values[node->in[1]];
    int64_t rows = tt_value_rows(&g), width = tt_value_width(&g);
    int rc = 0;

    if (!tt_op_acc_fits(graph, node, 0, rows, width) || !tt_op_acc_fits(graph, node, 2, rows, width))
        return tt_op_mismatch(graph, node, "dh, g, u (N, F)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, g.ndim, g.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "up", g.ndim, g.shape));
out:
    return rc;
}

static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, swiglu_bwd, tt_call_out_at(call, 0, part.begin), tt_call_out_at(call, 1, part.begin),
                  tt_call_in_at(call, 0, part.begin), tt_call_in_at(call, 1, part.begin),
                  tt_call_in_at(call, 2, part.begin), part.n);
}

static void run_bwd(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), bwd_tile, (void *)call);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 10.0 * tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_swiglu = {
    .name = "swiglu",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .alias = {1},
};

const struct tt_op_row tt_op_swiglu_bwd = {
    .name = "swiglu_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .alias = {1, 3},
};
