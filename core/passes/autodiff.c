/* SPDX-License-Identifier: MIT
 *
 * Reverse-mode differentiation of a graph: walks the forward nodes backwards and lets each op's row append its backward
 * nodes. The gradient of a value is the SSA value that holds the sum so far; rules thread it through as the accumulate
 * input, so the order of every sum is defined. A constant value gets no gradient, so the walk does not reach the nodes
 * that make it.
 *
 * The walk begins with the caller's seeds: values with given gradients. An op that yields the loss has a rule of its
 * own, since its forward can yield the gradients of its inputs in the same pass over the logits.
 */
#include "core/passes/autodiff.h"

#include "core/base/mem.h"
#include "core/ops/experts/router.h"
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
    for (int v = 0; v < n_values; v++)
        graph->values[v].grad = ret_grad[v] < 0 ? TT_NONE : ret_grad[v];
out:
    return rc;
}

/*
 * --- gradients carried over microbatches ---
 *
 * A backward op may have an accumulate input, an earlier sum to which it adds; the op's row names it as the input whose
 * memory the output may take. The pass gives the first contribution to each parameter's gradient such an input, the sum
 * of the previous microbatches. Lowering knows where this sum is, and omits the input in the first microbatch.
 */

int tt_graph_carry_gradients(struct tt_graph *graph)
{
    for (int n = 0; n < graph->n_nodes; n++)
        for (int k = 0; k < graph->nodes[n].n_out; k++) {
            struct tt_node *node = &graph->nodes[n];
            const struct tt_value *out = &graph->values[node->out[k]];
            int input = tt_op_row(node->op)->alias[k] - 1, of = TT_NONE;

            if (out->kind != TT_VALUE_PARAM_GRAD)
                continue;
            if (input < 0)
                return tt_fail(TT_EINTERNAL, "op %s cannot add to an earlier gradient of '%s'",
                               tt_op_row(node->op)->name, out->name);
            if (node->in[input] != TT_NONE)
                continue; /* a later contribution, which adds to the first one */
            for (int v = 0; v < graph->n_values; v++)
                if (graph->values[v].kind == TT_VALUE_PARAM && graph->values[v].param == out->param &&
                    graph->values[v].part == out->part)
                    of = v;
            node->in[input] = tt_graph_grad_value(graph, of);
        }
    graph->carries = true;
    return 0;
}

/* --- losses beside the cross-entropy --- */

int tt_graph_add_z_loss(struct tt_graph *graph, double coefficient)
{
    struct tt_value *loss = graph->token_loss == TT_NONE ? NULL : &graph->values[graph->token_loss];
    struct tt_node *head = loss ? &graph->nodes[loss->producer] : NULL;

    if (!loss || coefficient <= 0.0)
        return 0;
    loss->ndim = 2;
    loss->shape[1] = loss->shape[0];
    loss->shape[0] = 2;
    head->attr.z_loss = coefficient;
    return tt_op_infer(graph, head, "");
}

/* Adds a node at place `to`; ret_value: its output. */
static int insert(struct tt_graph *graph, struct tt_node node, int to, const char *name, int *ret_value)
{
    int rc = 0;

    TT_TRY(tt_graph_try_node(graph, &node, name));
    *ret_value = tt_graph_out(graph, graph->n_nodes - 1);
    tt_rule_move_last(graph, to);
out:
    return rc;
}

/* If the rows of a router are spread over ranks: gathers the experts of all rows, and computes the losses from all of
 * them. */
static int insert_losses(struct tt_graph *graph, int router, int *ret_ids)
{
    const struct tt_node of = graph->nodes[router];
    const struct tt_axis_peers peers[] = {of.attr.peers, of.attr.sequence_peers};
    char *ids_name = tt_format("%s.all_experts", graph->values[of.out[2]].name);
    char *losses_name = tt_format("%s.all_losses", graph->values[of.out[2]].name);
    struct tt_node losses = {.op = TT_OP_ROUTER_LOSSES,
                             .block = of.block,
                             .n_in = 4,
                             .in = {of.out[2], TT_NONE, of.out[3], of.out[0]},
                             .attr = of.attr};
    int to = router + 1, rc = 0;

    *ret_ids = of.out[0];
    for (int i = 0; i < 2; i++)
        if (peers[i].n > 1)
            TT_TRY(insert(graph,
                          (struct tt_node){.op = TT_OP_GATHER_ROWS,
                                           .block = of.block,
                                           .n_in = 1,
                                           .in = {*ret_ids},
                                           .attr = {.peers = peers[i]}},
                          to++, ids_name, ret_ids));
    losses.in[1] = *ret_ids;
    losses.attr.rows = (struct tt_extent){0}; /* the number of rows follows from the experts */
    TT_TRY(insert(graph, losses, to, losses_name, &losses.out[0]));
out:
    tt_free(ids_name);
    tt_free(losses_name);
    return rc;
}

/* Adds the losses of one router, whose backward node reads them. */
static int set_losses(struct tt_graph *graph, int node, const struct tt_router_losses *losses)
{
    struct tt_node *n = &graph->nodes[node];
    char *name = tt_strdup(graph->values[n->out[2]].name);
    int rc = 0, ids = n->out[0], all_ids = TT_NONE, values;

    n->attr.losses = *losses;
    TT_TRY(tt_op_infer(graph, n, name));
    values = n->out[3];
    graph->values[values].producer = node;
    graph->values[values].constant = graph->values[n->out[2]].constant;
    if (tt_router_losses_apart(&n->attr, tt_value_rows(&graph->values[ids])))
        TT_TRY(insert_losses(graph, node, &all_ids));
    for (int b = node + 1; b < graph->n_nodes; b++)
        if (graph->nodes[b].op == TT_OP_ROUTER_BWD && graph->nodes[b].in[1] == ids) {
            graph->nodes[b].attr.losses = *losses;
            graph->nodes[b].in[8] = values;
            graph->nodes[b].in[9] = all_ids;
        }
out:
    tt_free(name);
    return rc;
}

int tt_graph_add_router_losses(struct tt_graph *graph, const struct tt_router_losses *losses)
{
    int rc = 0;

    if (losses->sequence <= 0.0F && losses->microbatch <= 0.0F && losses->z <= 0.0F && losses->global_batch <= 0.0F)
        return 0;
    for (int n = 0; n < graph->n_nodes && rc == 0; n++)
        if (graph->nodes[n].op == TT_OP_ROUTER)
            rc = set_losses(graph, n, losses);
    return rc;
}
