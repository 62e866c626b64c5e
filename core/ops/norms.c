/* SPDX-License-Identifier: MIT
 *
 * RMSNORM: y = x / sqrt(mean(x^2) + eps) * w, each row alone (Zhang & Sennrich 2019, eq. 4).
 *   in   x (N, G*D), w (D)      out  y (N, G*D), rstd (N, G)      attr  eps
 *   G groups of a row are normalised each alone: the heads of q and k in Qwen3; otherwise G is 1. Below, a row is one
 *   of the N G rows of width D.
 *
 * RMSNORM_BWD:
 *   in   dy (N, G*D), x, w, rstd, acc_dx (N, G*D) or none, acc_dw (D) or none
 *   out  dx = [acc_dx +] ..., may take acc_dx's memory; dw (D) = [acc_dw +] ..., may take acc_dw's
 *   dw is summed over blocks of DW_ROWS rows, then over the blocks (tt_row_blocks_sum).
 *   attr rows (N), out (G). With grains of both, dw is (grains of rows, D), without acc_dw: the ranks that share the
 *     groups add these one by one, and ADD_GRAINS ends the sum. So ranks that share the rows add the same terms.
 */
#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { DW_ROWS = 64 };

static bool extents_fit(const struct tt_node *node, int64_t rows, int64_t groups)
{
    const struct tt_attr *attr = &node->attr;

    return tt_grain_fits(&attr->rows, rows) && tt_grain_fits(&attr->out, groups);
}

/* The grains of rows whose sums are apart; 0: dw is one sum. */
static int64_t sums_apart(const struct tt_node *node, int64_t rows)
{
    int64_t grain = tt_grain_size(&node->attr.rows);

    return grain && tt_grain_size(&node->attr.out) ? tt_tiles(rows, grain) : 0;
}

static int rms_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    int64_t width = tt_value_elements(&graph->values[node->in[1]]), stats[2] = {tt_value_rows(&x), 0};
    int rc = 0;

    if (tt_value_width(&x) % width != 0 || !extents_fit(node, stats[0], tt_value_width(&x) / width))
        return tt_op_mismatch(graph, node, "x (N, G*D), w (D)");
    stats[1] = tt_value_width(&x) / width;
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "rstd", 2, stats));
out:
    return rc;
}

static int push(struct tt_graph *graph, struct tt_node *node)
{
    int rc = 0;

    for (int k = 0; k < node->n_out; k++)
        graph->values[node->out[k]].producer = graph->n_nodes;
    TT_TRY(tt_op_infer(graph, node, ""));
    TT_PUSH(graph->nodes, graph->n_nodes, graph->cap_nodes) = *node;
out:
    return rc;
}

/* A value for the sums of the grains of rows. */
static int sums_value(struct tt_graph *graph, int w, int64_t sums, bool partial)
{
    int64_t shape[2] = {sums, tt_value_width(&graph->values[w])};
    char *name = tt_format("%s.grad.terms", graph->values[w].name);
    int id = tt_graph_value(graph, TT_VALUE_GRAD, TT_F32, name, 2, shape);

    graph->values[id].partial = partial;
    tt_free(name);
    return id;
}

/* The sums of grains are added over the peers, if there are any, then as a tree. */
static int backward_apart(struct tt_graph *graph, const struct tt_node *forward, int dy, int *grad_in, int64_t sums)
{
    bool shared = forward->attr.peers.n > 1;
    int x = forward->in[0], w = forward->in[1], rc = 0, in[2], dw;
    struct tt_node bwd = {.op = TT_OP_RMSNORM_BWD,
                          .backward = true,
                          .block = forward->block,
                          .n_in = 6,
                          .in = {dy, x, w, forward->out[1], grad_in[0], TT_NONE},
                          .n_out = 2,
                          .attr = forward->attr};
    struct tt_node all = {.op = TT_OP_SUM_ALL, .backward = true, .block = forward->block, .n_in = 2, .n_out = 1};

    bwd.out[0] = tt_graph_grad_value(graph, x);
    bwd.out[1] = in[0] = sums_value(graph, w, sums, shared);
    TT_TRY(push(graph, &bwd));
    tt_rule_set(forward, 0, bwd.out[0], grad_in);
    if (!tt_rule_wanted(graph, w))
        goto out;
    if (shared) {
        all.attr.peers = forward->attr.peers;
        all.in[0] = in[0];
        all.in[1] = TT_NONE;
        all.out[0] = in[0] = sums_value(graph, w, sums, false);
        TT_TRY(push(graph, &all));
    }
    in[1] = grad_in[1];
    TT_TRY(tt_rule_node(graph, TT_OP_ADD_GRAINS, &(struct tt_node){.block = forward->block}, in, 2, &w, 1, &dw));
    tt_rule_set(forward, 1, dw, grad_in);
out:
    return rc;
}

static int rms_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int64_t sums = sums_apart(&forward, tt_value_rows(&graph->values[forward.in[0]]));
    int in[6] = {grad_out[0], forward.in[0], forward.in[1], forward.out[1], grad_in[0], grad_in[1]};
    int grad[2], rc = 0;

    if (sums)
        return backward_apart(graph, &forward, grad_out[0], grad_in, sums);
    TT_TRY(tt_rule_node(graph, TT_OP_RMSNORM_BWD, &forward, in, 6, forward.in, 2, grad));
    tt_rule_set(&forward, 0, grad[0], grad_in);
    tt_rule_set(&forward, 1, grad[1], grad_in);
out:
    return rc;
}

static void rms_run_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t width = tt_value_width(tt_call_in(call, 1));
    int64_t at = part.begin * width;

    TT_RUN_KERNEL(call, rmsnorm_fwd, tt_call_out_at(call, 0, at), tt_call_out_at(call, 1, part.begin),
                  tt_call_in_at(call, 0, at), call->in[1], part.n, width, call->node->attr.eps);
}

static void rms_run(const struct tt_call *call)
{
    tt_op_run_tiles(call, tt_value_elements(tt_call_out(call, 1)), DW_ROWS, rms_run_tile);
}

static int rms_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[1]];
    int64_t rows = tt_value_rows(&x), all = tt_value_width(&x), width = tt_value_width(&graph->values[node->in[2]]);
    int64_t dw[2] = {0, width};
    int rc = 0;

    if (all % width != 0 || !extents_fit(node, rows, all / width) || !tt_op_acc_fits(graph, node, 0, rows, all) ||
        !tt_op_acc_fits(graph, node, 3, rows, all / width) || !tt_op_acc_fits(graph, node, 4, rows, all) ||
        !tt_op_acc_fits(graph, node, 5, 1, width))
        return tt_op_mismatch(graph, node, "dy, x (N, G*D), w (D), rstd (N, G), acc_dx (N, G*D), acc_dw (D)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    dw[0] = sums_apart(node, rows);
    TT_TRY(tt_op_output(graph, node, 1, name, "weight", dw[0] ? 2 : 1, dw[0] ? dw : dw + 1));
out:
    return rc;
}

/* As tt_row_blocks_of, if grains are groups of the `groups` rows that each of the `rows` has: a block is one grain of a
 * row. */
static struct tt_row_blocks group_blocks_of(const struct tt_extent *extent, int64_t rows, int64_t groups)
{
    int64_t grain = tt_grain_or(extent, groups);

    return (struct tt_row_blocks){.grains = groups / grain,
                                  .per_grain = rows,
                                  .grain_step = grain,
                                  .block_step = groups,
                                  .most = grain,
                                  .grain_rows = rows * grain};
}

/* Grains of rows, or of each row's groups, which are the heads of q and k; with both, those of a grain of rows. */
static struct tt_row_blocks rms_blocks_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *rstd = &graph->values[node->in[3]];
    int64_t rows = tt_value_rows(rstd), groups = tt_value_width(rstd);

    if (tt_grain_size(&node->attr.out))
        return group_blocks_of(&node->attr.out, tt_grain_or(&node->attr.rows, rows), groups);
    return tt_row_blocks_of(&node->attr.rows, rows, groups, DW_ROWS);
}

/* The number of sums that dw has. */
static int64_t sums_of(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t sums = sums_apart(node, tt_value_rows(&graph->values[node->in[3]]));

    return sums ? sums : 1;
}

static void rms_bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 2));
    struct tt_row_blocks blocks = rms_blocks_of(call->graph, call->node);
    int64_t of_sum = tt_row_blocks_count(&blocks), first = tile / of_sum * blocks.grains * blocks.grain_rows;
    struct tt_range part = tt_row_block(&blocks, tile % of_sum);
    int64_t at = (first + part.begin) * width;

    (void)worker;
    TT_RUN_KERNEL(call, rmsnorm_bwd, tt_call_out_at(call, 0, at), (float *)call->scratch + tile * width,
                  tt_call_in_at(call, 4, at), tt_call_in_at(call, 0, at), tt_call_in_at(call, 1, at), call->in[2],
                  tt_call_in_at(call, 3, first + part.begin), part.n, width);
}

static void dw_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 2)), tiles = tt_tiles(width, TT_SUM_COLUMNS);
    struct tt_row_blocks blocks = rms_blocks_of(call->graph, call->node);
    struct tt_range part = tt_tile_range(width, TT_SUM_COLUMNS, tile % tiles);
    const float *acc = call->in[5], *terms = call->scratch;

    (void)worker;
    terms += tile / tiles * tt_row_blocks_count(&blocks) * width;
    tt_row_blocks_sum(&blocks, (float *)call->out[1] + tile / tiles * width + part.begin, acc ? acc + part.begin : NULL,
                      terms + part.begin, width, part.n);
}

static void rms_run_bwd(const struct tt_call *call)
{
    struct tt_row_blocks blocks = rms_blocks_of(call->graph, call->node);
    int64_t sums = sums_of(call->graph, call->node), width = tt_value_width(tt_call_in(call, 2));

    tt_team_run(call->team, sums * tt_row_blocks_count(&blocks), rms_bwd_tile, (void *)call);
    tt_team_run(call->team, sums * tt_tiles(width, TT_SUM_COLUMNS), dw_tile, (void *)call);
}

static int64_t rms_scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_row_blocks blocks = rms_blocks_of(graph, node);
    int64_t width = tt_value_width(&graph->values[node->in[2]]);

    (void)threads;
    return sums_of(graph, node) * tt_row_blocks_count(&blocks) * width * (int64_t)sizeof(float);
}

const struct tt_op_row tt_op_rmsnorm = {
    .name = "rmsnorm",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_NORM,
    .infer = rms_infer,
    .backward = rms_backward,
    .run = rms_run,
    .flops = 4.0,
    .alias = {1},
};

const struct tt_op_row tt_op_rmsnorm_bwd = {
    .name = "rmsnorm_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_NORM,
    .infer = rms_infer_bwd,
    .run = rms_run_bwd,
    .flops = 10.0,
    .scratch_bytes = rms_scratch_bwd,
    .alias = {5, 6},
};

/*
 * LAYERNORM: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b, each row alone (Ba et al. 2016); var is over D, not D - 1.
 *   in   x (N, D), w (D), b (D)      out  y (N, D), mean (N), rstd (N)      attr  eps
 *
 * LAYERNORM_BWD:
 *   in   dy (N, D), x, w, mean, rstd, acc_dx (N, D) or none, acc_dw (D) or none, acc_db (D) or none
 *   out  dx, dw (D), db (D), each = [its acc +] ... and may take its memory
 *   dw and db are summed over blocks of SUM_ROWS rows, then over the blocks (tt_row_blocks_sum). attr rows (N).
 */

enum { SUM_ROWS = 64 };

static int layer_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
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

static int layer_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
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

static void layer_run_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *x = tt_call_in(call, 0);
    int64_t width = tt_value_width(x);
    int64_t at = part.begin * width;

    TT_RUN_KERNEL(call, layernorm_fwd, tt_call_out_at(call, 0, at), tt_call_out_at(call, 1, part.begin),
                  tt_call_out_at(call, 2, part.begin), tt_call_in_at(call, 0, at), call->in[1], call->in[2], part.n,
                  width, call->node->attr.eps);
}

static void layer_run(const struct tt_call *call)
{
    tt_op_run_tiles(call, tt_value_rows(tt_call_in(call, 0)), SUM_ROWS, layer_run_tile);
}

static int layer_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
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

static struct tt_row_blocks layer_blocks_of(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_row_blocks_of(&node->attr.rows, tt_value_rows(&graph->values[node->in[1]]), 1, SUM_ROWS);
}

/* Puts a block's dw and db into the scratch, side by side in row k for block k. */
static void layer_bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 1));
    struct tt_row_blocks blocks = layer_blocks_of(call->graph, call->node);
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

static void sum_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t width = tt_value_width(tt_call_in(call, 1));
    struct tt_row_blocks blocks = layer_blocks_of(call->graph, call->node);

    for (int k = 0; k < 2; k++) {
        const float *acc = call->in[6 + k], *sums = (const float *)call->scratch + k * width + part.begin;

        tt_row_blocks_sum(&blocks, (float *)call->out[1 + k] + part.begin, acc ? acc + part.begin : NULL, sums,
                          2 * width, part.n);
    }
}

static void layer_run_bwd(const struct tt_call *call)
{
    struct tt_row_blocks blocks = layer_blocks_of(call->graph, call->node);

    tt_team_run(call->team, tt_row_blocks_count(&blocks), layer_bwd_tile, (void *)call);
    tt_op_run_tiles(call, tt_value_width(tt_call_in(call, 1)), TT_SUM_COLUMNS, sum_tile);
}

static int64_t layer_scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_row_blocks blocks = layer_blocks_of(graph, node);

    (void)threads;
    return tt_row_blocks_count(&blocks) * 2 * tt_value_width(&graph->values[node->in[1]]) * (int64_t)sizeof(float);
}

const struct tt_op_row tt_op_layernorm = {
    .name = "layernorm",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .infer = layer_infer,
    .backward = layer_backward,
    .run = layer_run,
    .flops = 7.0,
    .alias = {1},
};

const struct tt_op_row tt_op_layernorm_bwd = {
    .name = "layernorm_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32,
           TT_TYPE_F32},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .infer = layer_infer_bwd,
    .run = layer_run_bwd,
    .flops = 14.0,
    .scratch_bytes = layer_scratch_bwd,
    .alias = {6, 7, 8},
};
