/* SPDX-License-Identifier: MIT
 *
 * Reverse-mode differentiation of a graph: walks the forward nodes backwards and lets each op's row append its backward
 * nodes. The gradient of a value is the SSA value that holds the sum so far; rules thread it through as the accumulate
 * input, so sums have one defined order.
 *
 * The walk starts at the head op. Its forward yields the gradients of its inputs in the same pass over the logits, so
 * differentiating it only exchanges the node for the one with these outputs.
 */
#include "core/base/mem.h"
#include "core/graph/graph.h"
#include "core/ops/op.h"

/* Exchanges the evaluating head for the training head and seeds the gradients of its inputs x and w. */
static int differentiate_head(struct tt_graph *graph, int node, int *grad)
{
    struct tt_node *head = &graph->nodes[node];
    struct tt_node with_grads = *head;

    with_grads.op = TT_OP_HEAD_LOSS_GRAD;
    with_grads.out[1] = tt_graph_grad_value(graph, head->in[0]);
    with_grads.out[2] = tt_graph_grad_value(graph, head->in[1]);
    with_grads.n_out = 3;
    with_grads.in[with_grads.n_in++] = TT_NONE; /* no earlier gradient of w to add to */
    for (int k = 1; k < 3; k++) {
        graph->values[with_grads.out[k]].producer = node;
        grad[with_grads.in[k - 1]] = with_grads.out[k];
    }
    graph->nodes[node] = with_grads;
    return 0;
}

static int differentiate_node(struct tt_graph *graph, int node, int *grad)
{
    const struct tt_node forward = graph->nodes[node]; /* a copy: rules add nodes */
    const struct tt_op_row *row = tt_op_row(forward.op);
    int grad_out[TT_MAX_OUTPUTS], grad_in[TT_MAX_INPUTS];
    bool reached = false;
    int rc;

    for (int k = 0; k < forward.n_out; k++) {
        grad_out[k] = grad[forward.out[k]];
        reached = reached || grad_out[k] != TT_NONE;
    }
    if (!reached)
        return 0;
    if (!row->backward)
        return tt_fail(TT_EINTERNAL, "op %s has no backward rule", row->name);
    for (int i = 0; i < forward.n_in; i++)
        grad_in[i] = forward.in[i] == TT_NONE ? TT_NONE : grad[forward.in[i]];
    if ((rc = row->backward(graph, node, grad_out, grad_in)) < 0)
        return rc;
    for (int i = 0; i < forward.n_in; i++)
        if (forward.in[i] != TT_NONE)
            grad[forward.in[i]] = grad_in[i];
    return 0;
}

int tt_graph_differentiate(struct tt_graph *graph, int n_params, int *ret_param_grad)
{
    int n_forward = graph->n_nodes, n_values = graph->n_values;
    int *grad = tt_calloc((size_t)n_values, sizeof *grad); /* of forward values only */
    int head = TT_NONE, rc = 0;

    for (int v = 0; v < n_values; v++)
        grad[v] = TT_NONE;
    for (int node = 0; node < n_forward; node++)
        if (graph->nodes[node].op == TT_OP_HEAD_LOSS)
            head = node;
    if (head == TT_NONE) {
        rc = tt_fail(TT_EINTERNAL, "the graph has no head op to differentiate");
        goto out;
    }
    TT_TRY(differentiate_head(graph, head, grad));
    for (int node = head - 1; node >= 0; node--)
        TT_TRY(differentiate_node(graph, node, grad));
    for (int node = n_forward; node < graph->n_nodes; node++)
        graph->nodes[node].backward = true;
    for (int p = 0; p < n_params; p++)
        ret_param_grad[p] = TT_NONE;
    for (int v = 0; v < n_values; v++)
        if (graph->values[v].kind == TT_VALUE_PARAM && graph->values[v].param < n_params)
            ret_param_grad[graph->values[v].param] = grad[v];
out:
    tt_free(grad);
    return rc;
}
