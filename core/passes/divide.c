/* SPDX-License-Identifier: MIT
 *
 * Splits a forward graph over ranks: first its sequences, then its layers, then its experts.
 */
#include "core/passes/divide.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/graph/pieces.h"
#include "core/ops/op.h"
#include "core/ops/rule.h"

/* --- nodes of the new graph --- */

static int add_node(struct tt_graph *graph, const struct tt_node *node, const char *name, int *ret_value)
{
    int rc = 0;

    TT_TRY(tt_graph_try_node(graph, node, name));
    *ret_value = tt_graph_out(graph, graph->n_nodes - 1);
out:
    return rc;
}

/* Replaces *value by the result of an exchange of it. */
static int exchange(struct tt_graph *graph, enum tt_op_id op, struct tt_axis_peers peers, const char *name, int *value)
{
    bool adds = op == TT_OP_SUM_ALL; /* to an earlier sum, which is absent */
    struct tt_node node = {
        .op = op, .block = graph->block, .n_in = adds ? 2 : 1, .in = {*value, TT_NONE}, .attr = {.peers = peers}};

    return add_node(graph, &node, name, value);
}

/* Replaces *value by its rows from all ranks. */
static int gather(struct tt_graph *graph, struct tt_axis_peers peers, int *value)
{
    char *name = tt_format("%s.gathered", graph->values[*value].name);
    int rc = exchange(graph, TT_OP_GATHER_ROWS, peers, name, value);

    tt_free(name);
    return rc;
}

/*
 * --- sequences: context parallelism ---
 *
 * Every rank has the same pieces of every sequence. For attention, it gets either whole sequences of some heads, or its
 * own queries with all keys and values.
 */

/* The effect of the split on an op, whose rows are tokens. */
enum sequence_rule {
    REFUSED,
    LOCAL,      /* no sum over rows */
    SUMMED,     /* the gradient of a parameter is a sum over the grains of rows */
    POSITIONED, /* reads the position of each row */
    PLACED,     /* knows where its rows are */
    ROUTED,     /* for experts: knows which tokens this rank has */
    ATTENTION,
};

static const enum sequence_rule rule_of[TT_OPS] = {
    [TT_OP_ADD] = LOCAL,        [TT_OP_ATTENTION] = ATTENTION, [TT_OP_BIAS] = SUMMED,
    [TT_OP_EMBEDDING] = SUMMED, [TT_OP_GELU] = LOCAL,          [TT_OP_HEAD_LOSS] = SUMMED,
    [TT_OP_LAYERNORM] = SUMMED, [TT_OP_LINEAR] = SUMMED,       [TT_OP_POSITION] = POSITIONED,
    [TT_OP_JOIN] = LOCAL,       [TT_OP_RMSNORM] = SUMMED,      [TT_OP_ROPE] = POSITIONED,
    [TT_OP_SCALE] = LOCAL,      [TT_OP_SPLIT] = LOCAL,         [TT_OP_SWIGLU] = LOCAL,
    [TT_OP_ROUTER] = ROUTED,    [TT_OP_DISPATCH] = ROUTED,     [TT_OP_EXPERTS] = ROUTED,
    [TT_OP_COMBINE] = LOCAL,    [TT_OP_GEGLU] = LOCAL,         [TT_OP_GELU_ERF] = LOCAL,
    [TT_OP_GATE_ROWS] = LOCAL,  [TT_OP_DROPOUT] = PLACED,      [TT_OP_ROW_SQUARES] = LOCAL,
    [TT_OP_DORA] = SUMMED,
};

enum { POSITIONS = 2 /* the input of ROPE and POSITION */ };

struct sequence_pass {
    const struct tt_graph *whole;
    struct tt_graph *graph;
    struct tt_axis_peers peers;
    int grains;
    bool gathers;
    struct tt_pieces pieces; /* of this rank */
    int64_t batch, seq_len;
    int64_t all_rows, own_rows;
    int *copies; /* by value of the whole graph; TT_NONE: not in the new graph yet */
};

/* The ids of this rank's tokens: its part of all sequences, piece by piece. */
static int add_input(struct sequence_pass *p, const char *name)
{
    int64_t shape[2] = {p->batch * tt_pieces_own(&p->pieces), p->seq_len / tt_pieces_count(&p->pieces)};

    return tt_graph_value(p->graph, TT_VALUE_INPUT, TT_I32, name, 2, shape);
}

/* A value that no node produces. */
static void copy_sequence_leaf(struct sequence_pass *p, int id)
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
    p->graph->values[copy].packing = v->packing;
    p->copies[id] = copy;
}

/* Reorders the blocks of *value; does nothing if a or b is 1. */
static int reorder(struct sequence_pass *p, struct tt_reorder how, const char *name, int *value)
{
    struct tt_node node = {
        .op = TT_OP_REORDER, .block = p->graph->block, .n_in = 1, .in = {*value}, .attr = {.reorder = how}};

    return how.a > 1 && how.b > 1 ? add_node(p->graph, &node, name, value) : 0;
}

/* Goes from this rank's part of the sequences to whole sequences of its heads. */
static int to_heads(struct sequence_pass *p, int *value)
{
    char *name = tt_format("%s.heads", p->graph->values[*value].name);
    int rc = 0;

    TT_TRY(reorder(p, (struct tt_reorder){p->own_rows, p->peers.n, p->all_rows}, name, value));
    TT_TRY(exchange(p->graph, TT_OP_SWAP_BLOCKS, p->peers, name, value));
out:
    tt_free(name);
    return rc;
}

/* Computes attention on whole sequences of this rank's heads, and returns to its part of the sequences. */
static int exchange_heads(struct sequence_pass *p, struct tt_node *node, const char *name, int *ret_value)
{
    int n = p->peers.n, rc = 0;

    if (node->attr.kv_heads % n != 0)
        return tt_fail(TT_EINTERNAL, "%d heads of keys and values in '%s' cannot be divided among %d ranks",
                       node->attr.kv_heads, name, n);
    for (int i = 0; i < 3; i++)
        TT_TRY(to_heads(p, &node->in[i]));
    if (node->in[3] != TT_NONE)
        TT_TRY(gather(p->graph, p->peers, &node->in[3]));
    node->attr.pieces = (struct tt_pieces){p->grains, p->pieces.mirrored, 0, p->grains, n};
    node->attr.out = (struct tt_extent){node->attr.kv_heads, n};
    node->attr.heads /= n;
    node->attr.kv_heads /= n;
    TT_TRY(add_node(p->graph, node, name, ret_value));
    TT_TRY(exchange(p->graph, TT_OP_SWAP_BLOCKS, p->peers, name, ret_value));
    TT_TRY(reorder(p, (struct tt_reorder){p->peers.n, p->own_rows, p->own_rows}, name, ret_value));
out:
    return rc;
}

static int divide_attention(struct sequence_pass *p, struct tt_node *node, const char *name, int *ret_value)
{
    int rc = 0;

    node->attr.pieces = p->pieces;
    if (p->peers.n > 1 && !p->gathers)
        return exchange_heads(p, node, name, ret_value);
    for (int i = 1; i <= 2 && p->peers.n > 1; i++) /* the keys and values of all ranks */
        TT_TRY(gather(p->graph, p->peers, &node->in[i]));
    rc = add_node(p->graph, node, name, ret_value);
out:
    return rc;
}

static int divide_sequence_node(struct sequence_pass *p, const struct tt_node *node)
{
    const char *name = p->whole->values[node->out[0]].name;
    struct tt_node part = {.op = node->op, .block = node->block, .n_in = node->n_in, .attr = node->attr};
    int rc = 0;

    p->graph->block = node->block;
    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i] != TT_NONE && p->copies[node->in[i]] == TT_NONE)
            copy_sequence_leaf(p, node->in[i]);
        part.in[i] = node->in[i] == TT_NONE ? TT_NONE : p->copies[node->in[i]];
    }
    switch (rule_of[node->op]) {
    case REFUSED:
        return tt_fail(TT_EINTERNAL, "%s '%s' cannot be divided among the ranks of a sequence",
                       tt_op_row(node->op)->name, name);
    case ATTENTION:
        return divide_attention(p, &part, name, &p->copies[node->out[0]]);
    case SUMMED:
        part.attr.rows = (struct tt_extent){p->all_rows, p->grains};
        break;
    case POSITIONED:
        part.in[POSITIONS] = p->graph->positions;
        if (node->op == TT_OP_POSITION)
            part.attr.rows = (struct tt_extent){p->all_rows, p->grains};
        break;
    case PLACED:
        part.attr.rows = (struct tt_extent){p->all_rows, p->grains};
        part.attr.pieces = p->pieces;
        break;
    case ROUTED: /* experts' products and the gradient of a router's weight go by grains */
        part.attr.parts.grains = p->pieces.own;
        if (node->op != TT_OP_ROUTER)
            break;
        part.attr.rows = (struct tt_extent){p->all_rows, p->grains};
        part.attr.first_row = p->peers.index * p->own_rows;
        part.attr.pieces = p->pieces;
        if (p->peers.n > 1)
            part.attr.sequence_peers = p->peers;
        break;
    case LOCAL:
        break;
    }
    TT_TRY(add_node(p->graph, &part, name, &p->copies[node->out[0]]));
    for (int k = 1; k < node->n_out; k++)
        p->copies[node->out[k]] = p->graph->nodes[p->graph->n_nodes - 1].out[k];
out:
    return rc;
}

static void begin_sequences(struct sequence_pass *p)
{
    const struct tt_graph *whole = p->whole;
    const int inputs[] = {whole->tokens, whole->labels, whole->rope_table, whole->local_rope_table};
    int *const to[] = {&p->graph->tokens, &p->graph->labels, &p->graph->rope_table, &p->graph->local_rope_table};

    p->batch = whole->values[whole->tokens].shape[0];
    p->seq_len = whole->values[whole->tokens].shape[1];
    p->all_rows = p->batch * p->seq_len;
    p->own_rows = p->all_rows / p->peers.n;
    p->copies = tt_ids_new((size_t)whole->n_values);
    p->graph->dtype = whole->dtype;
    p->graph->rope = whole->rope;
    p->graph->local_rope = whole->local_rope;
    p->graph->documents = whole->documents;
    for (int i = 0; i < 4; i++) {
        if (inputs[i] == TT_NONE)
            continue;
        copy_sequence_leaf(p, inputs[i]);
        *to[i] = p->copies[inputs[i]];
    }
    p->graph->positions = add_input(p, "positions");
    if (whole->positions != TT_NONE)
        p->copies[whole->positions] = p->graph->positions;
}

static int divide_sequences(const struct tt_graph *whole, const struct tt_divisions *divisions,
                            struct tt_graph **ret_graph)
{
    const struct tt_division *cp = &divisions->cp;
    struct sequence_pass p = {.whole = whole, .peers = cp->peers, .grains = cp->grains, .gathers = divisions->gathers};
    int64_t seq_len = whole->tokens == TT_NONE ? 0 : whole->values[whole->tokens].shape[1];
    int64_t pieces = cp->grains * (int64_t)(divisions->mirrored ? 2 : 1);
    int rc = 0, own;

    if (cp->grains > TT_MOST_GRAINS || cp->peers.n < 1 || cp->grains % cp->peers.n != 0)
        return tt_fail(TT_EINTERNAL, "%d grains of a sequence cannot be divided among %d ranks", cp->grains,
                       cp->peers.n);
    if (seq_len == 0 || seq_len % pieces != 0)
        return tt_fail(TT_EINTERNAL, "sequences of %lld tokens cannot be divided into %lld pieces", (long long)seq_len,
                       (long long)pieces);
    own = cp->grains / cp->peers.n;
    p.pieces = (struct tt_pieces){cp->grains, divisions->mirrored, cp->peers.index * own, own, 1};
    p.graph = tt_graph_new();
    begin_sequences(&p);
    for (int n = 0; n < whole->n_nodes; n++)
        TT_TRY(divide_sequence_node(&p, &whole->nodes[n]));
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

/*
 * --- layers: tensor and sequence parallelism ---
 *
 * A table lists, for every op, the possible splits of its operands. The pass walks over the nodes, brings every input
 * into the state that the form of the op requires (with an exchange, if it is in another state), and writes the node
 * with this rank's shapes.
 */

/* A rank's part of a value. */
enum state {
    ABSENT,
    WHOLE,   /* all of it */
    ROWS,    /* some rows: tokens, or the outputs of a weight */
    COLUMNS, /* some of the last dimension: heads, the FFN's width, or the inputs of a weight */
    TERM,    /* a term of a sum over the ranks; the sum follows at once, so no op reads the term */
    SUM,     /* the same, but every rank gets the whole sum */
};

/* One way to split an op. */
struct form {
    enum tt_op_id op;
    enum state in[TT_MAX_INPUTS];
    enum state out; /* state of all outputs */
    unsigned cuts;  /* TT_CUT_*: the extents that have grains */
    bool peers;     /* the op reads peers, or reads a whole parameter, whose gradient is a sum over the ranks */
};

static const struct form forms[] = {
    {TT_OP_EMBEDDING, {WHOLE, ROWS}, ROWS, TT_CUT_OUT, true}, /* looked_up adds the rest */
    {TT_OP_POSITION, {ROWS, WHOLE, WHOLE}, ROWS, 0, true},
    {TT_OP_RMSNORM, {ROWS, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_RMSNORM, {COLUMNS, WHOLE}, COLUMNS, TT_CUT_OUT, true}, /* for the heads of q and k */
    {TT_OP_LAYERNORM, {ROWS, WHOLE, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_LAYERNORM, {COLUMNS, ROWS, ROWS}, COLUMNS, 0, false}, /* of heads with separate weights */
    {TT_OP_LINEAR, {WHOLE, ROWS}, COLUMNS, TT_CUT_OUT, false},
    {TT_OP_LINEAR, {COLUMNS, COLUMNS}, TERM, TT_CUT_IN, false},
    {TT_OP_LINEAR, {ROWS, WHOLE}, ROWS, TT_CUT_ROWS, true}, /* for an adapter, or to a latent */
    {TT_OP_SCALE, {ROWS}, ROWS, 0, false},
    {TT_OP_SCALE, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_DROPOUT, {ROWS, ABSENT}, ROWS, TT_CUT_ROWS, false}, /* for an adapter, as the next one */
    {TT_OP_DROPOUT, {COLUMNS, ABSENT}, COLUMNS, TT_CUT_IN, false},
    {TT_OP_ROW_SQUARES, {ROWS, WHOLE, ROWS}, ROWS, 0, false}, /* for DORA, whose m is divided like the rows of W */
    {TT_OP_ROW_SQUARES, {COLUMNS, COLUMNS, WHOLE}, SUM, TT_CUT_IN, false},
    {TT_OP_DORA, {COLUMNS, ROWS, ROWS}, COLUMNS, 0, false},
    {TT_OP_DORA, {ROWS, WHOLE, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_BIAS, {ROWS, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_BIAS, {COLUMNS, ROWS}, COLUMNS, 0, false},
    {TT_OP_ROPE, {COLUMNS, WHOLE, WHOLE}, COLUMNS, 0, false},
    {TT_OP_ROPE, {ROWS, WHOLE, WHOLE}, ROWS, 0, true}, /* for a key that all heads share */
    {TT_OP_SPLIT, {ROWS}, ROWS, 0, false},             /* for a latent and such a key */
    {TT_OP_SPLIT, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_JOIN, {COLUMNS, WHOLE}, COLUMNS, TT_CUT_OUT, false}, /* every head, and such a key */
    {TT_OP_ATTENTION, {COLUMNS, COLUMNS, COLUMNS, WHOLE}, COLUMNS, TT_CUT_OUT, false},
    {TT_OP_GELU, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_GELU_ERF, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_GEGLU, {COLUMNS, COLUMNS}, COLUMNS, 0, false},
    {TT_OP_SWIGLU, {COLUMNS, COLUMNS}, COLUMNS, 0, false},
    {TT_OP_GATE_ROWS, {ROWS, ROWS}, ROWS, 0, false},
    {TT_OP_ADD, {ROWS, ROWS}, ROWS, 0, false},
    {TT_OP_ADD, {COLUMNS, COLUMNS}, COLUMNS, 0, false}, /* a product and its adapter's product */
    {TT_OP_REORDER, {COLUMNS}, COLUMNS, 0, false},      /* this and the next: swap sequences for heads */
    {TT_OP_SWAP_BLOCKS, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_GATHER_ROWS, {COLUMNS}, COLUMNS, 0, false}, /* for keys and values, over the ranks of a sequence */
    {TT_OP_GATHER_ROWS, {WHOLE}, WHOLE, 0, false},     /* for positions */
    /* experts: each rank has rows of tokens, and sends them to the ranks of their experts */
    {TT_OP_ROUTER, {ROWS, WHOLE, WHOLE, ABSENT, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_DISPATCH, {ROWS, ROWS}, ROWS, 0, false},
    {TT_OP_EXPERTS, {ROWS, WHOLE, ROWS}, ROWS, 0, false},
    {TT_OP_SWIGLU, {ROWS, ROWS}, ROWS, 0, false},
    {TT_OP_COMBINE, {ROWS, ROWS, ROWS}, ROWS, 0, false},
    {TT_OP_HEAD_LOSS, {WHOLE, ROWS, WHOLE}, WHOLE, TT_CUT_OUT, true},
};

/* --- the pass --- */

struct copy {
    int value; /* in the new graph; TT_NONE: not there yet */
    enum state state;
    int gathered; /* its rows from all ranks; TT_NONE: not requested yet */
};

struct pass {
    const struct tt_graph *whole;
    struct tt_graph *graph;
    struct tt_axis_peers peers; /* n 1: this rank has everything, in grains */
    int grains;
    struct copy *copies; /* by value of the whole graph */
};

/* The size of this rank's part of a dimension: `whole` without grains. TT_NONE: not a whole number of grains. */
static int64_t part_of(const struct pass *p, int64_t whole, bool last_is_shorter)
{
    struct tt_extent extent = {whole, p->grains};
    int64_t grain = tt_grain_or(&extent, whole), each = p->grains / p->peers.n * grain;
    int64_t left = whole - p->peers.index * each;

    if (p->grains <= 1)
        return whole;
    if ((!last_is_shorter && whole % p->grains != 0) || (p->grains - 1) * grain >= whole)
        return TT_NONE;
    return left < each ? left : each;
}

static int no_grains(const char *name, int64_t whole, int grains)
{
    return tt_fail(TT_EINTERNAL, "%lld of '%s' cannot be divided into %d grains", (long long)whole, name, grains);
}

static void note_place(const struct pass *p, int value, int copy)
{
    const struct tt_graph *whole = p->whole;
    const int from[] = {whole->tokens,     whole->labels,     whole->positions,
                        whole->rope_table, whole->token_loss, whole->local_rope_table};
    int *const to[] = {&p->graph->tokens,     &p->graph->labels,     &p->graph->positions,
                       &p->graph->rope_table, &p->graph->token_loss, &p->graph->local_rope_table};

    for (int i = 0; i < 6; i++)
        if (from[i] == value)
            *to[i] = copy;
}

static const enum state state_of_param[] = {[TT_TP_WHOLE] = WHOLE, [TT_TP_ROWS] = ROWS, [TT_TP_COLUMNS] = COLUMNS};

/* Adds a value that no node produces. */
static int copy_leaf(struct pass *p, int id)
{
    const struct tt_value *value = &p->whole->values[id];
    bool param = value->kind == TT_VALUE_PARAM;
    struct copy *copy = &p->copies[id];
    int64_t shape[TT_MAX_DIMS], *cut;

    copy->state = param ? state_of_param[value->tp] : WHOLE;
    memcpy(shape, value->shape, sizeof shape);
    cut = copy->state == WHOLE ? NULL : &shape[copy->state == ROWS ? 0 : value->ndim - 1];
    if (cut && (*cut = part_of(p, *cut, true)) == TT_NONE)
        return no_grains(value->name, value->shape[cut - shape], p->grains);
    copy->value =
        param ? tt_graph_param(p->graph, value->param, value->part, value->dtype, value->name, value->ndim, shape)
              : tt_graph_value(p->graph, value->kind, value->dtype, value->name, value->ndim, shape);
    p->graph->values[copy->value].constant = value->constant;
    p->graph->values[copy->value].tp = value->tp;
    p->graph->values[copy->value].packing = value->packing;
    note_place(p, id, copy->value);
    return 0;
}

/* Whether a GEMM, or dropout before one, reads some rows of a value that other nodes read whole. A router comes before
 * the nodes that read the value whole, so its gradient is always added after theirs. */
static bool is_read_in_rows(const struct pass *p, int id)
{
    for (int n = 0; n < p->whole->n_nodes; n++) {
        const struct tt_node *node = &p->whole->nodes[n];

        if (node->in[0] == id && (node->op == TT_OP_DROPOUT ||
                                  (node->op == TT_OP_LINEAR && p->whole->values[node->in[1]].tp == TT_TP_WHOLE)))
            return true;
    }
    return false;
}

/*
 * A single rank gathers nothing. If several ranks gather a value, however, its gradient is first summed over grains,
 * and other gradients are added afterwards. On a single rank, a copy for the readers gives the sums the same order.
 */
static int copy_apart(struct tt_graph *graph, int *value)
{
    const struct tt_attr exactly = {.scale = 1.0F};
    struct tt_node node = {.op = TT_OP_SCALE, .block = graph->block, .n_in = 1, .in = {*value}, .attr = exactly};
    char *name = tt_format("%s.copied", graph->values[*value].name);
    int rc = add_node(graph, &node, name, value);

    tt_free(name);
    return rc;
}

/* If *value holds some rows, replaces it by this rank's columns. */
static int to_columns(struct pass *p, int *value)
{
    int64_t rows = tt_value_rows(&p->graph->values[*value]);
    struct tt_node node = {.op = TT_OP_REORDER, .block = p->graph->block, .n_in = 1, .in = {*value}};
    char *name = tt_format("%s.columns", p->graph->values[*value].name);
    int rc = 0;

    node.attr.reorder = (struct tt_reorder){rows, p->peers.n, rows * p->peers.n};
    TT_TRY(add_node(p->graph, &node, name, value));
    TT_TRY(exchange(p->graph, TT_OP_SWAP_BLOCKS, p->peers, name, value));
out:
    tt_free(name);
    return rc;
}

/* Brings an input into the state that a form needs; the form was chosen so that this is possible. */
static int bring(struct pass *p, int id, enum state wanted, int *ret_value)
{
    struct copy *copy = &p->copies[id];
    bool shared = p->peers.n > 1;
    int rc = 0;

    if (copy->state == wanted || (!shared && (p->graph->values[copy->value].constant || !is_read_in_rows(p, id)))) {
        *ret_value = copy->value;
        return 0;
    }
    if (wanted == COLUMNS) {
        *ret_value = copy->value;
        return to_columns(p, ret_value);
    }
    if (copy->gathered == TT_NONE) {
        copy->gathered = copy->value;
        rc = shared ? gather(p->graph, p->peers, &copy->gathered) : copy_apart(p->graph, &copy->gathered);
    }
    *ret_value = copy->gathered;
    return rc;
}

/* --- one node --- */

/* Whether an op may read whole heads that other ops have turned into rows, as norms over all heads do. */
static bool reads_heads(enum tt_op_id op)
{
    return op == TT_OP_ATTENTION || op == TT_OP_REORDER || op == TT_OP_SWAP_BLOCKS || op == TT_OP_GATHER_ROWS;
}

/* Whether an op can read the value in this state. Rows of tokens can be gathered, weights cannot. */
static bool can_be(const struct pass *p, enum tt_op_id op, int id, enum state wanted)
{
    enum state state = p->copies[id].state;

    if (p->whole->values[id].kind == TT_VALUE_PARAM || state == wanted)
        return state == wanted;
    return state == ROWS && (wanted == WHOLE || (wanted == COLUMNS && reads_heads(op)));
}

/* The first form that fits the node, or NULL. */
static const struct form *form_of(const struct pass *p, const struct tt_node *node)
{
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        bool fits = forms[f].op == node->op;

        for (int i = 0; fits && i < node->n_in; i++)
            fits = node->in[i] == TT_NONE || can_be(p, node->op, node->in[i], forms[f].in[i]);
        if (fits)
            return &forms[f];
    }
    return NULL;
}

/* The whole size of the dimension that the file of an op calls `out`. */
static int64_t whole_out(const struct pass *p, const struct tt_node *node)
{
    const struct tt_value *x = &p->whole->values[node->in[0]], *w = &p->whole->values[node->in[1]];

    switch (node->op) {
    case TT_OP_ATTENTION:
        return node->attr.kv_heads;
    case TT_OP_JOIN:
        return node->attr.heads;
    case TT_OP_RMSNORM:
        return tt_value_width(x) / tt_value_elements(w);
    default:
        return tt_value_rows(w);
    }
}

/* `before`: the node's present extent, if sequences are already split. Each of its grains is then split into grains. */
static struct tt_extent extent(const struct pass *p, const struct form *form, unsigned cut, struct tt_extent before,
                               int64_t whole)
{
    if (!(form->cuts & cut) || p->grains <= 1)
        return before;
    if (before.grains > 1)
        return (struct tt_extent){before.whole, before.grains * p->grains};
    return (struct tt_extent){whole, p->grains};
}

/* The attributes of a node's part. */
static int set_attr(const struct pass *p, const struct form *form, const struct tt_node *node, struct tt_attr *attr)
{
    const struct tt_value *x = &p->whole->values[node->in[0]];
    const struct tt_extent *extents[] = {&attr->rows, &attr->in, &attr->out};
    bool vocabulary = node->op == TT_OP_EMBEDDING || node->op == TT_OP_HEAD_LOSS, shared = p->peers.n > 1;

    attr->rows = extent(p, form, TT_CUT_ROWS, attr->rows, tt_value_rows(x));
    attr->in = extent(p, form, TT_CUT_IN, attr->in, tt_value_width(x));
    if (form->cuts & TT_CUT_OUT)
        attr->out = extent(p, form, TT_CUT_OUT, attr->out, whole_out(p, node));
    for (int i = 0; i < (vocabulary ? 2 : 3); i++)
        if (extents[i]->grains > 1 && extents[i]->whole % extents[i]->grains != 0)
            return no_grains(p->whole->values[node->out[0]].name, extents[i]->whole, extents[i]->grains);
    if (form->peers && shared)
        attr->peers = p->peers;
    if (shared && (node->op == TT_OP_ROUTER || node->op == TT_OP_DISPATCH || node->op == TT_OP_EXPERTS)) {
        attr->parts.blocks = p->peers.n; /* which tokens this rank has */
        attr->parts.block = p->peers.index;
    }
    if (node->op == TT_OP_DROPOUT && form->out == COLUMNS)
        attr->dropout.first_column = (int64_t)p->peers.index * (p->grains / p->peers.n) * tt_grain_or(&attr->in, 0);
    if (shared && (node->op == TT_OP_ROUTER || (node->op == TT_OP_DROPOUT && form->out == ROWS)))
        attr->first_row += p->peers.index * (tt_value_rows(x) / p->peers.n);
    attr->partial = (form->out == TERM || form->out == SUM) && shared;
    if (form->out == COLUMNS) {
        attr->heads /= p->peers.n;
        attr->kv_heads /= p->peers.n;
    }
    return 0;
}

/* Sends the embeddings that each rank looked up in its part of the vocabulary to the ranks of the rows. */
static int looked_up(struct pass *p, struct tt_node *node, const char *name)
{
    char *found = tt_format("%s.found", name), *blocks = tt_format("%s.blocks", name);
    struct tt_node pick = {.op = TT_OP_PICK_ROWS, .block = node->block, .n_in = 2, .attr = node->attr};
    int rc = 0;

    pick.attr.rows = (struct tt_extent){0};
    TT_TRY(add_node(p->graph, node, found, &pick.in[0]));
    TT_TRY(exchange(p->graph, TT_OP_SWAP_BLOCKS, p->peers, blocks, &pick.in[0]));
    pick.in[1] = node->in[0];
    TT_TRY(tt_graph_try_node(p->graph, &pick, name));
out:
    tt_free(found);
    tt_free(blocks);
    return rc;
}

/* Adds a node whose output is a term of a sum over the ranks, and the sum. */
static int summed(struct pass *p, const struct tt_node *node, enum tt_op_id op, const char *name)
{
    char *term = tt_format("%s.term", name);
    int rc = 0, sum;

    TT_TRY(add_node(p->graph, node, term, &sum));
    TT_TRY(exchange(p->graph, op, p->peers, name, &sum));
out:
    tt_free(term);
    return rc;
}

static int divide_node(struct pass *p, const struct tt_node *node)
{
    const char *name = p->whole->values[node->out[0]].name;
    struct tt_node part = {.op = node->op, .block = node->block, .n_in = node->n_in, .attr = node->attr};
    const struct tt_node *made;
    const struct form *form;
    bool shared = p->peers.n > 1;
    int rc = 0;

    for (int i = 0; i < node->n_in; i++)
        if (node->in[i] != TT_NONE && p->copies[node->in[i]].value == TT_NONE)
            TT_TRY(copy_leaf(p, node->in[i]));
    form = form_of(p, node);
    if (!form)
        return tt_fail(TT_EINTERNAL, "there is no way to divide %s '%s'", tt_op_row(node->op)->name, name);
    p->graph->block = node->block;
    for (int i = 0; i < node->n_in; i++) {
        part.in[i] = TT_NONE;
        if (node->in[i] != TT_NONE)
            TT_TRY(bring(p, node->in[i], form->in[i], &part.in[i]));
    }
    TT_TRY(set_attr(p, form, node, &part.attr));
    if (shared && node->op == TT_OP_EMBEDDING)
        TT_TRY(looked_up(p, &part, name));
    else if (shared && (form->out == TERM || form->out == SUM))
        TT_TRY(summed(p, &part, form->out == TERM ? TT_OP_SUM_ROWS : TT_OP_SUM_ALL, name));
    else
        TT_TRY(tt_graph_try_node(p->graph, &part, name));
    made = &p->graph->nodes[p->graph->n_nodes - 1];
    for (int k = 0; k < node->n_out; k++) {
        p->copies[node->out[k]].value = made->out[k];
        p->copies[node->out[k]].state = form->out == TERM ? ROWS : form->out == SUM ? WHOLE : form->out;
        note_place(p, node->out[k], made->out[k]);
    }
out:
    return rc;
}

static int divide_layers(const struct tt_graph *whole, const struct tt_division *tp, struct tt_graph **ret_graph)
{
    const int inputs[] = {whole->tokens, whole->labels, whole->positions, whole->rope_table, whole->local_rope_table};
    struct pass p = {.whole = whole, .graph = tt_graph_new(), .peers = tp->peers, .grains = tp->grains};
    int rc = 0;

    if (p.peers.n < 1)
        p.peers = (struct tt_axis_peers){.n = 1};
    if (p.grains < 1)
        p.grains = 1;
    p.copies = tt_calloc((size_t)whole->n_values + 1, sizeof *p.copies);
    for (int v = 0; v < whole->n_values; v++)
        p.copies[v] = (struct copy){.value = TT_NONE, .gathered = TT_NONE};
    p.graph->dtype = whole->dtype;
    p.graph->documents = whole->documents;
    p.graph->rope = whole->rope;
    p.graph->local_rope = whole->local_rope;
    for (int i = 0; i < 5; i++) /* values in the order of the whole graph, whether or not a node reads them */
        if (inputs[i] != TT_NONE)
            TT_TRY(copy_leaf(&p, inputs[i]));
    for (int n = 0; n < whole->n_nodes; n++)
        TT_TRY(divide_node(&p, &whole->nodes[n]));
    p.graph->block = TT_NONE;
    *ret_graph = p.graph;
    p.graph = NULL;
out:
    tt_graph_free(p.graph);
    tt_free(p.copies);
    return rc;
}

int tt_graph_divide(const struct tt_graph *whole, const struct tt_divisions *divisions, struct tt_graph **ret_graph)
{
    const struct tt_division *tp = &divisions->tp;
    bool cuts_sequences = divisions->cp.grains > 1 || divisions->cp.peers.n > 1;
    bool cuts_layers = tp->grains > 1 || tp->peers.n > 1;
    struct tt_graph *sequences = NULL;
    int rc = 0;

    if (tp->grains > TT_MOST_GRAINS || (tp->peers.n > 1 && (tp->grains < 1 || tp->grains % tp->peers.n != 0)))
        return tt_fail(TT_EINTERNAL, "%d grains cannot be divided among %d ranks", tp->grains, tp->peers.n);
    for (int n = 0; n < whole->n_nodes; n++)
        if (whole->nodes[n].backward)
            return tt_fail(TT_EINTERNAL, "a graph is divided before it is differentiated");
    if (cuts_sequences)
        TT_TRY(divide_sequences(whole, divisions, &sequences));
    if (cuts_layers || !cuts_sequences) {
        TT_TRY(divide_layers(sequences ? sequences : whole, tp, ret_graph));
    } else {
        *ret_graph = sequences;
        sequences = NULL;
    }
out:
    tt_graph_free(sequences);
    return rc;
}

/*
 * --- experts: expert parallelism ---
 *
 * Finds the feed-forward of each layer (EXPERTS for gate and up, SWIGLU, and EXPERTS for down), and replaces it by one
 * node.
 */

enum { EXPERT_ROWS, WEIGHT, ENDS }; /* inputs of EXPERTS */

/* The nodes of a layer's feed-forward. */
struct found {
    int gate, up, hidden, down;
};

/* The node that computes input i, if it runs that op; else TT_NONE. */
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

    if (down->op != TT_OP_EXPERTS || (f.hidden = maker(graph, down, EXPERT_ROWS, TT_OP_SWIGLU)) == TT_NONE)
        return false;
    hidden = &graph->nodes[f.hidden];
    f.gate = maker(graph, hidden, 0, TT_OP_EXPERTS);
    f.up = maker(graph, hidden, 1, TT_OP_EXPERTS);
    if (f.gate == TT_NONE || f.up == TT_NONE)
        return false;
    gate = &graph->nodes[f.gate];
    up = &graph->nodes[f.up];
    *ret_found = f;
    return gate->in[EXPERT_ROWS] == up->in[EXPERT_ROWS] && gate->in[ENDS] == up->in[ENDS] &&
           gate->in[ENDS] == down->in[ENDS];
}

/* Puts the one node in the place of the last of the four. */
static void replace(struct tt_graph *graph, const struct tt_experts_division *division, const struct found *f)
{
    const struct tt_node gate = graph->nodes[f->gate], up = graph->nodes[f->up];
    struct tt_node *node = &graph->nodes[f->down];
    int64_t rows = tt_value_rows(&graph->values[gate.in[EXPERT_ROWS]]);
    int64_t grain = tt_parts_grain_rows(&gate.attr.parts, rows / gate.attr.top_k);
    int in[5] = {gate.in[EXPERT_ROWS], gate.in[ENDS], gate.in[WEIGHT], up.in[WEIGHT], node->in[WEIGHT]};

    node->op = TT_OP_EXPERTS_FFN;
    node->n_in = 5;
    node->n_out = 3;
    node->out[1] = gate.out[0];
    node->out[2] = up.out[0];
    for (int i = 0; i < 5; i++)
        node->in[i] = in[i];
    for (int i = 2; i < 5; i++) { /* this rank has the weights of its own experts */
        graph->values[in[i]].shape[0] /= division->peers.n;
        graph->values[in[i]].tp = TT_TP_ROWS; /* no other rank of the group has them: their gradient is not a sum */
    }
    node->attr.peers = division->peers;
    node->attr.round_leaves = division->round_leaves;
    node->attr.window = (int64_t)ceil(division->window * (double)rows);
    if (node->attr.window < grain)
        node->attr.window = grain; /* an expert gets each of these tokens at most once */
}

int tt_graph_divide_experts(struct tt_graph *graph, const struct tt_experts_division *division)
{
    bool *gone = NULL;
    struct found f;
    int left = 0, rc = 0;

    if (division->peers.n <= 1)
        return 0;
    gone = tt_calloc((size_t)graph->n_nodes + 1, sizeof *gone);
    for (int n = 0; n < graph->n_nodes; n++) {
        int experts = graph->nodes[n].attr.experts;

        if (!find(graph, n, &f))
            continue;
        if (experts % division->peers.n != 0)
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.expert_parallel_degree),
                               "%d experts cannot be divided among %d ranks", experts, division->peers.n));
        replace(graph, division, &f);
        gone[f.gate] = gone[f.up] = gone[f.hidden] = true;
    }
    for (int n = 0; n < graph->n_nodes; n++) {
        for (int k = 0; k < graph->nodes[n].n_out; k++)
            graph->values[graph->nodes[n].out[k]].producer = gone[n] ? TT_NONE : left;
        if (!gone[n])
            graph->nodes[left++] = graph->nodes[n];
    }
    graph->n_nodes = left;
    for (int n = 0; n < graph->n_nodes; n++)
        if (graph->nodes[n].op == TT_OP_EXPERTS)
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.expert_parallel_degree),
                               "%d, but only SwiGLU experts can be divided among ranks\nhelp: set it to 1",
                               division->peers.n));
out:
    tt_free(gone);
    return rc;
}
