/* SPDX-License-Identifier: MIT
 *
 * DISPATCH: copies each token's row for each of its experts, sorted by expert and within an expert by token. There are
 * N k rows in any case; which expert has which of them is known when the step runs.
 *   in   x (N, D), ids (N, k) I32 of experts
 *   out  y (N k, D)
 *        places (N, k) I32: the row of y for each slot of ids
 *        ends (X G) I32: the end of the rows of each expert, and within it of each grain of tokens; they begin where
 *        those before them end
 *   attr experts (X), parts (G grains; core/graph/token_parts.h)
 *
 * DISPATCH_BWD: a token's gradient is the sum over its rows, in the order of its slots (ascending experts).
 *   in   dy (N k, D), places (N, k) I32, acc (N, D) or none      out  dx (N, D) = [acc +] sum, may take acc's memory
 */
#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/ops/experts/choice.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 16 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
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

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[3] = {grad_out[0], forward.out[1], grad_in[0]}, grad, rc = 0;

    if (!tt_rule_wanted(graph, forward.in[0]))
        return 0;
    TT_TRY(tt_rule_node(graph, TT_OP_DISPATCH_BWD, &forward, in, 3, forward.in, 1, &grad));
    tt_rule_set(&forward, 0, grad, grad_in);
out:
    return rc;
}

/*
 * Counts in `next` how many slots each expert has in each grain, or with `places` gives each slot the next row of
 * these.
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
    walk_slots(call, next, call->out[1]); /* at the end, these are the ends */
}

static void copy_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *ids = tt_call_in(call, 1);
    int64_t k = tt_value_width(ids), width = tt_value_width(tt_call_in(call, 0));
    struct tt_range part = tt_tile_range(tt_value_rows(ids), TILE_ROWS, tile);
    const int32_t *places = call->out[1];
    size_t bytes = (size_t)width * tt_dtype_size(tt_call_in(call, 0)->dtype);

    (void)worker;
    for (int64_t i = part.begin * k; i < (part.begin + part.n) * k; i++)
        memcpy(tt_call_out_at(call, 0, places[i] * width), tt_call_in_at(call, 0, i / k * width), bytes);
}

static void run(const struct tt_call *call)
{
    sort(call);
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 1)), TILE_ROWS), copy_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 0.0;
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dy = &graph->values[node->in[0]], *places = &graph->values[node->in[1]];
    int64_t dx[2] = {tt_value_rows(places), tt_value_width(dy)};

    if (tt_value_rows(dy) != tt_value_elements(places) || !tt_op_acc_fits(graph, node, 2, dx[0], dx[1]))
        return tt_op_mismatch(graph, node, "dy (N k, D), places (N, k), acc (N, D)");
    return tt_op_output(graph, node, 0, name, NULL, 2, dx);
}

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *places = tt_call_in(call, 1);
    int64_t k = tt_value_width(places), width = tt_value_width(tt_call_in(call, 0));
    struct tt_range part = tt_tile_range(tt_value_rows(places), TILE_ROWS, tile);

    (void)worker;
    TT_RUN_KERNEL(call, mix_rows, tt_call_out_at(call, 0, part.begin * width),
                  tt_call_in_at(call, 2, part.begin * width), call->in[0],
                  (const int32_t *)call->in[1] + part.begin * k, NULL, part.n, k, width);
}

static void run_bwd(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 1)), TILE_ROWS), sum_tile, (void *)call);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = (double)tt_value_elements(&graph->values[node->in[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_dispatch = {
    .name = "dispatch",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_IDS},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
};

const struct tt_op_row tt_op_dispatch_bwd = {
    .name = "dispatch_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .alias = {3},
};
