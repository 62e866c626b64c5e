/* SPDX-License-Identifier: MIT
 *
 * COMBINE: a token's sum over its experts' rows, each times its gate, in the order of the token's slots (ascending
 * experts), in float32.
 *   in   y (N k, D), gates (N, k) F32, places (N, k) I32 (DISPATCH)      out  out (N, D)
 *
 * COMBINE_BWD: dy[place] = gate * dout, and the gate's gradient is the dot product of y[place] and dout. So y is kept;
 * a product with the experts' last weight could stand for it, with other bits.
 *   in   dout (N, D), y, gates, places      out  dy (N k, D), may take y's memory; dgates (N, k) F32
 */
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 16 };

/* y (N k, D) in input `at`, gates and places (N, k) in the next two. */
static bool fits(const struct tt_graph *graph, const struct tt_node *node, int at)
{
    const struct tt_value *y = &graph->values[node->in[at]], *gates = &graph->values[node->in[at + 1]];

    return gates->ndim == 2 && tt_value_rows(y) == tt_value_elements(gates) &&
           tt_op_acc_fits(graph, node, at + 2, gates->shape[0], gates->shape[1]);
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t out[2] = {tt_value_rows(&graph->values[node->in[1]]), tt_value_width(&graph->values[node->in[0]])};

    if (!fits(graph, node, 0))
        return tt_op_mismatch(graph, node, "y (N k, D), gates (N, k), places (N, k)");
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[4] = {grad_out[0], forward.in[0], forward.in[1], forward.in[2]}, grad[2], rc = 0;

    TT_TRY(tt_rule_node(graph, TT_OP_COMBINE_BWD, &forward, in, 4, forward.in, 2, grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad[0], grad_in));
    TT_TRY(tt_rule_add(graph, &forward, 1, grad[1], grad_in));
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t k = tt_value_width(tt_call_in(call, 1)), width = tt_value_width(tt_call_in(call, 0));
    struct tt_range part = tt_tile_range(tt_value_rows(tt_call_in(call, 1)), TILE_ROWS, tile);

    (void)worker;
    TT_RUN_KERNEL(call, mix_rows, tt_call_out_at(call, 0, part.begin * width), NULL, call->in[0],
                  (const int32_t *)call->in[2] + part.begin * k, (const float *)call->in[1] + part.begin * k, part.n, k,
                  width);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 1)), TILE_ROWS), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 2.0 * (double)tt_value_elements(&graph->values[node->in[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value y = graph->values[node->in[1]], gates = graph->values[node->in[2]];
    int rc = 0;

    if (!fits(graph, node, 1) || !tt_op_acc_fits(graph, node, 0, gates.shape[0], tt_value_width(&y)))
        return tt_op_mismatch(graph, node, "dout (N, D), y (N k, D), gates (N, k), places (N, k)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, y.ndim, y.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "gates", gates.ndim, gates.shape));
out:
    return rc;
}

static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t k = tt_value_width(tt_call_in(call, 2)), width = tt_value_width(tt_call_in(call, 1));
    struct tt_range part = tt_tile_range(tt_value_rows(tt_call_in(call, 2)), TILE_ROWS, tile);

    (void)worker;
    TT_RUN_KERNEL(call, mix_rows_bwd, call->out[0], (float *)call->out[1] + part.begin * k,
                  tt_call_in_at(call, 0, part.begin * width), call->in[1],
                  (const int32_t *)call->in[3] + part.begin * k, (const float *)call->in[2] + part.begin * k, part.n, k,
                  width);
}

static void run_bwd(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 2)), TILE_ROWS), bwd_tile, (void *)call);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 3.0 * (double)tt_value_elements(&graph->values[node->in[1]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_combine = {
    .name = "combine",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
};

const struct tt_op_row tt_op_combine_bwd = {
    .name = "combine_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .alias = {2},
};
