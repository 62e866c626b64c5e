/* SPDX-License-Identifier: MIT
 *
 * Builds graphs. A wrong shape here is a mistake in a model builder, never in a user's file. So the functions return
 * ids, and tt_graph_node ends the process with a message about the op and the shapes. Builders need no checks.
 */
#include "core/graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/ops/experts/router_losses.h"
#include "core/ops/rule.h"

struct tt_graph *tt_graph_new(void)
{
    struct tt_graph *graph = tt_calloc(1, sizeof *graph);

    graph->tokens = graph->labels = graph->positions = graph->rope_table = graph->token_loss = graph->logits =
        graph->block = TT_NONE;
    return graph;
}

void tt_graph_free(struct tt_graph *graph)
{
    if (!graph)
        return;
    for (int i = 0; i < graph->n_values; i++)
        tt_free(graph->values[i].name);
    tt_free(graph->values);
    tt_free(graph->nodes);
    tt_free(graph->param_values);
    tt_free(graph);
}

int tt_graph_value(struct tt_graph *graph, enum tt_value_kind kind, enum tt_dtype dtype, const char *name, int ndim,
                   const int64_t *shape)
{
    struct tt_value value = {.kind = kind,
                             .dtype = dtype,
                             .ndim = ndim,
                             .param = TT_NONE,
                             .producer = TT_NONE,
                             .constant = kind == TT_VALUE_INPUT || kind == TT_VALUE_CONST};

    value.name = tt_strdup(name);
    memcpy(value.shape, shape, (size_t)ndim * sizeof *shape);
    TT_PUSH(graph->values, graph->n_values, graph->cap_values) = value;
    return graph->n_values - 1;
}

int tt_graph_param(struct tt_graph *graph, int param, int part, enum tt_dtype dtype, const char *name, int ndim,
                   const int64_t *shape)
{
    int slot = 2 * param + part, id;

    while (graph->n_param_values <= slot)
        TT_PUSH(graph->param_values, graph->n_param_values, graph->cap_param_values) = TT_NONE;
    if (graph->param_values[slot] != TT_NONE)
        return graph->param_values[slot];
    graph->param_values[slot] = id = tt_graph_value(graph, TT_VALUE_PARAM, dtype, name, ndim, shape);
    graph->values[id].param = param;
    graph->values[id].part = part;
    return id;
}

static bool inputs_are_constant(const struct tt_graph *graph, const struct tt_node *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i] != TT_NONE && !graph->values[node->in[i]].constant)
            return false;
    return true;
}

int tt_graph_try_node(struct tt_graph *graph, const struct tt_node *node, const char *name)
{
    struct tt_node added = *node;
    int rc = 0;

    TT_TRY(tt_op_infer(graph, &added, name));
    for (int k = 0; k < added.n_out; k++) {
        graph->values[added.out[k]].producer = graph->n_nodes;
        graph->values[added.out[k]].constant = inputs_are_constant(graph, &added);
    }
    TT_PUSH(graph->nodes, graph->n_nodes, graph->cap_nodes) = added;
out:
    return rc;
}

int tt_graph_node(struct tt_graph *graph, enum tt_op_id op, const char *name, const int *in, int n_in,
                  const struct tt_attr *attr)
{
    struct tt_node node = {.op = op, .block = graph->block, .n_in = n_in};

    memcpy(node.in, in, (size_t)n_in * sizeof *in);
    if (attr)
        node.attr = *attr;
    if (tt_graph_try_node(graph, &node, name) < 0) {
        (void)fprintf(stderr, "titan: bug in a graph builder: %s '%s': %s\n", tt_op_row(op)->name, name,
                      tt_error_message());
        abort();
    }
    return graph->n_nodes - 1;
}

int tt_graph_out(const struct tt_graph *graph, int node)
{
    return graph->nodes[node].out[0];
}

int tt_graph_add_z_loss(struct tt_graph *graph, float coefficient)
{
    struct tt_value *loss = graph->token_loss == TT_NONE ? NULL : &graph->values[graph->token_loss];
    struct tt_node *head = loss ? &graph->nodes[loss->producer] : NULL;

    if (!loss || coefficient <= 0.0F)
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

/* After a router of which other ranks have rows: gathers the experts of all rows, and makes the losses of all. */
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
    losses.attr.rows = (struct tt_extent){0}; /* the experts say how many rows there are */
    TT_TRY(insert(graph, losses, to, losses_name, &losses.out[0]));
out:
    tt_free(ids_name);
    tt_free(losses_name);
    return rc;
}

/* A backward node reads what it needs of the router's losses. */
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

int64_t tt_value_elements(const struct tt_value *value)
{
    int64_t n = 1;

    for (int i = 0; i < value->ndim; i++)
        n *= value->shape[i];
    return n;
}

int64_t tt_value_bytes(const struct tt_value *value)
{
    return tt_value_elements(value) * (int64_t)tt_dtype_size(value->dtype);
}

int64_t tt_value_width(const struct tt_value *value)
{
    return value->ndim ? value->shape[value->ndim - 1] : 1;
}

int64_t tt_value_rows(const struct tt_value *value)
{
    int64_t n = 1;

    for (int i = 0; i < value->ndim - 1; i++)
        n *= value->shape[i];
    return n;
}

/* Each rank's readers of gathered rows make a term of their gradient. */
static bool is_gathered(const struct tt_graph *graph, const struct tt_value *value)
{
    return value->producer != TT_NONE && tt_op_row(graph->nodes[value->producer].op)->exchange == TT_EXCHANGE_GATHER;
}

int tt_graph_grad_value(struct tt_graph *graph, int of)
{
    const struct tt_value value = graph->values[of]; /* a copy: adding moves the array */
    bool param = value.kind == TT_VALUE_PARAM, summed = param && !value.constant;
    bool partial = is_gathered(graph, &value);
    char *name = tt_format("%s.grad", value.name);
    int id = tt_graph_value(graph, summed ? TT_VALUE_PARAM_GRAD : TT_VALUE_GRAD,
                            param || partial ? TT_F32
                            : value.partial  ? graph->dtype
                                             : value.dtype,
                            name, value.ndim, value.shape);

    graph->values[id].partial = partial;
    if (summed) {
        graph->values[id].param = value.param;
        graph->values[id].part = value.part;
    }
    tt_free(name);
    return id;
}
