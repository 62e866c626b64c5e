/* SPDX-License-Identifier: MIT
 *
 * LOGITS: what generation chooses the next token from: the output projection of the last row that is a token.
 *   in   x (N, D), w (V, D)      out  logits (1, V) of row scalars->rows - 1
 *
 * No backward: training has HEAD_LOSS.
 */
#include "core/kernels/gemv.h"
#include "core/ops/rule.h"

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int64_t shape[2] = {1, tt_value_rows(&w)};

    if (w.ndim != 2 || tt_value_width(&x) != tt_value_width(&w))
        return tt_op_mismatch(graph, node, "x (N, D), w (V, D)");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static void run(const struct tt_call *call)
{
    const struct tt_value *w = tt_call_in(call, 1);
    int64_t width = tt_value_width(w);

    tt_gemv(call->team, &(struct tt_gemv){.bf16 = tt_op_is_bf16(call->graph, call->node),
                                          .w = call->in[1],
                                          .x = tt_call_in_at(call, 0, (call->scalars->rows - 1) * width),
                                          .y = call->out[0],
                                          .rows = tt_value_rows(w),
                                          .width = width});
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *w = &graph->values[node->in[1]];

    ret_cost->flops = 2.0 * (double)tt_value_elements(w);
    ret_cost->bytes = (double)tt_value_bytes(w);
}

const struct tt_op_row tt_op_logits = {
    .name = "logits",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .weight = TT_WEIGHT_MATMUL,
    .infer = infer,
    .run = run,
    .cost = cost,
};
