/* SPDX-License-Identifier: MIT
 *
 * Reverse-mode differentiation of a graph: walks the forward nodes backwards and lets each op's row append its backward
 * nodes. The gradient of a value is the SSA value that holds the sum so far; rules thread it through as the accumulate
 * input, so sums have one defined order. A constant value gets no gradient, so the walk does not reach the nodes that
 * make it.
 *
 * The walk begins with the seeds that the caller gives: values and the gradients that they have already. An op that
 * yields the loss has a rule of its own, since its forward can yield the gradients of its inputs in the same pass
 * over the logits.
 */
#include "core/base/mem.h"
#include "core/graph/graph.h"
#include "core/ops/rule.h"

static int differentiate_node(struct tt_graph *graph, int node, int *grad)
{
    const struct tt_node forward = graph->nodes[node]; /* a copy: rules add nodes */
    const struct tt_op_row *row = tt_op_row(forward.op);
    int grad_out[TT_MAX_OUTPUTS], grad_in[TT_MAX_INPUTS];
    bool reached = false, of_loss = false;
    int rc = 0;

    for (int k = 0; k < forward.n_out; k++) {
        grad_out[k] = grad[forward.out[k]];
        reached = reached || grad_out[k] != TT_NONE;
        of_loss = of_loss || grad_out[k] == TT_GRAD_OF_LOSS;
    }
    if (!reached)
        return 0;
    if (of_loss ? !row->backward_of_loss : !row->backward)
        return tt_fail(TT_EINTERNAL, "op %s has no backward rule%s", row->name, of_loss ? " as the loss" : "");
    for (int i = 0; i < forward.n_in; i++)
        grad_in[i] = forward.in[i] == TT_NONE ? TT_NONE : grad[forward.in[i]];
    if (of_loss)
        TT_TRY(row->backward_of_loss(graph, node, grad_in));
    else
        TT_TRY(row->backward(graph, node, grad_out, grad_in));
    for (int i = 0; i < forward.n_in; i++)
        if (forward.in[i] != TT_NONE && tt_rule_wanted(graph, forward.in[i]))
            grad[forward.in[i]] = grad_in[i];
out:
    return rc;
}

int tt_graph_differentiate(struct tt_graph *graph, const struct tt_seed *seeds, int n_seeds, int *ret_grad)
{
    int n_forward = graph->n_nodes, n_values = graph->n_values, rc = 0;

    for (int v = 0; v < n_values; v++)
        ret_grad[v] = TT_NONE;
    for (int i = 0; i < n_seeds; i++) {
        if (ret_grad[seeds[i].value] != TT_NONE)
            return tt_fail(TT_EINTERNAL, "two seeds for '%s'", graph->values[seeds[i].value].name);
        ret_grad[seeds[i].value] = seeds[i].grad;
    }
    for (int node = n_forward - 1; node >= 0; node--)
        TT_TRY(differentiate_node(graph, node, ret_grad));
    for (int node = n_forward; node < graph->n_nodes; node++)
        graph->nodes[node].backward = true;
out:
    return rc;
}
