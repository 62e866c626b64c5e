/* SPDX-License-Identifier: MIT
 *
 * Divides the experts of a forward graph: finds the feed-forward of each layer, EXPERTS for gate and up, SWIGLU and
 * EXPERTS for down, and puts one node in their place.
 */
#include "core/graph/divide_experts.h"

#include <math.h>

#include "core/base/mem.h"
#include "core/graph/token_parts.h"
#include "core/ops/op.h"

enum { ROWS, WEIGHT, ENDS }; /* inputs of EXPERTS */

/* The nodes of a layer's feed-forward. */
struct found {
    int gate, up, hidden, down;
};

/* The node that makes input i, if it is of that op; else TT_NONE. */
static int maker(const struct tt_graph *graph, const struct tt_node *node, int i, enum tt_op_id op)
{
    int producer = graph->values[node->in[i]].producer;

    return producer != TT_NONE && graph->nodes[producer].op == op ? producer : TT_NONE;
}

/* Whether the node is the last of such a feed-forward. */
static bool find(const struct tt_graph *graph, int node, struct found *ret_found)
{
    const struct tt_node *down = &graph->nodes[node], *hidden, *gate, *up;
    struct found f = {.down = node};

    if (down->op != TT_OP_EXPERTS || (f.hidden = maker(graph, down, ROWS, TT_OP_SWIGLU)) == TT_NONE)
        return false;
    hidden = &graph->nodes[f.hidden];
    f.gate = maker(graph, hidden, 0, TT_OP_EXPERTS);
    f.up = maker(graph, hidden, 1, TT_OP_EXPERTS);
    if (f.gate == TT_NONE || f.up == TT_NONE)
        return false;
    gate = &graph->nodes[f.gate];
    up = &graph->nodes[f.up];
    *ret_found = f;
    return gate->in[ROWS] == up->in[ROWS] && gate->in[ENDS] == up->in[ENDS] && gate->in[ENDS] == down->in[ENDS];
}

static int fail_experts(int experts, int ranks)
{
    return tt_fail_key(TT_EUSAGE, TT_KEY_EP_DEGREE, "%d experts cannot be divided among %d ranks", experts, ranks);
}

/* This rank has its part of the experts of a weight. */
static void divide_weight(struct tt_graph *graph, int value, int ranks)
{
    struct tt_value *w = &graph->values[value];

    w->shape[0] /= ranks;
    w->tp = TT_TP_ROWS; /* no other rank of the group has this part, so its gradient is no sum over the group */
}

/* Puts the one node in the place of the last of the four. */
static void replace(struct tt_graph *graph, const struct tt_experts_division *division, const struct found *f)
{
    const struct tt_node gate = graph->nodes[f->gate], up = graph->nodes[f->up];
    struct tt_node *node = &graph->nodes[f->down];
    int64_t rows = tt_value_rows(&graph->values[gate.in[ROWS]]);
    int64_t grain = tt_parts_grain_rows(&gate.attr.parts, rows / gate.attr.top_k);
    int in[5] = {gate.in[ROWS], gate.in[ENDS], gate.in[WEIGHT], up.in[WEIGHT], node->in[WEIGHT]};

    node->op = TT_OP_EXPERTS_FFN;
    node->n_in = 5;
    node->n_out = 3;
    node->out[1] = gate.out[0];
    node->out[2] = up.out[0];
    for (int i = 0; i < 5; i++)
        node->in[i] = in[i];
    for (int i = 2; i < 5; i++)
        divide_weight(graph, in[i], division->peers.n);
    node->attr.peers = division->peers;
    node->attr.round_leaves = division->round_leaves;
    node->attr.window = (int64_t)ceil(division->window * (double)rows);
    if (node->attr.window < grain)
        node->attr.window = grain; /* an expert has each of these tokens once at most */
}

/* Takes nodes out of the graph. */
static void remove_nodes(struct tt_graph *graph, const bool *gone)
{
    int n = 0;

    for (int i = 0; i < graph->n_nodes; i++) {
        for (int k = 0; k < graph->nodes[i].n_out; k++)
            graph->values[graph->nodes[i].out[k]].producer = gone[i] ? TT_NONE : n;
        if (!gone[i])
            graph->nodes[n++] = graph->nodes[i];
    }
    graph->n_nodes = n;
}

int tt_graph_divide_experts(struct tt_graph *graph, const struct tt_experts_division *division)
{
    bool *gone = NULL;
    struct found f;
    int rc = 0;

    if (division->peers.n <= 1)
        return 0;
    gone = tt_calloc((size_t)graph->n_nodes + 1, sizeof *gone);
    for (int n = 0; n < graph->n_nodes; n++) {
        int experts = graph->nodes[n].attr.experts;

        if (!find(graph, n, &f))
            continue;
        if (experts % division->peers.n != 0)
            TT_TRY(fail_experts(experts, division->peers.n));
        replace(graph, division, &f);
        gone[f.gate] = gone[f.up] = gone[f.hidden] = true;
    }
    remove_nodes(graph, gone);
    for (int n = 0; n < graph->n_nodes; n++)
        if (graph->nodes[n].op == TT_OP_EXPERTS)
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY_EP_DEGREE,
                               "%d, but only SwiGLU experts can be divided among ranks\nhelp: set it to 1",
                               division->peers.n));
out:
    tt_free(gone);
    return rc;
}
