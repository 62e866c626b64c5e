/* SPDX-License-Identifier: MIT
 *
 * ACCUMULATE: y = [acc +] x, a sum of gradients that goes on from an earlier one, which may be absent.
 *   in   x, acc of one shape or none, in F32      out  y of that shape, may take acc's memory
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE = 16384 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, tt_value_rows(&x), tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x, acc of one shape");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);
    const float *x = (const float *)call->in[0] + part.begin, *acc = call->in[1];
    float *y = (float *)call->out[0] + part.begin;

    (void)worker;
    if (acc)
        tt_kernels()->add(y, acc + part.begin, x, part.n);
    else
        memcpy(y, x, (size_t)part.n * sizeof *y);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = node->in[1] == TT_NONE ? 0.0 : tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_accumulate = {
    .name = "accumulate",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer,
    .run = run,
    .cost = cost,
    .alias = {2},
};
