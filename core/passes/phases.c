/* SPDX-License-Identifier: MIT
 *
 * The head in phases: writes a new list of nodes, in which chunks replace the head.
 */
#include "core/passes/phases.h"

#include "core/base/mem.h"
#include "core/math/round.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { MOST_DEPTH = 8 /* depth of the stack of sums for dw: enough for TT_MOST_GRAINS */ };

/* A head, and the progress of its chunks: the latest value of each sum, or TT_NONE. */
struct head {
    struct tt_graph *graph;
    struct tt_node node;
    bool grad, in_place; /* dx takes the memory of x */
    bool sums_grains;    /* dw is a sum over grains of rows */
    int64_t rows, row_grain, chunk_rows;
    int loss, x, dx;
    int dw; /* dw of this grain of rows, or of all rows */
};

/* Checks the node against its op's row, adds missing outputs, and appends the node. */
static int add_node(struct head *head, struct tt_node *node, const char *name)
{
    int rc = 0;

    node->backward = head->node.backward;
    node->block = head->node.block;
    TT_TRY(tt_op_infer(head->graph, node, name));
    tt_graph_append(head->graph, node);
out:
    return rc;
}

/* A new value like another one. */
static int value_like(struct tt_graph *graph, int of)
{
    const struct tt_value value = graph->values[of]; /* a copy: adding moves the array */
    int id = tt_graph_value(graph, value.kind, value.dtype, value.name, value.ndim, value.shape);

    graph->values[id].param = value.param;
    graph->values[id].part = value.part;
    graph->values[id].partial = value.partial;
    return id;
}

/* Adds the logits and the sums of all peers; ret_values gets both. */
static int add_logits(struct head *head, const struct tt_attr *attr, int *ret_values)
{
    struct tt_node logits = {
        .op = TT_OP_HEAD_LOGITS, .n_in = 3, .in = {head->x, head->node.in[1], head->node.in[2]}, .attr = *attr};
    struct tt_node gather = {.op = TT_OP_GATHER_ROWS, .n_in = 1, .attr.peers = attr->peers};
    int rc = 0;

    TT_TRY(add_node(head, &logits, "logits"));
    ret_values[0] = logits.out[0];
    ret_values[1] = gather.in[0] = logits.out[1];
    if (attr->peers.n < 2)
        goto out;
    TT_TRY(add_node(head, &gather, "logits.sums.gathered"));
    ret_values[1] = gather.out[0];
out:
    return rc;
}

static int add_loss(struct head *head, const struct tt_attr *attr, int sums, bool last)
{
    struct tt_node node = {
        .op = TT_OP_HEAD_CHUNK, .n_in = 3, .in = {sums, head->node.in[2], head->loss}, .n_out = 1, .attr = *attr};

    node.out[0] = head->loss = last ? head->node.out[0] : value_like(head->graph, head->node.out[0]);
    return add_node(head, &node, "");
}

/* A new value for the sum of dw that this chunk completes. */
static int new_dw(const struct head *head, bool last)
{
    struct tt_graph *graph = head->graph;
    int id;

    if (last && !head->sums_grains)
        return head->node.out[2];
    id = value_like(graph, head->node.out[2]);
    if (!head->sums_grains)
        return id;
    graph->values[id].kind = TT_VALUE_GRAD; /* a parameter's gradient has a single buffer, but grains need several */
    graph->values[id].param = TT_NONE;
    return id;
}

/* values: logits and sums. */
static int add_grad(struct head *head, const struct tt_attr *attr, const int *values, bool last)
{
    struct tt_graph *graph = head->graph;
    struct tt_node node = {.op = TT_OP_HEAD_CHUNK_GRAD,
                           .n_in = 8,
                           .in = {values[0], values[1], head->in_place ? TT_NONE : head->x, head->node.in[1],
                                  head->node.in[2], head->loss, head->in_place ? head->x : head->dx, head->dw},
                           .n_out = 3,
                           .attr = *attr};
    int rc = 0;

    node.attr.partial = head->node.attr.partial;
    node.out[0] = last ? head->node.out[0] : value_like(graph, head->node.out[0]);
    node.out[1] = last ? head->node.out[1] : value_like(graph, head->node.out[1]);
    node.out[2] = tt_graph_value(graph, TT_VALUE_GRAD, tt_dtype_sums(graph->dtype), "logits.grad", 2,
                                 graph->values[values[0]].shape);
    if (head->node.n_out > 2)
        node.out[node.n_out++] = new_dw(head, last);
    TT_TRY(add_node(head, &node, ""));
    head->loss = node.out[0];
    head->dx = node.out[1];
    if (head->in_place)
        head->x = head->dx;
    if (head->node.n_out > 2)
        head->dw = node.out[3];
out:
    return rc;
}

/* The chunks of the rows [begin, end). */
static int add_chunks(struct head *head, int64_t begin, int64_t end)
{
    int rc = 0;

    for (int64_t rows; begin < end; begin += rows) {
        struct tt_attr attr = head->node.attr;
        int values[2];

        rows = end - begin < head->chunk_rows ? end - begin : head->chunk_rows;
        attr.rows = (struct tt_extent){0}; /* chunks cut the rows, so no op needs to know the grains of rows */
        attr.partial = false;
        attr.first_row = begin;
        attr.chunk_rows = rows;
        TT_TRY(add_logits(head, &attr, values));
        if (head->grad)
            TT_TRY(add_grad(head, &attr, values, begin + rows == head->rows));
        else
            TT_TRY(add_loss(head, &attr, values[1], begin + rows == head->rows));
    }
out:
    return rc;
}

/* sum = [acc +] x */
static int add_sum(struct head *head, int acc, int x, int sum)
{
    struct tt_node node = {.op = TT_OP_ACCUMULATE, .n_in = 2, .in = {x, acc}, .n_out = 1, .out = {sum}};

    return add_node(head, &node, "");
}

/* All rows; with grains of rows, dw is the sum over them, added to the earlier gradient if there is one. */
static int add_rows(struct head *head)
{
    int64_t grains = tt_div_up(head->rows, head->row_grain);
    int sums[MOST_DEPTH], depth = 0, rc = 0;

    for (int64_t g = 0; g < grains; g++) {
        int64_t end = (g + 1) * head->row_grain;
        int carries = g + 1 < grains ? tt_tree_carries(g) : depth;

        if (head->sums_grains)
            head->dw = TT_NONE;
        TT_TRY(add_chunks(head, g * head->row_grain, end < head->rows ? end : head->rows));
        if (!head->sums_grains)
            continue;
        sums[depth++] = head->dw;
        for (; carries > 0; carries--, depth--) {
            int sum = new_dw(head, false);

            TT_TRY(add_sum(head, sums[depth - 2], sums[depth - 1], sum));
            sums[depth - 2] = sum;
        }
    }
    if (head->sums_grains)
        TT_TRY(add_sum(head, head->node.in[3], sums[0], head->node.out[2]));
out:
    return rc;
}

static int add_phases(struct tt_graph *graph, const struct tt_node *node)
{
    bool grad = node->op == TT_OP_HEAD_LOSS_GRAD;
    struct head head = {.graph = graph, .node = *node, .grad = grad, .loss = TT_NONE, .dx = TT_NONE};

    head.x = node->in[0];
    head.dw = grad ? node->in[3] : TT_NONE;
    head.rows = tt_value_rows(&graph->values[head.x]);
    head.row_grain = node->attr.rows.grains > 1 ? tt_div_up(node->attr.rows.whole, node->attr.rows.grains) : head.rows;
    head.sums_grains = node->n_out > 2 && node->attr.rows.grains > 1;
    head.chunk_rows = tt_head_chunk_rows(graph, node);
    head.in_place = grad && graph->values[head.x].dtype == graph->values[node->out[1]].dtype;
    return add_rows(&head);
}

int tt_graph_phase_head(struct tt_graph *graph)
{
    struct tt_node *nodes = graph->nodes;
    int n_nodes = graph->n_nodes, rc = 0;

    graph->nodes = NULL; /* the new list */
    graph->n_nodes = graph->cap_nodes = 0;
    for (int n = 0; n < n_nodes; n++) {
        const struct tt_node *node = &nodes[n];

        if ((node->op == TT_OP_HEAD_LOSS || node->op == TT_OP_HEAD_LOSS_GRAD) && node->attr.out.grains > 1)
            TT_TRY(add_phases(graph, node));
        else
            tt_graph_append(graph, node);
    }
out:
    tt_free(nodes);
    return rc;
}
