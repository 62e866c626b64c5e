/* SPDX-License-Identifier: MIT
 *
 * ADD: out = a + b, the residual connection and the sum of two gradients.
 *   in   a, b  of one shape      out  of that shape, may take a's memory
 */
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE = 16384 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value a = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, tt_value_rows(&a), tt_value_width(&a)))
        return tt_op_mismatch(graph, node, "a, b of one shape");
    return tt_op_output(graph, node, 0, name, NULL, a.ndim, a.shape);
}

/* The gradient passes through to both sides. */
static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int rc = 0;

    TT_TRY(tt_rule_add(graph, &forward, 0, grad_out[0], grad_in));
    TT_TRY(tt_rule_add(graph, &forward, 1, grad_out[0], grad_in));
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, part.begin), tt_call_in_at(call, 0, part.begin),
                  tt_call_in_at(call, 1, part.begin), part.n);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_add = {
    .name = "add",
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
