/* SPDX-License-Identifier: MIT
 *
 * Graphs and their values. core/ops/rule.c adds the nodes.
 */
#include "core/graph/graph.h"

#include <string.h>

#include "core/base/mem.h"

struct tt_graph *tt_graph_new(void)
{
    struct tt_graph *graph = tt_calloc(1, sizeof *graph);

    graph->tokens = graph->labels = graph->positions = graph->rope_table = graph->local_rope_table = graph->token_loss =
        graph->logits = graph->block = TT_NONE;
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

int *tt_ids_new(size_t n)
{
    int *ids = tt_calloc(n + 1, sizeof *ids);

    for (size_t i = 0; i < n; i++)
        ids[i] = TT_NONE;
    return ids;
}

int tt_graph_value(struct tt_graph *graph, enum tt_value_kind kind, enum tt_dtype dtype, const char *name, int ndim,
                   const int64_t *shape)
{
    struct tt_value value = {.kind = kind,
                             .dtype = dtype,
                             .ndim = ndim,
                             .param = TT_NONE,
                             .producer = TT_NONE,
                             .grad = TT_NONE,
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

void tt_graph_append(struct tt_graph *graph, const struct tt_node *node)
{
    for (int k = 0; k < node->n_out; k++)
        graph->values[node->out[k]].producer = graph->n_nodes;
    TT_PUSH(graph->nodes, graph->n_nodes, graph->cap_nodes) = *node;
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
    if (value->packing)
        return tt_value_rows(value) * tt_packing_row_bytes(value->packing, tt_value_width(value));
    return tt_value_elements(value) * (int64_t)tt_dtype_size(value->dtype);
}

int64_t tt_value_rows(const struct tt_value *value)
{
    int64_t n = 1;

    for (int i = 0; i < value->ndim - 1; i++)
        n *= value->shape[i];
    return n;
}
