/* SPDX-License-Identifier: MIT
 *
 * Activation checkpointing as a pass: chooses the forward nodes that may run again and the values that stay, then
 * writes a new list of nodes, with copies where backward nodes need them.
 */
#include "core/passes/recompute.h"

#include "core/base/mem.h"
#include "core/ops/op.h"

struct pass {
    struct tt_graph *graph;
    struct tt_recompute how;
    struct tt_node *old; /* the nodes before the pass */
    int n_old;
    struct {
        int producer;     /* old node that writes the value, or TT_NONE */
        int copy;         /* the copy of the value; TT_NONE: there is none */
        bool stays;       /* backward reads the original value */
        bool in_backward; /* backward nodes read it */
    } * of_value;
    struct {
        bool again;  /* the node may run again */
        bool wanted; /* the node was requested, or has been copied */
        bool copied;
    } * of_node;
    int *asked; /* stack of old nodes whose inputs have not been requested yet */
    int n_asked;
};

/* --- choose --- */

static bool block_is_chosen(const struct pass *p, int block)
{
    if (block == TT_NONE)
        return false;
    return p->how.mode != TT_RECOMPUTE_SELECTIVE || block % p->how.every == p->how.every - 1;
}

/* Whether all inputs of a node are available in backward anyway: kept for other nodes, or computed again. */
static bool inputs_are_there(const struct pass *p, const struct tt_node *node)
{
    for (int i = 0; i < node->n_in; i++) {
        const struct tt_value *in = node->in[i] == TT_NONE ? NULL : &p->graph->values[node->in[i]];
        int producer = in ? p->of_value[node->in[i]].producer : TT_NONE;

        if (in && in->kind == TT_VALUE_ACTIVATION && !p->of_value[node->in[i]].in_backward &&
            (producer == TT_NONE || !p->of_node[producer].again))
            return false;
    }
    return true;
}

static bool may_run_again(const struct pass *p, const struct tt_node *node)
{
    enum tt_op_weight weight = tt_op_row(node->op)->weight;

    if (node->backward || !block_is_chosen(p, node->block))
        return false;
    switch (p->how.mode) {
    case TT_RECOMPUTE_FULL:
        return true;
    case TT_RECOMPUTE_SELECTIVE:
        return weight != TT_WEIGHT_ATTENTION && weight != TT_WEIGHT_EXCHANGE;
    default:
        return weight == TT_WEIGHT_LIGHT && inputs_are_there(p, node);
    }
}

static void choose(struct pass *p)
{
    for (int n = 0; n < p->n_old; n++)
        for (int i = 0; i < p->old[n].n_in; i++) {
            int value = p->old[n].in[i];
            int producer = value == TT_NONE ? TT_NONE : p->of_value[value].producer;

            if (producer == TT_NONE)
                continue;
            if (p->old[n].backward)
                p->of_value[value].in_backward = true;
            else if (p->old[n].block != p->old[producer].block)
                p->of_value[value].stays = true; /* the output of a block */
        }
    for (int n = 0; n < p->n_old; n++)
        p->of_node[n].again = may_run_again(p, &p->old[n]);
}

/* --- the new list --- */

/* Requests a value that a backward node reads: pushes its producer, and the nodes that the producer needs, onto the
 * stack. */
static void ask(struct pass *p, int value)
{
    int producer = value == TT_NONE ? TT_NONE : p->of_value[value].producer;

    if (producer == TT_NONE || !p->of_node[producer].again || p->of_value[value].stays || p->of_node[producer].wanted)
        return;
    p->of_node[producer].wanted = true;
    p->asked[p->n_asked++] = producer;
}

/* Makes a node of the backward part read copies where they exist. */
static void redirect(const struct pass *p, struct tt_node *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i] != TT_NONE && p->of_value[node->in[i]].copy != TT_NONE && !p->of_value[node->in[i]].stays)
            node->in[i] = p->of_value[node->in[i]].copy;
}

static void append_copy(struct pass *p, int old)
{
    struct tt_node node = p->old[old];

    redirect(p, &node);
    node.backward = true;
    for (int k = 0; k < node.n_out; k++) {
        const struct tt_value value = p->graph->values[node.out[k]]; /* a copy: adding moves the array */
        char *name = tt_format("%s.recomputed", value.name);
        int id = tt_graph_value(p->graph, value.kind, value.dtype, name, value.ndim, value.shape);

        p->graph->values[id].partial = value.partial;
        p->of_value[node.out[k]].copy = id;
        node.out[k] = id;
        tt_free(name);
    }
    p->of_node[old].copied = true;
    tt_graph_append(p->graph, &node);
}

/* Appends a backward node, after the copies that no earlier node needed. These stay in the order of the forward
 * pass. */
static void append_backward(struct pass *p, int old)
{
    struct tt_node node = p->old[old];
    int first = p->n_old, last = TT_NONE;

    /* leave out inputs that the node can recompute and that would be kept only for it */
    if (p->how.mode == TT_RECOMPUTE_SELECTIVE && block_is_chosen(p, node.block))
        for (int i = node.n_in - tt_op_row(node.op)->remakes; i < node.n_in; i++)
            node.in[i] = TT_NONE;
    for (int i = 0; i < node.n_in; i++)
        ask(p, node.in[i]);
    while (p->n_asked > 0) {
        int n = p->asked[--p->n_asked];

        first = n < first ? n : first;
        last = n > last ? n : last;
        for (int i = 0; i < p->old[n].n_in; i++)
            ask(p, p->old[n].in[i]);
    }
    for (int n = first; n <= last; n++)
        if (p->of_node[n].wanted && !p->of_node[n].copied)
            append_copy(p, n);
    redirect(p, &node);
    tt_graph_append(p->graph, &node);
}

void tt_graph_recompute(struct tt_graph *graph, const struct tt_recompute *recompute)
{
    size_t n_nodes = (size_t)graph->n_nodes + 1;
    struct pass p = {.graph = graph, .how = *recompute, .old = graph->nodes, .n_old = graph->n_nodes};

    if (recompute->mode == TT_RECOMPUTE_NONE)
        return;
    p.of_node = tt_calloc(n_nodes, sizeof *p.of_node);
    p.asked = tt_calloc(n_nodes, sizeof *p.asked);
    p.of_value = tt_calloc((size_t)graph->n_values + 1, sizeof *p.of_value);
    for (int v = 0; v < graph->n_values; v++) {
        p.of_value[v].producer = graph->values[v].producer;
        p.of_value[v].copy = TT_NONE;
    }
    choose(&p);
    graph->nodes = NULL; /* the new list */
    graph->n_nodes = graph->cap_nodes = 0;
    for (int n = 0; n < p.n_old; n++) {
        if (p.old[n].backward)
            append_backward(&p, n);
        else
            tt_graph_append(graph, &p.old[n]);
    }
    tt_free(p.old);
    tt_free(p.of_node);
    tt_free(p.asked);
    tt_free(p.of_value);
}
