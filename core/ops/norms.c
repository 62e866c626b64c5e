/* SPDX-License-Identifier: MIT
 *
 * RMSNORM: y = x / sqrt(mean(x^2) + eps) * w, for each row (Zhang & Sennrich 2019, eq. 4).
 *   in   x (N, G*D), w (D)      out  y (N, G*D), rstd (N, G)      attr  eps, unit_offset: times 1 + w (Gemma)
 *   The G groups of a row are normalised separately: in Qwen3 these are the heads of q and k; otherwise G is 1. Below,
 *   a row is one of the N G rows of width D.
 *
 * RMSNORM_BWD:
 *   in   dy (N, G*D), x, w, rstd, acc_dx (N, G*D) or none, acc_dw (D) or none
 *   out  dx = [acc_dx +] ..., may take acc_dx's memory; dw (D) = [acc_dw +] ..., may take acc_dw's
 *   dw is summed over blocks of SUM_ROWS rows, then over the blocks (struct tt_row_sums).
 *   attr rows (N), out (G). With grains of both, dw is (grains of rows, D), without acc_dw: the ranks that share the
 *     groups add these grain by grain, and ADD_GRAINS ends the sum. So ranks that share the rows add the same terms.
 */
#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { SUM_ROWS = 64 };

static bool extents_fit(const struct tt_node *node, int64_t rows, int64_t groups)
{
    const struct tt_attr *attr = &node->attr;

    return tt_grain_fits(&attr->rows, rows) && tt_grain_fits(&attr->out, groups);
}

/* The number of grains of rows with separate sums; 0: dw is one sum. */
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

/* Adds the sums of grains over the peers, if there are any, then as a tree. */
static int backward_apart(struct tt_graph *graph, const struct tt_node *forward, int dy, int *grad_in, int64_t sums)
{
    bool shared = forward->attr.peers.n > 1;
    int x = forward->in[0], w = forward->in[1], rc = 0, in[2], dw;
    int64_t shape[2] = {sums, tt_value_width(&graph->values[w])};
    struct tt_node bwd = {.op = TT_OP_RMSNORM_BWD,
                          .backward = true,
                          .block = forward->block,
                          .n_in = 6,
                          .in = {dy, x, w, forward->out[1], grad_in[0], TT_NONE},
                          .n_out = 2,
                          .attr = forward->attr};
    struct tt_node all = {.op = TT_OP_SUM_ALL, .backward = true, .block = forward->block, .n_in = 2, .n_out = 1};

    bwd.out[0] = tt_graph_grad_value(graph, x);
    bwd.out[1] = in[0] = tt_rule_value(graph, w, "grad.terms", tt_dtype_sums(graph->dtype), 2, shape, shared);
    TT_TRY(tt_rule_push(graph, &bwd));
    tt_rule_set(forward, 0, bwd.out[0], grad_in);
    if (!tt_rule_wanted(graph, w))
        goto out;
    if (shared) {
        all.attr.peers = forward->attr.peers;
        all.in[0] = in[0];
        all.in[1] = TT_NONE;
        all.out[0] = in[0] = tt_rule_value(graph, w, "grad.terms", tt_dtype_sums(graph->dtype), 2, shape, false);
        TT_TRY(tt_rule_push(graph, &all));
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

    if (sums)
        return backward_apart(graph, &forward, grad_out[0], grad_in, sums);
    return tt_rule_backward(graph, node, grad_out, grad_in);
}

static tt_real offset_of(const struct tt_call *call)
{
    return call->node->attr.unit_offset ? 1.0F : 0.0F;
}

static void rms_run_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t width = tt_value_width(tt_call_in(call, 1));
    int64_t at = part.begin * width;

    TT_RUN_KERNEL(call, rmsnorm_fwd, tt_call_out_at(call, 0, at), tt_call_out_at(call, 1, part.begin),
                  tt_call_in_at(call, 0, at), call->in[1], offset_of(call), part.n, width,
                  (tt_real)call->node->attr.eps);
}

static void rms_run(const struct tt_call *call)
{
    tt_op_run_tiles(call, tt_value_elements(tt_call_out(call, 1)), SUM_ROWS, rms_run_tile);
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

/* Like tt_row_blocks_of, for grains that consist of some of the `groups` groups of each row: a block is one grain of a
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

static void rms_block(const struct tt_call *call, struct tt_range rows, tt_real *to)
{
    int64_t width = tt_value_width(tt_call_in(call, 2)), at = rows.begin * width;

    TT_RUN_KERNEL(call, rmsnorm_bwd, tt_call_out_at(call, 0, at), to, tt_call_in_at(call, 4, at),
                  tt_call_in_at(call, 0, at), tt_call_in_at(call, 1, at), call->in[2], offset_of(call),
                  tt_call_in_at(call, 3, rows.begin), rows.n, width);
}

/* Grains consist of rows, or of groups inside each row (the heads of q and k). If both are in grains, each grain of
 * rows has its own sum. */
static struct tt_row_sums rms_sums(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *rstd = &graph->values[node->in[3]];
    int64_t rows = tt_value_rows(rstd), groups = tt_value_width(rstd);

    return (struct tt_row_sums){.blocks =
                                    tt_grain_size(&node->attr.out)
                                        ? group_blocks_of(&node->attr.out, tt_grain_or(&node->attr.rows, rows), groups)
                                        : tt_row_blocks_of(&node->attr.rows, rows, groups, SUM_ROWS),
                                .columns = tt_value_width(&graph->values[node->in[2]]),
                                .n = 1,
                                .out = 1,
                                .acc = 5,
                                .sums = sums_apart(node, rows),
                                .block = rms_block};
}

const struct tt_op_row TT_OF_TYPE(tt_op_rmsnorm) = {
    .name = "rmsnorm",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_NORM,
    .infer = rms_infer,
    .backward = rms_backward,
    .gradients = {{TT_OP_RMSNORM_BWD, 0, 2, {TT_DY0, TT_X0, TT_X1, TT_Y1, TT_DX0, TT_DX1}}},
    .run = rms_run,
    .flops = 4.0,
    .alias = {1},
};

const struct tt_op_row TT_OF_TYPE(tt_op_rmsnorm_bwd) = {
    .name = "rmsnorm_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_NORM,
    .infer = rms_infer_bwd,
    .run = tt_op_run_sums,
    .sums = rms_sums,
    .flops = 10.0,
    .scratch_bytes = tt_op_sums_scratch,
    .alias = {5, 6},
};

/*
 * LAYERNORM: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b, for each row (Ba et al. 2016); var divides by D, not by
 * D - 1.
 *   in   x (N, D), w (D), b (D) or absent: 0      out  y (N, D), mean (N), rstd (N)      attr  eps
 *   If w and b are (G, D), x and y are (N, G*D), and mean and rstd (N, G): each of the G groups of a row (the heads of
 *   q and k in Command R+) is normalised separately, with its own weights.
 *
 * LAYERNORM_BWD:
 *   in   dy (N, D), x, w, mean, rstd, acc_dx (N, D) or none, acc_dw (D) or none, acc_db (D) or none
 *   out  dx, dw (D), db (D) unless there is no b, each = [its acc +] ... and may take its memory
 *   dw and db are summed like dw of RMSNORM, but always over blocks of SUM_ROWS of the N rows, even with groups.
 *   attr rows (N).
 */

static int64_t groups_of(const struct tt_value *w)
{
    return w->ndim == 2 ? w->shape[0] : 1;
}

static int layer_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    int64_t groups = groups_of(&graph->values[node->in[1]]), width = tt_value_width(&x) / groups;
    int64_t stats[2] = {tt_value_rows(&x), groups};
    int rc = 0;

    if (tt_value_width(&x) % groups != 0 || !tt_op_acc_fits(graph, node, 1, groups, width) ||
        !tt_op_acc_fits(graph, node, 2, groups, width))
        return tt_op_mismatch(graph, node, "x (N, G*D), w (D) or (G, D)[, b as w]");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "mean", groups > 1 ? 2 : 1, stats));
    TT_TRY(tt_op_output(graph, node, 2, name, "rstd", groups > 1 ? 2 : 1, stats));
out:
    return rc;
}

static int layer_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    static const struct tt_gradient without_bias = {
        TT_OP_LAYERNORM_BWD, 0, 2, {TT_DY0, TT_X0, TT_X1, TT_Y1, TT_Y2, TT_DX0, TT_DX1}};
    const struct tt_node forward = graph->nodes[node];

    if (forward.in[2] == TT_NONE)
        return tt_rule_gradient(graph, &forward, &without_bias, grad_out, grad_in);
    return tt_rule_backward(graph, node, grad_out, grad_in);
}

static void layer_run_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t groups = groups_of(tt_call_in(call, 1)), width = tt_value_width(tt_call_in(call, 0)) / groups;
    int64_t first = part.begin * groups, together = groups > 1 ? 1 : part.n; /* rows with the same weights */

    for (int64_t row = first; row < first + part.n * groups; row += together)
        TT_RUN_KERNEL(call, layernorm_fwd, tt_call_out_at(call, 0, row * width), tt_call_out_at(call, 1, row),
                      tt_call_out_at(call, 2, row), tt_call_in_at(call, 0, row * width),
                      tt_call_in_at(call, 1, row % groups * width), tt_call_in_at(call, 2, row % groups * width),
                      together, width, (tt_real)call->node->attr.eps);
}

/* For a LAYERNORM_BWD, whose outputs the rule chose. */
static bool has_bias(const struct tt_node *bwd)
{
    return bwd->n_out > 2;
}

static int layer_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[1]], w = graph->values[node->in[2]];
    int64_t rows = tt_value_rows(&x), all = tt_value_width(&x), groups = groups_of(&w), width = all / groups;
    int64_t stats[2] = {groups > 1 ? rows : 1, groups > 1 ? groups : rows};
    int rc = 0;

    if (all % groups != 0 || !tt_grain_fits(&node->attr.rows, rows) || !tt_op_acc_fits(graph, node, 0, rows, all) ||
        !tt_op_acc_fits(graph, node, 2, groups, width) || !tt_op_acc_fits(graph, node, 3, stats[0], stats[1]) ||
        !tt_op_acc_fits(graph, node, 4, stats[0], stats[1]) || !tt_op_acc_fits(graph, node, 5, rows, all) ||
        !tt_op_acc_fits(graph, node, 6, groups, width) || !tt_op_acc_fits(graph, node, 7, groups, width))
        return tt_op_mismatch(graph, node,
                              "dy, x (N, G*D), w (D) or (G, D), mean, rstd (N) or (N, G), acc_dx (N, G*D), acc_dw and "
                              "acc_db as w");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "weight", w.ndim, w.shape));
    if (has_bias(node))
        TT_TRY(tt_op_output(graph, node, 2, name, "bias", w.ndim, w.shape));
out:
    return rc;
}

static void layer_block(const struct tt_call *call, struct tt_range rows, tt_real *to)
{
    int64_t all = tt_value_width(tt_call_in(call, 1)), groups = groups_of(tt_call_in(call, 2)), at = rows.begin * all;
    struct tt_layernorm_grads of = {
        .dx = tt_call_out_at(call, 0, at),
        .dw = to,
        .db = has_bias(call->node) ? to + all : NULL,
        .acc = tt_call_in_at(call, 5, at),
        .dy = tt_call_in_at(call, 0, at),
        .x = tt_call_in_at(call, 1, at),
        .w = call->in[2],
        .mean = tt_call_in_at(call, 3, rows.begin * groups),
        .rstd = tt_call_in_at(call, 4, rows.begin * groups),
        .groups = groups,
    };

    TT_RUN_KERNEL(call, layernorm_bwd, &of, rows.n * groups, all / groups);
}

static struct tt_row_sums layer_sums(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[1]];

    return (struct tt_row_sums){.blocks = tt_row_blocks_of(&node->attr.rows, tt_value_rows(x), 1, SUM_ROWS),
                                .columns = tt_value_width(x),
                                .n = has_bias(node) ? 2 : 1,
                                .out = 1,
                                .acc = 6,
                                .block = layer_block};
}

const struct tt_op_row TT_OF_TYPE(tt_op_layernorm) = {
    .name = "layernorm",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .may_lack = 1,
    .infer = layer_infer,
    .backward = layer_backward,
    .gradients = {{TT_OP_LAYERNORM_BWD, 0, 3, {TT_DY0, TT_X0, TT_X1, TT_Y1, TT_Y2, TT_DX0, TT_DX1, TT_DX2}}},
    .run = tt_op_run_rows,
    .tile = layer_run_tile,
    .tile_rows = SUM_ROWS,
    .flops = 7.0,
    .alias = {1},
};

const struct tt_op_row TT_OF_TYPE(tt_op_layernorm_bwd) = {
    .name = "layernorm_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32,
           TT_TYPE_F32},
    .may_lack = 1,
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .infer = layer_infer_bwd,
    .run = tt_op_run_sums,
    .sums = layer_sums,
    .flops = 14.0,
    .scratch_bytes = tt_op_sums_scratch,
    .alias = {6, 7, 8},
};

/*
 * ROW_SQUARES: the sums of the squares of the rows of W + scale B A, which is a frozen weight with its adapter.
 *   in   w (O, I), a (r, I), b (O, r)      out  squares (O)
 *   attr scale, in (I): with grains, their sums are added as a tree; partial: the sum is a term of a sum over ranks
 *   No backward, because DoRA takes the norms of rows as constants.
 *
 * DORA (Liu et al. 2024): y = x m / sqrt(squares), element by element of every row.
 *   in   x (N, O), m (O), squares (O)      out  y (N, O), may take x's memory
 *
 * DORA_BWD:
 *   in   dy, x (N, O), m, squares, acc_dx (N, O) or none, acc_dm (O) or none
 *   out  dx = [acc_dx +] ..., may take acc_dx's memory; dm (O) = [acc_dm +] ..., may take acc_dm's
 *   dm is summed like dw of RMSNORM.      attr rows (N)
 */

enum { SQUARED_ROWS = 16, FLOATS_OF_LINE = 16 };

static int squares_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *w = &graph->values[node->in[0]], *a = &graph->values[node->in[1]];
    int64_t rows = tt_value_rows(w), rank = tt_value_rows(a);

    if (w->ndim != 2 || !tt_op_acc_fits(graph, node, 1, rank, tt_value_width(w)) ||
        !tt_op_acc_fits(graph, node, 2, rows, rank) || !tt_grain_fits(&node->attr.in, tt_value_width(w)))
        return tt_op_mismatch(graph, node, "w (O, I), a (r, I), b (O, r)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &rows);
}

struct squaring {
    const struct tt_call *call;
    const tt_real *a;
    tt_real *work;        /* of each worker: the columns of a row of w, and its row of b */
    int64_t first, width; /* columns */
    tt_real *to;
};

/* Columns of a row of a value as floats, of the type in which products read them. */
static const tt_real *row_of(const struct tt_call *call, int i, int64_t row, int64_t first, int64_t n, tt_real *room)
{
    enum { AT_ONCE = 512 }; /* whole blocks of every packing */
    const struct tt_value *value = tt_call_in(call, i);
    int64_t width = tt_value_width(value);
    const char *packed;
    tt_bf16 some[AT_ONCE];

    if (!value->packing && value->dtype == TT_REAL_TYPE)
        return (const tt_real *)call->in[i] + row * width + first;
    if (!value->packing) {
        tt_kernels()->bf16_widen(room, (const tt_bf16 *)call->in[i] + row * width + first, n);
        return room;
    }
    packed = (const char *)call->in[i] + row * tt_packing_row_bytes(value->packing, width);
    if (value->dtype != TT_BF16)
        tt_kernels()->unpack(room, value->packing, packed, width, first, n);
    for (int64_t k = 0, m; value->dtype == TT_BF16 && k < n; k += m) {
        m = n - k < AT_ONCE ? n - k : AT_ONCE;
        tt_kernels()->unpack_bf16(some, value->packing, packed, width, first + k, m);
        tt_kernels()->bf16_widen(room + k, some, m);
    }
    return room;
}

static int64_t work_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *a = &graph->values[node->in[1]];

    return tt_round_up(tt_value_width(a) + 2 * tt_value_rows(a), FLOATS_OF_LINE);
}

static void square_rows(void *arg, int64_t tile, int worker)
{
    const struct squaring *s = arg;
    const struct tt_call *call = s->call;
    struct tt_range part = tt_tile_range(tt_value_rows(tt_call_in(call, 0)), SQUARED_ROWS, tile);
    int64_t rank = tt_value_rows(tt_call_in(call, 1)), stride = tt_value_width(tt_call_in(call, 1));
    tt_real *work = s->work + worker * work_floats(call->graph, call->node), *b = work + stride;

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        const tt_real *of = row_of(call, 2, r, 0, rank, b + rank);

        for (int64_t k = 0; k < rank; k++)
            b[k] = call->node->attr.scale * of[k];
        tt_kernels()->row_squares(s->to + r, row_of(call, 0, r, s->first, s->width, work), s->a + s->first, b, rank,
                                  stride, s->width);
    }
}

static void square_grain(void *arg, int64_t grain, tt_real *to)
{
    struct squaring *s = arg;
    int64_t all = tt_value_width(tt_call_in(s->call, 0)), size = tt_grain_or(&s->call->node->attr.in, all);

    s->first = grain * size;
    s->width = all - s->first < size ? all - s->first : size;
    s->to = to;
    tt_team_run(s->call->team, tt_tiles(tt_value_rows(tt_call_in(s->call, 0)), SQUARED_ROWS), square_rows, s);
}

static int64_t grains_of(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t width = tt_value_width(&graph->values[node->in[0]]);

    return tt_tiles(width, tt_grain_or(&node->attr.in, width));
}

/* Scratch: A as floats, a stack of sums, the work of each worker. */
static int64_t a_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_round_up(tt_value_elements(&graph->values[node->in[1]]), FLOATS_OF_LINE);
}

static int64_t stack_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t n = tt_value_rows(&graph->values[node->in[0]]);

    return tt_round_up(tt_tree_stack_depth(grains_of(graph, node)) * n, FLOATS_OF_LINE);
}

static void squares_run(const struct tt_call *call)
{
    tt_real *a = call->scratch, *stack = a + a_floats(call->graph, call->node);
    struct squaring s = {.call = call, .a = a, .work = stack + stack_floats(call->graph, call->node)};
    int64_t rank = tt_value_rows(tt_call_in(call, 1)), width = tt_value_width(tt_call_in(call, 1));

    if (tt_call_in(call, 1)->dtype == TT_REAL_TYPE)
        s.a = call->in[1];
    else
        tt_kernels()->bf16_widen(a, call->in[1], rank * width);
    tt_op_sum_grains(call->team, grains_of(call->graph, call->node), tt_value_rows(tt_call_in(call, 0)), stack, NULL,
                     call->out[0], square_grain, &s);
}

static int64_t squares_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    return (a_floats(graph, node) + stack_floats(graph, node) + threads * work_floats(graph, node)) *
           (int64_t)sizeof(tt_real);
}

static void squares_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *w = &graph->values[node->in[0]];

    ret_cost->flops = 2.0 * (double)tt_value_elements(w) * (double)(tt_value_rows(&graph->values[node->in[1]]) + 1);
}

static int dora_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    int64_t width = tt_value_width(&x);

    if (!tt_op_acc_fits(graph, node, 1, 1, width) || !tt_op_acc_fits(graph, node, 2, 1, width) ||
        !tt_grain_fits(&node->attr.rows, tt_value_rows(&x)))
        return tt_op_mismatch(graph, node, "x (N, O), m (O), squares (O)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static void dora_tile(const struct tt_call *call, struct tt_range rows)
{
    int64_t width = tt_value_width(tt_call_in(call, 0)), at = rows.begin * width;

    TT_RUN_KERNEL(call, dora_fwd, tt_call_out_at(call, 0, at), tt_call_in_at(call, 0, at), call->in[1], call->in[2],
                  rows.n, width);
}

static int dora_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[1]];
    int64_t rows = tt_value_rows(&x), width = tt_value_width(&x);
    int rc = 0;

    if (!tt_op_acc_fits(graph, node, 0, rows, width) || !tt_op_acc_fits(graph, node, 2, 1, width) ||
        !tt_op_acc_fits(graph, node, 3, 1, width) || !tt_op_acc_fits(graph, node, 4, rows, width) ||
        !tt_op_acc_fits(graph, node, 5, 1, width) || !tt_grain_fits(&node->attr.rows, rows))
        return tt_op_mismatch(graph, node, "dy, x (N, O), m, squares (O), acc_dx (N, O), acc_dm (O)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "m", 1, &width));
out:
    return rc;
}

static void dora_block(const struct tt_call *call, struct tt_range rows, tt_real *to)
{
    int64_t width = tt_value_width(tt_call_in(call, 1)), at = rows.begin * width;

    TT_RUN_KERNEL(call, dora_bwd, tt_call_out_at(call, 0, at), to, tt_call_in_at(call, 4, at),
                  tt_call_in_at(call, 0, at), tt_call_in_at(call, 1, at), call->in[2], call->in[3], rows.n, width);
}

static struct tt_row_sums dora_sums(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[1]];

    return (struct tt_row_sums){.blocks = tt_row_blocks_of(&node->attr.rows, tt_value_rows(x), 1, SUM_ROWS),
                                .columns = tt_value_width(x),
                                .n = 1,
                                .out = 1,
                                .acc = 5,
                                .block = dora_block};
}

const struct tt_op_row TT_OF_TYPE(tt_op_row_squares) = {
    .name = "row_squares",
    .weight = TT_WEIGHT_MATMUL,
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_IN,
    .sums_terms = true,
    .unpacks = 1U << 0,
    .infer = squares_infer,
    .run = squares_run,
    .cost = squares_cost,
    .scratch_bytes = squares_scratch,
};

const struct tt_op_row TT_OF_TYPE(tt_op_dora) = {
    .name = "dora",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ROWS,
    .infer = dora_infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_DORA_BWD, 0, 2, {TT_DY0, TT_X0, TT_X1, TT_X2, TT_DX0, TT_DX1}}},
    .run = tt_op_run_rows,
    .tile = dora_tile,
    .tile_rows = SUM_ROWS,
    .flops = 1.0,
    .alias = {1},
};

const struct tt_op_row TT_OF_TYPE(tt_op_dora_bwd) = {
    .name = "dora_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .infer = dora_infer_bwd,
    .run = tt_op_run_sums,
    .sums = dora_sums,
    .flops = 3.0,
    .scratch_bytes = tt_op_sums_scratch,
    .alias = {5, 6},
};
