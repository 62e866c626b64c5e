/* SPDX-License-Identifier: MIT
 *
 * ADD_GRAINS: y = [acc +] the rows of x, added as a tree: the end of a sum over grains of rows whose terms were
 * exchanged one by one.
 *   in   x (G, D), acc (D) or none, in F32      out  y (D), may take acc's memory
 */
#include "core/ops/grains.h"
#include "core/ops/rule.h"

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    int64_t width = tt_value_width(x);

    if (!tt_op_acc_fits(graph, node, 1, 1, width))
        return tt_op_mismatch(graph, node, "x (G, D), acc (D)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &width);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *x = tt_call_in(call, 0);
    struct tt_row_blocks blocks = {.grains = tt_value_rows(x), .per_grain = 1};
    struct tt_range part = tt_tile_range(tt_value_width(x), TT_SUM_COLUMNS, tile);
    const float *acc = call->in[1];

    (void)worker;
    tt_row_blocks_sum(&blocks, (float *)call->out[0] + part.begin, acc ? acc + part.begin : NULL,
                      (const float *)call->in[0] + part.begin, tt_value_width(x), part.n);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_width(tt_call_in(call, 0)), TT_SUM_COLUMNS), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = (double)tt_value_elements(&graph->values[node->in[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_add_grains = {
    .name = "add_grains",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer,
    .run = run,
    .cost = cost,
    .alias = {2},
};
