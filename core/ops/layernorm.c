/* SPDX-License-Identifier: MIT
 *
 * LAYERNORM: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b, each row alone (Ba et al. 2016); var is over D, not D - 1.
 *   in   x (N, D), w (D), b (D)      out  y (N, D), mean (N), rstd (N)      attr  eps
 *
 * LAYERNORM_BWD:
 *   in   dy (N, D), x, w, mean, rstd, acc_dx (N, D) or none, acc_dw (D) or none, acc_db (D) or none
 *   out  dx, dw (D), db (D), each = [its acc +] ... and may take its memory
 *   dw and db are summed over blocks of SUM_ROWS rows, then over the blocks (tt_row_blocks_sum). attr rows (N).
 */
#include "core/kernels/kernels.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { SUM_ROWS = 64 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    int64_t rows = tt_value_rows(&x), width = tt_value_width(&x);
    int rc = 0;

    if (!tt_op_acc_fits(graph, node, 1, 1, width) || !tt_op_acc_fits(graph, node, 2, 1, width))
        return tt_op_mismatch(graph, node, "x (N, D), w (D), b (D)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "mean", 1, &rows));
    TT_TRY(tt_op_output(graph, node, 2, name, "rstd", 1, &rows));
out:
    return rc;
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[8] = {grad_out[0],    forward.in[0], forward.in[1], forward.out[1],
                 forward.out[2], grad_in[0],    grad_in[1],    grad_in[2]};
    int grad[3], rc = 0;

    TT_TRY(tt_rule_node(graph, TT_OP_LAYERNORM_BWD, &forward, in, 8, forward.in, 3, grad));
    for (int i = 0; i < 3; i++)
        tt_rule_set(&forward, i, grad[i], grad_in);
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *x = tt_call_in(call, 0);
    int64_t width = tt_value_width(x);
    struct tt_range part = tt_tile_range(tt_value_rows(x), SUM_ROWS, tile);
    int64_t at = part.begin * width;

    (void)worker;
    TT_RUN_KERNEL(call, layernorm_fwd, tt_call_out_at(call, 0, at), tt_call_out_at(call, 1, part.begin),
                  tt_call_out_at(call, 2, part.begin), tt_call_in_at(call, 0, at), call->in[1], call->in[2], part.n,
                  width, call->node->attr.eps);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 0)), SUM_ROWS), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 7.0 * tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[1]];
    int64_t rows = tt_value_rows(&x), width = tt_value_width(&x);
    int rc = 0;

    if (!tt_grain_fits(&node->attr.rows, rows) || !tt_op_acc_fits(graph, node, 0, rows, width) ||
        !tt_op_acc_fits(graph, node, 2, 1, width) || !tt_op_acc_fits(graph, node, 3, 1, rows) ||
        !tt_op_acc_fits(graph, node, 4, 1, rows) || !tt_op_acc_fits(graph, node, 5, rows, width) ||
        !tt_op_acc_fits(graph, node, 6, 1, width) || !tt_op_acc_fits(graph, node, 7, 1, width))
        return tt_op_mismatch(graph, node, "dy, x (N, D), w (D), mean, rstd (N), acc_dx (N, D), acc_dw, acc_db (D)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "weight", 1, &width));
    TT_TRY(tt_op_output(graph, node, 2, name, "bias", 1, &width));
out:
    return rc;
}

static struct tt_row_blocks blocks_of(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_row_blocks_of(&node->attr.rows, tt_value_rows(&graph->values[node->in[1]]), 1, SUM_ROWS);
}

/* Puts a block's dw and db into the scratch, side by side in row k for block k. */
static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 1));
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    struct tt_range part = tt_row_block(&blocks, tile);
    int64_t at = part.begin * width;
    float *sums = (float *)call->scratch + tile * 2 * width;
    struct tt_layernorm_grads of = {
        .dx = tt_call_out_at(call, 0, at),
        .dw = sums,
        .db = sums + width,
        .acc = tt_call_in_at(call, 5, at),
        .dy = tt_call_in_at(call, 0, at),
        .x = tt_call_in_at(call, 1, at),
        .w = call->in[2],
        .mean = tt_call_in_at(call, 3, part.begin),
        .rstd = tt_call_in_at(call, 4, part.begin),
    };

    (void)worker;
    TT_RUN_KERNEL(call, layernorm_bwd, &of, part.n, width);
}

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 1));
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    struct tt_range part = tt_tile_range(width, TT_SUM_COLUMNS, tile);

    (void)worker;
    for (int k = 0; k < 2; k++) {
        const float *acc = call->in[6 + k], *sums = (const float *)call->scratch + k * width + part.begin;

        tt_row_blocks_sum(&blocks, (float *)call->out[1 + k] + part.begin, acc ? acc + part.begin : NULL, sums,
                          2 * width, part.n);
    }
}

static void run_bwd(const struct tt_call *call)
{
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);

    tt_team_run(call->team, tt_row_blocks_count(&blocks), bwd_tile, (void *)call);
    tt_team_run(call->team, tt_tiles(tt_value_width(tt_call_in(call, 1)), TT_SUM_COLUMNS), sum_tile, (void *)call);
}

static int64_t scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_row_blocks blocks = blocks_of(graph, node);

    (void)threads;
    return tt_row_blocks_count(&blocks) * 2 * tt_value_width(&graph->values[node->in[1]]) * (int64_t)sizeof(float);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 14.0 * tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_layernorm = {
    .name = "layernorm",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .alias = {1},
};

const struct tt_op_row tt_op_layernorm_bwd = {
    .name = "layernorm_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32,
           TT_TYPE_F32},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .scratch_bytes = scratch_bwd,
    .alias = {6, 7, 8},
};
