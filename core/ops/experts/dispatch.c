/* SPDX-License-Identifier: MIT
 *
 * DISPATCH: copies each token's row for each of its experts, sorted by expert and within an expert by token. There are
 * always N k rows; which expert has which rows is known only when the step runs.
 *   in   x (N, D), ids (N, k) I32 of experts
 *   out  y (N k, D)
 *        places (N, k) I32: the row of y for each slot of ids
 *        ends (X G) I32: the end of the rows of each expert and, within an expert, of each grain of tokens; they begin
 *        where the previous rows end
 *   attr experts (X), parts (G grains; core/graph/pieces.h)
 *
 * DISPATCH_BWD: a token's gradient is the sum over its rows, in the order of its slots (ascending experts).
 *   in   dy (N k, D), places (N, k) I32, acc (N, D) or none      out  dx (N, D) = [acc +] sum, may take acc's memory
 */
#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/ops/experts/router.h"
#include "core/ops/rule.h"

enum { DISPATCH_TILE_ROWS = 16 };

static int dispatch_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], ids = graph->values[node->in[1]];
    const struct tt_token_parts *parts = &node->attr.parts;
    int64_t y[2] = {tt_value_elements(&ids), tt_value_width(&x)}, ends = node->attr.experts;
    int rc = 0;

    if (tt_value_rows(&x) != tt_value_rows(&ids) || node->attr.experts < 1 || !tt_parts_fit(parts, tt_value_rows(&x)))
        return tt_op_mismatch(graph, node, "x (N, D), ids (N, k), 1 <= experts, and whole grains");
    ends *= tt_parts_grains(parts);
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, 2, y));
    TT_TRY(tt_op_output(graph, node, 1, name, "places", 2, ids.shape));
    TT_TRY(tt_op_output(graph, node, 2, name, "ends", 1, &ends));
out:
    return rc;
}

/*
 * Counts in `next` the slots of each expert in each grain. With `places`, gives each slot its next row instead.
 */
static void walk_slots(const struct tt_call *call, int32_t *next, int32_t *places)
{
    const struct tt_token_parts *parts = &call->node->attr.parts;
    const int32_t *ids = call->in[1];
    int64_t rows = tt_value_rows(tt_call_in(call, 1)), k = tt_value_width(tt_call_in(call, 1));
    int grains = tt_parts_grains(parts);

    for (int64_t row = 0; row < rows; row++) {
        int64_t grain = grains > 1 ? tt_parts_grain_of(parts, rows, row) : 0;

        for (int64_t i = row * k; i < (row + 1) * k; i++) {
            int32_t *of = &next[tt_id_expert(ids[i]) * (int64_t)grains + grain];

            if (places)
                places[i] = *of;
            ++*of;
        }
    }
}

/* Counts, then places: a stable sort. Two passes over N k integers, so one thread does it. */
static void sort(const struct tt_call *call)
{
    int32_t *next = call->out[2], begin = 0;
    int64_t n = tt_value_elements(tt_call_out(call, 2));

    memset(next, 0, (size_t)n * sizeof *next);
    walk_slots(call, next, NULL);
    for (int64_t i = 0; i < n; i++) {
        int32_t count = next[i];

        next[i] = begin;
        begin += count;
    }
    walk_slots(call, next, call->out[1]); /* after the pass, these are the ends */
}

static void copy_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *ids = tt_call_in(call, 1);
    int64_t k = tt_value_width(ids), width = tt_value_width(tt_call_in(call, 0));
    const int32_t *places = call->out[1];
    size_t bytes = (size_t)width * tt_dtype_size(tt_call_in(call, 0)->dtype);

    for (int64_t i = part.begin * k; i < (part.begin + part.n) * k; i++)
        memcpy(tt_call_out_at(call, 0, places[i] * width), tt_call_in_at(call, 0, i / k * width), bytes);
}

static void dispatch_run(const struct tt_call *call)
{
    sort(call);
    tt_op_run_tiles(call, tt_value_rows(tt_call_in(call, 1)), DISPATCH_TILE_ROWS, copy_tile);
}

static int dispatch_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dy = &graph->values[node->in[0]], *places = &graph->values[node->in[1]];
    int64_t dx[2] = {tt_value_rows(places), tt_value_width(dy)};

    if (tt_value_rows(dy) != tt_value_elements(places) || !tt_op_acc_fits(graph, node, 2, dx[0], dx[1]))
        return tt_op_mismatch(graph, node, "dy (N k, D), places (N, k), acc (N, D)");
    return tt_op_output(graph, node, 0, name, NULL, 2, dx);
}

static void dispatch_sum_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *places = tt_call_in(call, 1);
    int64_t k = tt_value_width(places), width = tt_value_width(tt_call_in(call, 0));

    TT_RUN_KERNEL(call, mix_rows, tt_call_out_at(call, 0, part.begin * width),
                  tt_call_in_at(call, 2, part.begin * width), call->in[0],
                  (const int32_t *)call->in[1] + part.begin * k, NULL, part.n, k, width);
}

const struct tt_op_row TT_OF_TYPE(tt_op_dispatch) = {
    .name = "dispatch",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_IDS},
    .infer = dispatch_infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_DISPATCH_BWD, 0, 1, {TT_DY0, TT_Y1, TT_DX0}}},
    .run = dispatch_run,
};

const struct tt_op_row TT_OF_TYPE(tt_op_dispatch_bwd) = {
    .name = "dispatch_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .infer = dispatch_infer_bwd,
    .run = tt_op_run_rows,
    .tile = dispatch_sum_tile,
    .tile_rows = DISPATCH_TILE_ROWS,
    .flops = 1.0,
    .alias = {3},
};

/*
 * COMBINE: for each token, the sum of its experts' rows times their gates, in the order of the token's slots (ascending
 * experts), in float32.
 *   in   y (N k, D), gates (N, k) F32, places (N, k) I32 (DISPATCH)      out  out (N, D)
 *
 * COMBINE_BWD: dy[place] = gate * dout, and the gate's gradient is the dot product of y[place] and dout. So y is kept.
 * (A product with the experts' last weight could recompute it, but with different bits.)
 *   in   dout (N, D), y, gates, places      out  dy (N k, D), may take y's memory; dgates (N, k) F32
 */

enum { COMBINE_TILE_ROWS = 16 };

/* y (N k, D) is input `at`; gates and places (N, k) are the next two. */
static bool fits(const struct tt_graph *graph, const struct tt_node *node, int at)
{
    const struct tt_value *y = &graph->values[node->in[at]], *gates = &graph->values[node->in[at + 1]];

    return gates->ndim == 2 && tt_value_rows(y) == tt_value_elements(gates) &&
           tt_op_acc_fits(graph, node, at + 2, gates->shape[0], gates->shape[1]);
}

static int combine_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t out[2] = {tt_value_rows(&graph->values[node->in[1]]), tt_value_width(&graph->values[node->in[0]])};

    if (!fits(graph, node, 0))
        return tt_op_mismatch(graph, node, "y (N k, D), gates (N, k), places (N, k)");
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

static void combine_run_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t k = tt_value_width(tt_call_in(call, 1)), width = tt_value_width(tt_call_in(call, 0));

    TT_RUN_KERNEL(call, mix_rows, tt_call_out_at(call, 0, part.begin * width), NULL, call->in[0],
                  (const int32_t *)call->in[2] + part.begin * k, (const tt_real *)call->in[1] + part.begin * k, part.n,
                  k, width);
}

static int combine_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
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

static void bwd_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t k = tt_value_width(tt_call_in(call, 2)), width = tt_value_width(tt_call_in(call, 1));

    TT_RUN_KERNEL(call, mix_rows_bwd, call->out[0], (tt_real *)call->out[1] + part.begin * k,
                  tt_call_in_at(call, 0, part.begin * width), call->in[1],
                  (const int32_t *)call->in[3] + part.begin * k, (const tt_real *)call->in[2] + part.begin * k, part.n,
                  k, width);
}

static void combine_cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 3.0 * (double)tt_value_elements(&graph->values[node->in[1]]);
}

const struct tt_op_row TT_OF_TYPE(tt_op_combine) = {
    .name = "combine",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .infer = combine_infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_COMBINE_BWD, 0, 2, {TT_DY0, TT_X0, TT_X1, TT_X2}}},
    .run = tt_op_run_rows,
    .tile = combine_run_tile,
    .tile_rows = COMBINE_TILE_ROWS,
    .flops = 2.0,
};

const struct tt_op_row TT_OF_TYPE(tt_op_combine_bwd) = {
    .name = "combine_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .infer = combine_infer_bwd,
    .run = tt_op_run_rows,
    .tile = bwd_tile,
    .tile_rows = COMBINE_TILE_ROWS,
    .tiled = 1,
    .cost = combine_cost_bwd,
    .alias = {2},
};

/*
 * EXPERTS_BIAS: y = x + b, with a separate bias for each expert's rows.
 *   in   x (R, M), b (X, M), ends (X) I32 (DISPATCH): expert e has rows [ends[e - 1], ends[e])
 *   out  y (R, M), may take x's memory
 *   attr experts (X)
 *
 * EXPERTS_BIAS_BWD: the gradient of b. The gradient of x is dy itself.
 *   in   dy (R, M), ends, acc (X, M) or none      out  db (X, M) = [acc +] the sum of each expert's rows
 *   The rows of an expert are added in order. They are the same rows on every layout, so db has the same bits.
 */

enum { BIAS_TILE_ROWS = 64, SUM_COLUMNS = 64 };

static bool ends_fit(const struct tt_graph *graph, const struct tt_node *node, int input)
{
    const struct tt_value *ends = &graph->values[node->in[input]];

    return node->attr.experts > 0 && ends->ndim == 1 && ends->shape[0] == node->attr.experts;
}

static int bias_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!ends_fit(graph, node, 2) || !tt_op_acc_fits(graph, node, 1, node->attr.experts, tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x (R, M), b (X, M), ends (X)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static int64_t begin_of(const int32_t *ends, int64_t expert)
{
    return expert ? ends[expert - 1] : 0;
}

static void bias_run_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *x = tt_call_in(call, 0);
    const int32_t *ends = call->in[2];
    int64_t width = tt_value_width(x), expert = 0;

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        while (r >= ends[expert])
            expert++;
        TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width),
                      tt_call_in_at(call, 1, expert * width), width);
    }
}

static int bias_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t db[2] = {node->attr.experts, tt_value_width(&graph->values[node->in[0]])};

    if (!ends_fit(graph, node, 1) || !tt_op_acc_fits(graph, node, 2, db[0], db[1]))
        return tt_op_mismatch(graph, node, "dy (R, M), ends (X), acc (X, M)");
    return tt_op_output(graph, node, 0, name, NULL, 2, db);
}

/* A tile is some columns of an expert. */
static void bias_sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const int32_t *ends = call->in[1];
    int64_t width = tt_value_width(tt_call_in(call, 0)), tiles = tt_tiles(width, SUM_COLUMNS), expert = tile / tiles;
    struct tt_range part = tt_tile_range(width, SUM_COLUMNS, tile % tiles);
    int64_t begin = begin_of(ends, expert), at = expert * width + part.begin;

    (void)worker;
    TT_RUN_KERNEL(call, sum_rows, (tt_real *)call->out[0] + at, tt_call_in_at(call, 2, at),
                  tt_call_in_at(call, 0, begin * width + part.begin), ends[expert] - begin, width, part.n);
}

static void bias_run_bwd(const struct tt_call *call)
{
    tt_team_run(call->team, call->node->attr.experts * tt_tiles(tt_value_width(tt_call_in(call, 0)), SUM_COLUMNS),
                bias_sum_tile, (void *)call);
}

const struct tt_op_row TT_OF_TYPE(tt_op_experts_bias) = {
    .name = "experts_bias",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .infer = bias_infer,
    .backward = tt_rule_backward,
    .passes = 1,
    .gradients = {{TT_OP_EXPERTS_BIAS_BWD, 1, 1, {TT_DY0, TT_X2, TT_DX1}}},
    .run = tt_op_run_rows,
    .tile = bias_run_tile,
    .tile_rows = BIAS_TILE_ROWS,
    .flops = 1.0,
    .alias = {1},
};

const struct tt_op_row TT_OF_TYPE(tt_op_experts_bias_bwd) = {
    .name = "experts_bias_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .infer = bias_infer_bwd,
    .run = bias_run_bwd,
    .flops = 1.0,
    .alias = {3},
};
