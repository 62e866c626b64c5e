/* SPDX-License-Identifier: MIT
 *
 * Divides a forward graph. A table says, for every op, how its operands may be divided; the pass walks over the nodes,
 * brings every input into the state that the op's line wants, by an exchange where it is in another, and writes the
 * node with this rank's shapes.
 */
#include "core/graph/divide.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/graph/divide_sequences.h"
#include "core/ops/grains.h"
#include "core/ops/op.h"

/* --- the table --- */

/* What a rank has of a value. */
enum state {
    ABSENT,
    WHOLE,   /* all of it */
    ROWS,    /* its part of the rows: of tokens, or of the outputs of a weight */
    COLUMNS, /* its part of the last dimension: of the heads, of the FFN's width, or of the inputs of a weight */
    TERM,    /* a term of a sum over the ranks; it is added at once, so no op reads one */
};

/* One way to divide an op. */
struct form {
    enum tt_op_id op;
    enum state in[TT_MAX_INPUTS];
    enum state out; /* of all outputs */
    unsigned cuts;  /* TT_CUT_*: the extents that are in grains */
    bool peers; /* the op reads peers, or a parameter that all ranks have whole has a term of its gradient on each */
};

static const struct form forms[] = {
    {TT_OP_EMBEDDING, {WHOLE, ROWS}, ROWS, TT_CUT_OUT, true}, /* looked_up adds what follows */
    {TT_OP_POSITION, {ROWS, WHOLE, WHOLE}, ROWS, 0, true},
    {TT_OP_RMSNORM, {ROWS, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_RMSNORM, {COLUMNS, WHOLE}, COLUMNS, TT_CUT_OUT, true}, /* of the heads of q and k */
    {TT_OP_LAYERNORM, {ROWS, WHOLE, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_LINEAR, {WHOLE, ROWS}, COLUMNS, TT_CUT_OUT, false},
    {TT_OP_LINEAR, {COLUMNS, COLUMNS}, TERM, TT_CUT_IN, false},
    {TT_OP_LINEAR, {ROWS, WHOLE}, ROWS, TT_CUT_ROWS, true}, /* of an adapter, or to a latent */
    {TT_OP_SCALE, {ROWS}, ROWS, 0, false},
    {TT_OP_BIAS, {ROWS, WHOLE}, ROWS, TT_CUT_ROWS, true},
    {TT_OP_BIAS, {COLUMNS, ROWS}, COLUMNS, 0, false},
    {TT_OP_ROPE, {COLUMNS, WHOLE, WHOLE}, COLUMNS, 0, false},
    {TT_OP_ROPE, {ROWS, WHOLE, WHOLE}, ROWS, 0, true}, /* of a key that all heads share */
    {TT_OP_SPLIT, {ROWS}, ROWS, 0, false},             /* of a latent and such a key */
    {TT_OP_SPLIT, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_JOIN, {COLUMNS, WHOLE}, COLUMNS, TT_CUT_OUT, false}, /* every head, and such a key */
    {TT_OP_ATTENTION, {COLUMNS, COLUMNS, COLUMNS, WHOLE}, COLUMNS, TT_CUT_OUT, false},
    {TT_OP_GELU, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_SWIGLU, {COLUMNS, COLUMNS}, COLUMNS, 0, false},
    {TT_OP_ADD, {ROWS, ROWS}, ROWS, 0, false},
    {TT_OP_ADD, {COLUMNS, COLUMNS}, COLUMNS, 0, false}, /* a product and that of its adapter */
    {TT_OP_REORDER, {COLUMNS}, COLUMNS, 0, false},      /* these two change the sequences of whole heads */
    {TT_OP_SWAP_BLOCKS, {COLUMNS}, COLUMNS, 0, false},
    {TT_OP_GATHER_ROWS, {COLUMNS}, COLUMNS, 0, false}, /* of keys and values, over the ranks of a sequence */
    {TT_OP_GATHER_ROWS, {WHOLE}, WHOLE, 0, false},     /* of positions */
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
    int value; /* in the new graph, TT_NONE: not there yet */
    enum state state;
    int gathered; /* its rows from all ranks, TT_NONE: nobody asked yet */
};

struct pass {
    const struct tt_graph *whole;
    struct tt_graph *graph;
    struct tt_axis_peers peers; /* n 1: this rank has everything, in grains */
    int grains;
    struct copy *copies; /* by value of the whole graph */
};

static bool is_shared(const struct pass *p)
{
    return p->peers.n > 1;
}

/* This rank's part of a dimension; `whole` for one that is in one grain. TT_NONE: not a number of whole grains. */
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
    const int from[] = {whole->tokens, whole->labels, whole->positions, whole->rope_table, whole->token_loss};
    int *const to[] = {&p->graph->tokens, &p->graph->labels, &p->graph->positions, &p->graph->rope_table,
                       &p->graph->token_loss};

    for (int i = 0; i < 5; i++)
        if (from[i] == value)
            *to[i] = copy;
}

static const enum state state_of_param[] = {[TT_TP_WHOLE] = WHOLE, [TT_TP_ROWS] = ROWS, [TT_TP_COLUMNS] = COLUMNS};

/* Adds a value that no node makes. */
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
    note_place(p, id, copy->value);
    return 0;
}

static int exchange(struct pass *p, enum tt_op_id op, int value, const char *name, int *ret_value)
{
    struct tt_node node = {.op = op, .block = p->graph->block, .n_in = 1, .in = {value}, .attr = {.peers = p->peers}};
    int rc = 0;

    TT_TRY(tt_graph_try_node(p->graph, &node, name));
    *ret_value = tt_graph_out(p->graph, p->graph->n_nodes - 1);
out:
    return rc;
}

static int gather(struct pass *p, struct copy *copy)
{
    char *name = tt_format("%s.gathered", p->graph->values[copy->value].name);
    int rc = 0;

    TT_TRY(exchange(p, TT_OP_GATHER_ROWS, copy->value, name, &copy->gathered));
out:
    tt_free(name);
    return rc;
}

/* Whether a product reads a value in rows, which others read whole. A router comes before those that read it whole, so
 * its gradient is added after theirs in any case. */
static bool is_read_in_rows(const struct pass *p, int id)
{
    for (int n = 0; n < p->whole->n_nodes; n++) {
        const struct tt_node *node = &p->whole->nodes[n];

        if (node->op == TT_OP_LINEAR && node->in[0] == id && p->whole->values[node->in[1]].tp == TT_TP_WHOLE)
            return true;
    }
    return false;
}

/*
 * A rank alone gathers nothing. But where others do, the gradient of what they gather is a sum over grains, to which
 * other gradients are added afterwards. So that it is one here too, its readers get a copy.
 */
static int copy_apart(struct pass *p, struct copy *copy)
{
    const struct tt_attr exactly = {.scale = 1.0F};
    struct tt_node node = {
        .op = TT_OP_SCALE, .block = p->graph->block, .n_in = 1, .in = {copy->value}, .attr = exactly};
    char *name = tt_format("%s.copied", p->graph->values[copy->value].name);
    int rc = 0;

    TT_TRY(tt_graph_try_node(p->graph, &node, name));
    copy->gathered = tt_graph_out(p->graph, p->graph->n_nodes - 1);
out:
    tt_free(name);
    return rc;
}

/* The input in the state that a form wants; the form has been chosen so that this is possible. */
static int bring(struct pass *p, int id, enum state wanted, int *ret_value)
{
    struct copy *copy = &p->copies[id];
    int rc = 0;

    if (copy->state == wanted ||
        (!is_shared(p) && (p->graph->values[copy->value].constant || !is_read_in_rows(p, id)))) {
        *ret_value = copy->value;
        return 0;
    }
    if (copy->gathered == TT_NONE)
        TT_TRY(is_shared(p) ? gather(p, copy) : copy_apart(p, copy));
    *ret_value = copy->gathered;
out:
    return rc;
}

/* --- one node --- */

/* Can the value be read in this state? Rows of tokens can be gathered, weights cannot. */
static bool can_be(const struct pass *p, int id, enum state wanted)
{
    enum state state = p->copies[id].state;

    return state == wanted || (state == ROWS && wanted == WHOLE && p->whole->values[id].kind != TT_VALUE_PARAM);
}

static bool fits(const struct pass *p, const struct form *form, const struct tt_node *node)
{
    if (form->op != node->op)
        return false;
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i] != TT_NONE && !can_be(p, node->in[i], form->in[i]))
            return false;
    return true;
}

static const struct form *form_of(const struct pass *p, const struct tt_node *node)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (fits(p, &forms[i], node))
            return &forms[i];
    return NULL;
}

/* The whole of the dimension that an op's file calls `out`. */
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

/* `before`: the extent that the node has already, if sequences are divided. Each of its grains gets grains. */
static struct tt_extent extent(const struct pass *p, const struct form *form, unsigned cut, struct tt_extent before,
                               int64_t whole)
{
    if (!(form->cuts & cut) || p->grains <= 1)
        return before;
    if (before.grains > 1)
        return (struct tt_extent){before.whole, before.grains * p->grains};
    return (struct tt_extent){whole, p->grains};
}

static bool divides(const struct tt_extent *extent)
{
    return extent->grains <= 1 || extent->whole % extent->grains == 0;
}

/* Routers and experts know which of the tokens they have. */
static void set_parts(const struct pass *p, const struct tt_node *node, struct tt_attr *attr)
{
    if (!is_shared(p) || (node->op != TT_OP_ROUTER && node->op != TT_OP_DISPATCH && node->op != TT_OP_EXPERTS))
        return;
    attr->parts.blocks = p->peers.n;
    attr->parts.block = p->peers.index;
    if (node->op == TT_OP_ROUTER)
        attr->first_row += p->peers.index * (tt_value_rows(&p->whole->values[node->in[0]]) / p->peers.n);
}

/* The attributes of a node's part. */
static int set_attr(const struct pass *p, const struct form *form, const struct tt_node *node, struct tt_attr *attr)
{
    const struct tt_value *x = &p->whole->values[node->in[0]];
    const struct tt_extent *extents[] = {&attr->rows, &attr->in, &attr->out};
    bool vocabulary = node->op == TT_OP_EMBEDDING || node->op == TT_OP_HEAD_LOSS;

    attr->rows = extent(p, form, TT_CUT_ROWS, attr->rows, tt_value_rows(x));
    attr->in = extent(p, form, TT_CUT_IN, attr->in, tt_value_width(x));
    if (form->cuts & TT_CUT_OUT)
        attr->out = extent(p, form, TT_CUT_OUT, attr->out, whole_out(p, node));
    for (int i = 0; i < (vocabulary ? 2 : 3); i++)
        if (!divides(extents[i]))
            return no_grains(p->whole->values[node->out[0]].name, extents[i]->whole, extents[i]->grains);
    if (form->peers && is_shared(p))
        attr->peers = p->peers;
    set_parts(p, node, attr);
    attr->partial = form->out == TERM && is_shared(p);
    if (form->out == COLUMNS) {
        attr->heads /= p->peers.n;
        attr->kv_heads /= p->peers.n;
    }
    return 0;
}

static void note_outputs(struct pass *p, const struct tt_node *node, enum state state)
{
    const struct tt_node *made = &p->graph->nodes[p->graph->n_nodes - 1];

    for (int k = 0; k < node->n_out; k++) {
        p->copies[node->out[k]].value = made->out[k];
        p->copies[node->out[k]].state = state;
        note_place(p, node->out[k], made->out[k]);
    }
}

/* What every rank looked up in its part of the vocabulary goes to the ranks that have the rows. */
static int looked_up(struct pass *p, struct tt_node *node, const char *name)
{
    char *found = tt_format("%s.found", name), *blocks = tt_format("%s.blocks", name);
    struct tt_node pick = {.op = TT_OP_PICK_ROWS, .block = node->block, .n_in = 2, .attr = node->attr};
    int rc = 0;

    pick.attr.rows = (struct tt_extent){0};
    TT_TRY(tt_graph_try_node(p->graph, node, found));
    TT_TRY(exchange(p, TT_OP_SWAP_BLOCKS, tt_graph_out(p->graph, p->graph->n_nodes - 1), blocks, &pick.in[0]));
    pick.in[1] = node->in[0];
    TT_TRY(tt_graph_try_node(p->graph, &pick, name));
out:
    tt_free(found);
    tt_free(blocks);
    return rc;
}

/* A term is added to those of the other ranks at once. */
static int summed(struct pass *p, const struct tt_node *node, const char *name)
{
    char *term = tt_format("%s.term", name);
    int rc = 0, sum;

    TT_TRY(tt_graph_try_node(p->graph, node, term));
    TT_TRY(exchange(p, TT_OP_SUM_ROWS, tt_graph_out(p->graph, p->graph->n_nodes - 1), name, &sum));
out:
    tt_free(term);
    return rc;
}

static int divide_node(struct pass *p, const struct tt_node *node)
{
    const char *name = p->whole->values[node->out[0]].name;
    struct tt_node part = {.op = node->op, .block = node->block, .n_in = node->n_in, .attr = node->attr};
    const struct form *form;
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
    if (is_shared(p) && node->op == TT_OP_EMBEDDING)
        TT_TRY(looked_up(p, &part, name));
    else if (is_shared(p) && form->out == TERM)
        TT_TRY(summed(p, &part, name));
    else
        TT_TRY(tt_graph_try_node(p->graph, &part, name));
    note_outputs(p, node, form->out == TERM ? ROWS : form->out);
out:
    return rc;
}

static int check(const struct tt_graph *whole, const struct tt_divisions *divisions)
{
    const struct tt_division *tp = &divisions->tp;

    if (tp->grains > TT_MOST_GRAINS || (tp->peers.n > 1 && (tp->grains < 1 || tp->grains % tp->peers.n != 0)))
        return tt_fail(TT_EINTERNAL, "%d grains cannot be divided among %d ranks", tp->grains, tp->peers.n);
    for (int n = 0; n < whole->n_nodes; n++)
        if (whole->nodes[n].backward)
            return tt_fail(TT_EINTERNAL, "a graph is divided before it is differentiated");
    return 0;
}

static void begin(struct pass *p, const struct tt_graph *whole, const struct tt_division *division)
{
    *p = (struct pass){.whole = whole, .graph = tt_graph_new(), .peers = division->peers, .grains = division->grains};
    if (p->peers.n < 1)
        p->peers = (struct tt_axis_peers){.n = 1};
    if (p->grains < 1)
        p->grains = 1;
    p->copies = tt_calloc((size_t)whole->n_values + 1, sizeof *p->copies);
    for (int v = 0; v < whole->n_values; v++)
        p->copies[v] = (struct copy){.value = TT_NONE, .gathered = TT_NONE};
    p->graph->dtype = whole->dtype;
    p->graph->documents = whole->documents;
    p->graph->rope = whole->rope;
}

/* Divides layers. */
static int divide_layers(const struct tt_graph *whole, const struct tt_division *tp, struct tt_graph **ret_graph)
{
    const int inputs[] = {whole->tokens, whole->labels, whole->positions, whole->rope_table};
    struct pass p;
    int rc = 0;

    begin(&p, whole, tp);
    for (int i = 0; i < 4; i++) /* in the order of the whole graph, also those that no node reads */
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
    bool cuts_sequences = divisions->cp.grains > 1 || divisions->cp.peers.n > 1;
    bool cuts_layers = divisions->tp.grains > 1 || divisions->tp.peers.n > 1;
    struct tt_graph *sequences = NULL;
    int rc = 0;

    TT_TRY(check(whole, divisions));
    if (cuts_sequences)
        TT_TRY(tt_graph_divide_sequences(whole, divisions, &sequences));
    if (cuts_layers || !cuts_sequences) {
        TT_TRY(divide_layers(sequences ? sequences : whole, &divisions->tp, ret_graph));
    } else {
        *ret_graph = sequences;
        sequences = NULL;
    }
out:
    tt_graph_free(sequences);
    return rc;
}
