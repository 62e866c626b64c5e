/* SPDX-License-Identifier: MIT
 *
 * Divides the sequences of a forward graph: every rank has the same part of each. Where attention is computed it has
 * whole sequences of some heads, or its queries and all keys and values.
 */
#include "core/graph/divide_sequences.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/graph/pieces.h"
#include "core/ops/op.h"

/* What becomes of an op whose rows are tokens, each computed alone. */
enum part {
    REFUSED,
    LOCAL,      /* nothing is summed over rows */
    SUMMED,     /* the gradient of a parameter is a sum over the grains of rows */
    POSITIONED, /* reads the position of each row */
    ROUTED,     /* of experts: also knows which tokens it has */
    ATTENTION,
};

static const enum part part_of[TT_OPS] = {
    [TT_OP_ADD] = LOCAL,        [TT_OP_ATTENTION] = ATTENTION, [TT_OP_BIAS] = SUMMED,
    [TT_OP_EMBEDDING] = SUMMED, [TT_OP_GELU] = LOCAL,          [TT_OP_HEAD_LOSS] = SUMMED,
    [TT_OP_LAYERNORM] = SUMMED, [TT_OP_LINEAR] = SUMMED,       [TT_OP_POSITION] = POSITIONED,
    [TT_OP_JOIN] = LOCAL,       [TT_OP_RMSNORM] = SUMMED,      [TT_OP_ROPE] = POSITIONED,
    [TT_OP_SCALE] = LOCAL,      [TT_OP_SPLIT] = LOCAL,         [TT_OP_SWIGLU] = LOCAL,
    [TT_OP_ROUTER] = ROUTED,    [TT_OP_DISPATCH] = ROUTED,     [TT_OP_EXPERTS] = ROUTED,
    [TT_OP_COMBINE] = LOCAL,
};

enum { POSITIONS = 2 /* the input of ROPE and POSITION */ };

struct pass {
    const struct tt_graph *whole;
    struct tt_graph *graph;
    struct tt_axis_peers peers;
    int grains;
    bool gathers;
    struct tt_pieces pieces; /* of this rank */
    int64_t batch, seq_len;
    int *copies; /* by value of the whole graph; TT_NONE: not there yet */
};

static int64_t all_rows(const struct pass *p)
{
    return p->batch * p->seq_len;
}

static int64_t own_rows(const struct pass *p)
{
    return all_rows(p) / p->peers.n;
}

/* The ids of this rank's tokens: each piece has its part of all sequences. */
static int add_input(struct pass *p, const char *name)
{
    int64_t shape[2] = {p->batch * tt_pieces_own(&p->pieces), p->seq_len / tt_pieces_count(&p->pieces)};

    return tt_graph_value(p->graph, TT_VALUE_INPUT, TT_I32, name, 2, shape);
}

/* A value that no node makes. */
static void copy_leaf(struct pass *p, int id)
{
    const struct tt_value *v = &p->whole->values[id];
    int copy;

    if (v->kind == TT_VALUE_PARAM)
        copy = tt_graph_param(p->graph, v->param, v->part, v->dtype, v->name, v->ndim, v->shape);
    else if (v->kind == TT_VALUE_INPUT)
        copy = add_input(p, v->name);
    else
        copy = tt_graph_value(p->graph, v->kind, v->dtype, v->name, v->ndim, v->shape);
    p->graph->values[copy].constant = v->constant;
    p->graph->values[copy].tp = v->tp;
    p->copies[id] = copy;
}

static int add_node(struct pass *p, const struct tt_node *node, const char *name, int *ret_value)
{
    int rc = 0;

    TT_TRY(tt_graph_try_node(p->graph, node, name));
    *ret_value = tt_graph_out(p->graph, p->graph->n_nodes - 1);
out:
    return rc;
}

/* *value = its blocks in another order; nothing if there is one block on either side. */
static int reorder(struct pass *p, struct tt_reorder how, const char *name, int *value)
{
    struct tt_node node = {
        .op = TT_OP_REORDER, .block = p->graph->block, .n_in = 1, .in = {*value}, .attr = {.reorder = how}};

    return how.a > 1 && how.b > 1 ? add_node(p, &node, name, value) : 0;
}

static int exchange(struct pass *p, enum tt_op_id op, const char *name, int *value)
{
    struct tt_node node = {.op = op, .block = p->graph->block, .n_in = 1, .in = {*value}, .attr = {.peers = p->peers}};

    return add_node(p, &node, name, value);
}

/* From this rank's part of the sequences to whole sequences of its heads. */
static int to_heads(struct pass *p, int *value)
{
    char *name = tt_format("%s.heads", p->graph->values[*value].name);
    int rc = 0;

    TT_TRY(reorder(p, (struct tt_reorder){own_rows(p), p->peers.n, all_rows(p)}, name, value));
    TT_TRY(exchange(p, TT_OP_SWAP_BLOCKS, name, value));
out:
    tt_free(name);
    return rc;
}

/* The way back. */
static int to_sequences(struct pass *p, const char *name, int *value)
{
    int rc = 0;

    TT_TRY(exchange(p, TT_OP_SWAP_BLOCKS, name, value));
    TT_TRY(reorder(p, (struct tt_reorder){p->peers.n, own_rows(p), own_rows(p)}, name, value));
out:
    return rc;
}

/* The rows of all ranks. */
static int gather(struct pass *p, int *value)
{
    char *name = tt_format("%s.gathered", p->graph->values[*value].name);
    int rc = exchange(p, TT_OP_GATHER_ROWS, name, value);

    tt_free(name);
    return rc;
}

/* Attention to whole sequences of this rank's heads. */
static int exchange_heads(struct pass *p, struct tt_node *node, const char *name, int *ret_value)
{
    int n = p->peers.n, rc = 0;

    if (node->attr.kv_heads % n != 0)
        return tt_fail(TT_EINTERNAL, "%d heads of keys and values in '%s' cannot be divided among %d ranks",
                       node->attr.kv_heads, name, n);
    for (int i = 0; i < 3; i++)
        TT_TRY(to_heads(p, &node->in[i]));
    if (node->in[3] != TT_NONE)
        TT_TRY(gather(p, &node->in[3]));
    node->attr.pieces = (struct tt_pieces){p->grains, p->pieces.mirrored, 0, p->grains, n};
    node->attr.out = (struct tt_extent){node->attr.kv_heads, n};
    node->attr.heads /= n;
    node->attr.kv_heads /= n;
    TT_TRY(add_node(p, node, name, ret_value));
    TT_TRY(to_sequences(p, name, ret_value));
out:
    return rc;
}

/* Attention of this rank's queries to the keys of all ranks. */
static int gather_keys(struct pass *p, struct tt_node *node, const char *name, int *ret_value)
{
    int rc = 0;

    TT_TRY(gather(p, &node->in[1]));
    TT_TRY(gather(p, &node->in[2]));
    TT_TRY(add_node(p, node, name, ret_value));
out:
    return rc;
}

static int divide_attention(struct pass *p, struct tt_node *node, const char *name, int *ret_value)
{
    node->attr.pieces = p->pieces;
    if (p->peers.n == 1)
        return add_node(p, node, name, ret_value);
    return p->gathers ? gather_keys(p, node, name, ret_value) : exchange_heads(p, node, name, ret_value);
}

/* Products of experts are of grains, and the gradient of a router's weight is a sum over them. */
static void set_tokens(const struct pass *p, const struct tt_node *node, struct tt_attr *attr)
{
    attr->parts.grains = p->pieces.own;
    if (node->op != TT_OP_ROUTER)
        return;
    attr->rows = (struct tt_extent){all_rows(p), p->grains};
    attr->first_row = p->peers.index * own_rows(p);
    attr->pieces = p->pieces;
    if (p->peers.n > 1)
        attr->sequence_peers = p->peers;
}

static int divide_node(struct pass *p, const struct tt_node *node)
{
    const char *name = p->whole->values[node->out[0]].name;
    struct tt_node part = {.op = node->op, .block = node->block, .n_in = node->n_in, .attr = node->attr};
    int rc = 0;

    p->graph->block = node->block;
    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i] != TT_NONE && p->copies[node->in[i]] == TT_NONE)
            copy_leaf(p, node->in[i]);
        part.in[i] = node->in[i] == TT_NONE ? TT_NONE : p->copies[node->in[i]];
    }
    switch (part_of[node->op]) {
    case REFUSED:
        return tt_fail(TT_EINTERNAL, "%s '%s' cannot be divided among the ranks of a sequence",
                       tt_op_row(node->op)->name, name);
    case ATTENTION:
        return divide_attention(p, &part, name, &p->copies[node->out[0]]);
    case SUMMED:
        part.attr.rows = (struct tt_extent){all_rows(p), p->grains};
        break;
    case POSITIONED:
        part.in[POSITIONS] = p->graph->positions;
        if (node->op == TT_OP_POSITION)
            part.attr.rows = (struct tt_extent){all_rows(p), p->grains};
        break;
    case ROUTED:
        set_tokens(p, node, &part.attr);
        break;
    case LOCAL:
        break;
    }
    TT_TRY(add_node(p, &part, name, &p->copies[node->out[0]]));
    for (int k = 1; k < node->n_out; k++)
        p->copies[node->out[k]] = p->graph->nodes[p->graph->n_nodes - 1].out[k];
out:
    return rc;
}

static int check(const struct tt_graph *whole, const struct tt_divisions *divisions)
{
    const struct tt_division *cp = &divisions->cp;
    int64_t seq_len = whole->tokens == TT_NONE ? 0 : whole->values[whole->tokens].shape[1];
    int64_t pieces = cp->grains * (int64_t)(divisions->mirrored ? 2 : 1);

    if (cp->grains > TT_MOST_GRAINS || cp->peers.n < 1 || cp->grains % cp->peers.n != 0)
        return tt_fail(TT_EINTERNAL, "%d grains of a sequence cannot be divided among %d ranks", cp->grains,
                       cp->peers.n);
    if (seq_len == 0 || seq_len % pieces != 0)
        return tt_fail(TT_EINTERNAL, "sequences of %lld tokens cannot be divided into %lld pieces", (long long)seq_len,
                       (long long)pieces);
    return 0;
}

static void begin(struct pass *p)
{
    const struct tt_graph *whole = p->whole;
    const int inputs[] = {whole->tokens, whole->labels, whole->rope_table};
    int *const to[] = {&p->graph->tokens, &p->graph->labels, &p->graph->rope_table};

    p->batch = whole->values[whole->tokens].shape[0];
    p->seq_len = whole->values[whole->tokens].shape[1];
    p->copies = tt_calloc((size_t)whole->n_values + 1, sizeof *p->copies);
    for (int v = 0; v < whole->n_values; v++)
        p->copies[v] = TT_NONE;
    p->graph->dtype = whole->dtype;
    p->graph->rope = whole->rope;
    p->graph->documents = whole->documents;
    for (int i = 0; i < 3; i++) {
        if (inputs[i] == TT_NONE)
            continue;
        copy_leaf(p, inputs[i]);
        *to[i] = p->copies[inputs[i]];
    }
    p->graph->positions = add_input(p, "positions");
    if (whole->positions != TT_NONE)
        p->copies[whole->positions] = p->graph->positions;
}

int tt_graph_divide_sequences(const struct tt_graph *whole, const struct tt_divisions *divisions,
                              struct tt_graph **ret_graph)
{
    const struct tt_division *cp = &divisions->cp;
    struct pass p = {.whole = whole, .peers = cp->peers, .grains = cp->grains, .gathers = divisions->gathers};
    int rc = check(whole, divisions), own;

    if (rc < 0)
        return rc;
    own = cp->grains / cp->peers.n;
    p.pieces = (struct tt_pieces){cp->grains, divisions->mirrored, cp->peers.index * own, own, 1};
    p.graph = tt_graph_new();
    begin(&p);
    for (int n = 0; n < whole->n_nodes; n++)
        TT_TRY(divide_node(&p, &whole->nodes[n]));
    p.graph->block = TT_NONE;
    if (whole->token_loss != TT_NONE)
        p.graph->token_loss = p.copies[whole->token_loss];
    *ret_graph = p.graph;
    p.graph = NULL;
out:
    tt_graph_free(p.graph);
    tt_free(p.copies);
    return rc;
}
