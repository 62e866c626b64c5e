/* SPDX-License-Identifier: MIT
 *
 * BIAS: y = x + b in every row.
 *   in   x (N, D), b (D)      out  y (N, D), may take x's memory
 *
 * BIAS_BWD: the gradient of b. The gradient of x is dy itself.
 *   in   dy (N, D), acc (D) or none      out  db (D) = [acc +] the sum of dy's rows, may take acc's memory
 *   Summed over blocks of SUM_ROWS rows, then over the blocks (tt_row_blocks_sum). attr rows (N).
 */
#include "core/kernels/kernels.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, SUM_ROWS = 64 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, 1, tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x (N, D), b (D)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[2] = {grad_out[0], grad_in[1]}, grad, rc = 0;

    TT_TRY(tt_rule_add(graph, &forward, 0, grad_out[0], grad_in));
    if (!tt_rule_wanted(graph, forward.in[1]))
        return 0;
    TT_TRY(tt_rule_node(graph, TT_OP_BIAS_BWD, &forward, in, 2, &forward.in[1], 1, &grad));
    tt_rule_set(&forward, 1, grad, grad_in);
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *x = tt_call_in(call, 0);
    int64_t width = tt_value_width(x);
    struct tt_range part = tt_tile_range(tt_value_rows(x), TILE_ROWS, tile);

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++)
        TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width), call->in[1],
                      width);
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
    const struct tt_value *dy = &graph->values[node->in[0]];
    int64_t width = tt_value_width(dy);

    if (!tt_op_acc_fits(graph, node, 1, 1, width) || !tt_grain_fits(&node->attr.rows, tt_value_rows(dy)))
        return tt_op_mismatch(graph, node, "dy (N, D), acc (D)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &width);
}

static struct tt_row_blocks blocks_of(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_row_blocks_of(&node->attr.rows, tt_value_rows(&graph->values[node->in[0]]), 1, SUM_ROWS);
}

static void block_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 0));
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    struct tt_range part = tt_row_block(&blocks, tile);

    (void)worker;
    TT_RUN_KERNEL(call, sum_rows, (float *)call->scratch + tile * width, NULL,
                  tt_call_in_at(call, 0, part.begin * width), part.n, width, width);
}

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 0));
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    struct tt_range part = tt_tile_range(width, TT_SUM_COLUMNS, tile);
    const float *acc = call->in[1];

    (void)worker;
    tt_row_blocks_sum(&blocks, (float *)call->out[0] + part.begin, acc ? acc + part.begin : NULL,
                      (const float *)call->scratch + part.begin, width, part.n);
}

static void run_bwd(const struct tt_call *call)
{
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);

    tt_team_run(call->team, tt_row_blocks_count(&blocks), block_tile, (void *)call);
    tt_team_run(call->team, tt_tiles(tt_value_width(tt_call_in(call, 0)), TT_SUM_COLUMNS), sum_tile, (void *)call);
}

static int64_t scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_row_blocks blocks = blocks_of(graph, node);

    (void)threads;
    return tt_row_blocks_count(&blocks) * tt_value_width(&graph->values[node->in[0]]) * (int64_t)sizeof(float);
}

const struct tt_op_row tt_op_bias = {
    .name = "bias",
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

const struct tt_op_row tt_op_bias_bwd = {
    .name = "bias_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost,
    .scratch_bytes = scratch_bwd,
    .alias = {2},
};
