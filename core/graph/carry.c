/* SPDX-License-Identifier: MIT
 *
 * Gradients that are carried from one microbatch to the next. A backward op adds to an earlier sum if it has one (its
 * accumulate input, which the op's row names as the input whose memory the output may take). The pass gives the first
 * contribution to each parameter's gradient such an input: the sum of the previous microbatches. Lowering knows where
 * that sum is stored, and omits it for the first microbatch.
 */
#include "core/graph/graph.h"
#include "core/ops/op.h"

/* The accumulate input of output k; false if the op has none. */
static bool accumulate_input(const struct tt_node *node, int k, int *ret_input)
{
    *ret_input = tt_op_row(node->op)->alias[k] - 1;
    return *ret_input >= 0;
}

static int carry_into(struct tt_graph *graph, int node, int k)
{
    const struct tt_value *out = &graph->values[graph->nodes[node].out[k]];
    int input, of = TT_NONE;

    if (out->kind != TT_VALUE_PARAM_GRAD)
        return 0;
    if (!accumulate_input(&graph->nodes[node], k, &input))
        return tt_fail(TT_EINTERNAL, "op %s cannot add to an earlier gradient of '%s'",
                       tt_op_row(graph->nodes[node].op)->name, out->name);
    if (graph->nodes[node].in[input] != TT_NONE)
        return 0; /* a later contribution: it adds to the first */
    for (int v = 0; v < graph->n_values; v++)
        if (graph->values[v].kind == TT_VALUE_PARAM && graph->values[v].param == out->param &&
            graph->values[v].part == out->part)
            of = v;
    graph->nodes[node].in[input] = tt_graph_grad_value(graph, of);
    return 0;
}

int tt_graph_carry_gradients(struct tt_graph *graph)
{
    int rc = 0;

    for (int node = 0; node < graph->n_nodes; node++)
        for (int k = 0; k < graph->nodes[node].n_out; k++)
            TT_TRY(carry_into(graph, node, k));
    graph->carries = true;
out:
    return rc;
}
