/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAD_BUILD_H
#define TT_GRAD_BUILD_H

/** Helpers to build the graphs of the gradient check. */

#include <stdio.h>

#include "core/graph/graph.h"
#include "core/ops/op.h"

enum { VOCAB = 11 };

/* The next parameter, of shape (rows, width), or (width) if rows is 0. "w" is a weight, "x" represents an
 * activation, "f" is float32 whatever the nodes compute in. */
static inline int named(struct tt_graph *graph, char kind, int64_t rows, int64_t width)
{
    int64_t shape[2] = {rows, width};
    int index = 0;
    char name[32];

    for (int v = 0; v < graph->n_values; v++)
        index += graph->values[v].kind == TT_VALUE_PARAM;
    (void)snprintf(name, sizeof name, "%c%d", kind, index);
    return rows ? tt_graph_param(graph, index, 0, TT_F32, name, 2, shape)
                : tt_graph_param(graph, index, 0, TT_F32, name, 1, &width);
}

static inline int param(struct tt_graph *graph, int64_t rows, int64_t width)
{
    return named(graph, 'w', rows, width);
}

/* The weights of experts: one matrix each. */
static inline int matrices(struct tt_graph *graph, int64_t experts, int64_t rows, int64_t width)
{
    int value = named(graph, 'w', experts * rows, width);

    graph->values[value].ndim = 3;
    graph->values[value].shape[0] = experts;
    graph->values[value].shape[1] = rows;
    graph->values[value].shape[2] = width;
    return value;
}

static inline int activation(struct tt_graph *graph, int64_t rows, int64_t width)
{
    return named(graph, 'x', rows, width);
}

static inline int op(struct tt_graph *graph, enum tt_op_id id, const struct tt_attr *attr, int a, int b, int c)
{
    int in[TT_MAX_INPUTS] = {a, b, c}, n_in = 0;

    while (tt_op_row(id)->in[n_in] != TT_TYPE_NONE)
        n_in++;
    if (id == TT_OP_ROPE || id == TT_OP_POSITION)
        in[n_in - 1] = graph->positions;
    if (id == TT_OP_ATTENTION) {
        in[3] = graph->positions;
        in[4] = TT_NONE; /* sinks */
    }
    return tt_graph_out(graph, tt_graph_node(graph, id, "y", in, n_in, attr));
}

static inline int add(struct tt_graph *graph, int a, int b)
{
    return op(graph, TT_OP_ADD, NULL, a, b, TT_NONE);
}

static inline void inputs(struct tt_graph *graph, int64_t batch, int64_t seq_len)
{
    int64_t shape[2] = {batch, seq_len};

    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, shape);
    graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, shape);
    if (graph->documents)
        graph->positions = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "positions", 2, shape);
}

static inline void table(struct tt_graph *graph, int64_t seq_len, int64_t head_dim)
{
    int64_t shape[3] = {seq_len, head_dim / 2, 2};

    graph->rope_table = tt_graph_value(graph, TT_VALUE_CONST, TT_F32, "rope", 3, shape);
}

/* Ends a graph with the head. w is (VOCAB, width of x), or new if TT_NONE. */
static inline void head(struct tt_graph *graph, int x, int w)
{
    if (w == TT_NONE)
        w = param(graph, VOCAB, tt_value_width(&graph->values[x]));
    graph->token_loss = op(graph, TT_OP_HEAD_LOSS, NULL, x, w, graph->labels);
}

static inline int frozen(struct tt_graph *graph, int value)
{
    graph->values[value].constant = true;
    return value;
}

static inline int rmsnorm(struct tt_graph *graph, int x, int w)
{
    return op(graph, TT_OP_RMSNORM, &(struct tt_attr){.eps = 1e-5F}, x, w, TT_NONE);
}

#endif
