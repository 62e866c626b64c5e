/* SPDX-License-Identifier: MIT
 *
 * EXPERTS_BIAS: y = x + b, where each expert's rows have a bias of their own.
 *   in   x (R, M), b (X, M), ends (X) I32 (DISPATCH): expert e has rows [ends[e - 1], ends[e])
 *   out  y (R, M), may take x's memory
 *   attr experts (X)
 *
 * EXPERTS_BIAS_BWD: the gradient of b. The gradient of x is dy itself.
 *   in   dy (R, M), ends, acc (X, M) or none      out  db (X, M) = [acc +] the sum of each expert's rows
 *   An expert's rows are added in their order. It has the same rows on every layout, and so the same bits.
 */
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, SUM_COLUMNS = 64 };

static bool ends_fit(const struct tt_graph *graph, const struct tt_node *node, int input)
{
    const struct tt_value *ends = &graph->values[node->in[input]];

    return node->attr.experts > 0 && ends->ndim == 1 && ends->shape[0] == node->attr.experts;
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!ends_fit(graph, node, 2) || !tt_op_acc_fits(graph, node, 1, node->attr.experts, tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x (R, M), b (X, M), ends (X)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[3] = {grad_out[0], forward.in[2], grad_in[1]}, grad, rc = 0;

    TT_TRY(tt_rule_add(graph, &forward, 0, grad_out[0], grad_in));
    if (!tt_rule_wanted(graph, forward.in[1]))
        return 0;
    TT_TRY(tt_rule_node(graph, TT_OP_EXPERTS_BIAS_BWD, &forward, in, 3, &forward.in[1], 1, &grad));
    tt_rule_set(&forward, 1, grad, grad_in);
out:
    return rc;
}

static int64_t begin_of(const int32_t *ends, int64_t expert)
{
    return expert ? ends[expert - 1] : 0;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *x = tt_call_in(call, 0);
    const int32_t *ends = call->in[2];
    int64_t width = tt_value_width(x), expert = 0;
    struct tt_range part = tt_tile_range(tt_value_rows(x), TILE_ROWS, tile);

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        while (r >= ends[expert])
            expert++;
        TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width),
                      tt_call_in_at(call, 1, expert * width), width);
    }
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 0)), TILE_ROWS), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = (double)tt_value_elements(&graph->values[node->in[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t db[2] = {node->attr.experts, tt_value_width(&graph->values[node->in[0]])};

    if (!ends_fit(graph, node, 1) || !tt_op_acc_fits(graph, node, 2, db[0], db[1]))
        return tt_op_mismatch(graph, node, "dy (R, M), ends (X), acc (X, M)");
    return tt_op_output(graph, node, 0, name, NULL, 2, db);
}

/* A tile is some columns of an expert. */
static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const int32_t *ends = call->in[1];
    int64_t width = tt_value_width(tt_call_in(call, 0)), tiles = tt_tiles(width, SUM_COLUMNS), expert = tile / tiles;
    struct tt_range part = tt_tile_range(width, SUM_COLUMNS, tile % tiles);
    int64_t begin = begin_of(ends, expert), at = expert * width + part.begin;

    (void)worker;
    TT_RUN_KERNEL(call, sum_rows, (float *)call->out[0] + at, tt_call_in_at(call, 2, at),
                  tt_call_in_at(call, 0, begin * width + part.begin), ends[expert] - begin, width, part.n);
}

static void run_bwd(const struct tt_call *call)
{
    tt_team_run(call->team, call->node->attr.experts * tt_tiles(tt_value_width(tt_call_in(call, 0)), SUM_COLUMNS),
                sum_tile, (void *)call);
}

const struct tt_op_row tt_op_experts_bias = {
    .name = "experts_bias",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .alias = {1},
};

const struct tt_op_row tt_op_experts_bias_bwd = {
    .name = "experts_bias_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost,
    .alias = {3},
};
