/* SPDX-License-Identifier: MIT
 *
 * The head in phases: writes a new list of nodes, in which chunks are in place of the head.
 */
#include "core/passes/phases.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/math/round.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { MOST_DEPTH = 8 /* of the stack of dw's sums: enough for TT_MOST_GRAINS */ };

struct pass {
    struct tt_graph *graph;
    struct tt_node *nodes; /* the new list */
    int n_nodes, cap_nodes;
};

/* A head, and the progress of its chunks: the latest value of each sum, or TT_NONE. */
struct head {
    struct pass *pass;
    struct tt_node node;
    bool grad, in_place; /* dx takes x's place */
    bool sums_grains;    /* dw is a sum over grains of rows */
    int64_t rows, row_grain, chunk_rows;
    int loss, x, dx;
    int dw; /* of this grain of rows, or of all of them */
};

static void append(struct pass *p, const struct tt_node *node)
{
    for (int k = 0; k < node->n_out; k++)
        p->graph->values[node->out[k]].producer = p->n_nodes;
    TT_PUSH(p->nodes, p->n_nodes, p->cap_nodes) = *node;
}

/* Checks the node against its op's row, which adds the outputs that it does not have, and appends it. */
static int add_node(struct head *head, struct tt_node *node, const char *name)
{
    int rc = 0;

    node->backward = head->node.backward;
    node->block = head->node.block;
    TT_TRY(tt_op_infer(head->pass->graph, node, name));
    append(head->pass, node);
out:
    return rc;
}

/* A value like another one. */
static int value_like(struct tt_graph *graph, int of)
{
    const struct tt_value value = graph->values[of]; /* a copy: adding moves the array */
    int id = tt_graph_value(graph, value.kind, value.dtype, value.name, value.ndim, value.shape);

    graph->values[id].param = value.param;
    graph->values[id].part = value.part;
    graph->values[id].partial = value.partial;
    return id;
}

/* The attributes of a chunk's nodes. The chunks cut the rows, so no op needs to know their grains. */
static struct tt_attr chunk_attr(const struct head *head, int64_t begin, int64_t rows)
{
    struct tt_attr attr = head->node.attr;

    attr.rows = (struct tt_extent){0};
    attr.partial = false;
    attr.first_row = begin;
    attr.chunk_rows = rows;
    return attr;
}

/* The logits and the sums of all peers; ret_values: both. */
static int add_logits(struct head *head, const struct tt_attr *attr, int *ret_values)
{
    struct tt_node logits = {.op = TT_OP_HEAD_LOGITS, .n_in = 3, .attr = *attr};
    struct tt_node gather = {.op = TT_OP_GATHER_ROWS, .n_in = 1, .attr.peers = attr->peers};
    int rc = 0;

    logits.in[0] = head->x;
    logits.in[1] = head->node.in[1];
    logits.in[2] = head->node.in[2];
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
    struct tt_node node = {.op = TT_OP_HEAD_CHUNK, .n_in = 3, .n_out = 1, .attr = *attr};
    int rc = 0;

    node.in[0] = sums;
    node.in[1] = head->node.in[2];
    node.in[2] = head->loss;
    node.out[0] = last ? head->node.out[0] : value_like(head->pass->graph, head->node.out[0]);
    TT_TRY(add_node(head, &node, ""));
    head->loss = node.out[0];
out:
    return rc;
}

/* A new value for the sum of dw that this chunk ends in. */
static int new_dw(const struct head *head, bool last)
{
    struct tt_graph *graph = head->pass->graph;
    int id;

    if (last && !head->sums_grains)
        return head->node.out[2];
    id = value_like(graph, head->node.out[2]);
    if (!head->sums_grains)
        return id;
    graph->values[id].kind = TT_VALUE_GRAD; /* a parameter's gradient has one place, and grains need several */
    graph->values[id].param = TT_NONE;
    return id;
}

/* values: logits and sums. */
static int add_grad(struct head *head, const struct tt_attr *attr, const int *values, bool last)
{
    struct tt_graph *graph = head->pass->graph;
    struct tt_node node = {.op = TT_OP_HEAD_CHUNK_GRAD, .n_in = 8, .n_out = 3, .attr = *attr};
    const int in[8] = {values[0],        values[1],  head->in_place ? TT_NONE : head->x,  head->node.in[1],
                       head->node.in[2], head->loss, head->in_place ? head->x : head->dx, head->dw};
    int rc = 0;

    memcpy(node.in, in, sizeof in);
    node.attr.partial = head->node.attr.partial;
    node.out[0] = last ? head->node.out[0] : value_like(graph, head->node.out[0]);
    node.out[1] = last ? head->node.out[1] : value_like(graph, head->node.out[1]);
    node.out[2] = tt_graph_value(graph, TT_VALUE_GRAD, TT_F32, "logits.grad", 2, graph->values[values[0]].shape);
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
        int values[2];
        struct tt_attr attr;

        rows = end - begin < head->chunk_rows ? end - begin : head->chunk_rows;
        attr = chunk_attr(head, begin, rows);
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
    struct tt_node node = {.op = TT_OP_ACCUMULATE, .n_in = 2, .n_out = 1};

    node.in[0] = x;
    node.in[1] = acc;
    node.out[0] = sum;
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

static int add_phases(struct pass *p, const struct tt_node *node)
{
    const struct tt_graph *graph = p->graph;
    bool grad = node->op == TT_OP_HEAD_LOSS_GRAD;
    struct head head = {.pass = p, .node = *node, .grad = grad, .loss = TT_NONE, .dx = TT_NONE};

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
    struct pass p = {.graph = graph};
    int rc = 0;

    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];

        if ((node->op == TT_OP_HEAD_LOSS || node->op == TT_OP_HEAD_LOSS_GRAD) && node->attr.out.grains > 1)
            TT_TRY(add_phases(&p, node));
        else
            append(&p, node);
    }
    tt_free(graph->nodes);
    graph->nodes = p.nodes;
    graph->n_nodes = p.n_nodes;
    graph->cap_nodes = p.cap_nodes;
    p.nodes = NULL;
out:
    tt_free(p.nodes);
    return rc;
}
