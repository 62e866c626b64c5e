/* SPDX-License-Identifier: MIT
 *
 * Exchanges inside of a layer: a node whose op exchanges rows with the ranks that share the layer
 * (core/ops/ranks/exchange.c) is not run. Lowering begins a collective in its place, and awaits it before the first
 * instruction that reads what it brings or overwrites what it sends. What runs in between overlaps it.
 *
 * Operands are the node's inputs, its output, and staging. A sum uses up the term that this rank gives, so no other
 * node may read that value later.
 */
#include "core/base/mem.h"
#include "core/comm/tags.h"
#include "core/ops/op.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

static const struct kind {
    enum tt_purpose purpose;
    bool in_blocks; /* x has one block for each rank: `bytes` are those of a block */
    bool uses_up;   /* x is undefined afterwards */
} kinds[] = {
    [TT_EXCHANGE_GATHER] = {TT_GATHER_VALUES, false, false},
    [TT_EXCHANGE_SCATTER] = {TT_SUM_VALUES, true, true},
    [TT_EXCHANGE_SUM] = {TT_SUM_ALL_VALUES, false, true},
    [TT_EXCHANGE_BLOCKS] = {TT_SWAP_VALUES, true, false},
};

static const struct tt_node *node_of(const struct tt_program *program, const struct tt_instr *begin)
{
    return &tt_instr_graph(program, begin)->nodes[begin->node];
}

static enum tt_group_id group_of(enum tt_axis axis)
{
    return axis == TT_AXIS_CP ? TT_GROUP_CP : TT_GROUP_TP;
}

bool tt_node_exchanges(const struct tt_graph *graph, int node)
{
    return tt_op_row(graph->nodes[node].op)->exchange != TT_EXCHANGE_NONE;
}

struct tt_collective_desc tt_node_collective(const struct tt_graph *graph, int node)
{
    const struct tt_node *of = &graph->nodes[node];
    const struct kind *kind = &kinds[tt_op_row(of->op)->exchange];
    const struct tt_value *x = &graph->values[of->in[0]];
    struct tt_collective_desc desc = {.op = tt_purpose_row(kind->purpose)->op,
                                      .group = group_of(of->attr.peers.axis),
                                      .ranks = of->attr.peers.n,
                                      .dtype = x->dtype,
                                      .bytes = tt_value_bytes(x)};

    if (kind->in_blocks)
        desc.bytes /= desc.ranks;
    desc.shard_bytes = desc.bytes;
    return desc;
}

/* --- lowering --- */

/*
 * Tags go round, in the order in which exchanges begin. All ranks that share a layer begin them in the same order,
 * but may await them at different places: those that share a sequence plan on their own.
 */
static int next_tag(struct tt_walk *w, enum tt_axis axis)
{
    return TT_TAG_EXCHANGE - TT_TAG_COLLECTIVE + w->n_exchanges[axis]++ % TT_TAG_EXCHANGES;
}

static int check(const struct tt_walk *w, const struct tt_instr *from, const struct kind *kind)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];
    const struct tt_axis_peers *peers = &node->attr.peers;
    struct tt_place place = w->in.layout->groups[group_of(peers->axis)];
    const char *name = graph->values[node->out[0]].name;

    if (peers->n < 2 || peers->n != place.n || peers->index != place.index)
        return tt_fail(TT_EINTERNAL, "'%s' is exchanged as rank %d of %d, and this is rank %d of %d in %s", name,
                       peers->index, peers->n, place.index, place.n, tt_group_name(group_of(peers->axis)));
    if (!kind->uses_up)
        return 0;
    if (graph->values[node->in[0]].kind == TT_VALUE_PARAM_GRAD ||
        w->last_reader[tt_lower_slot(w, from->microbatch, from->stage, node->in[0])] != w->at)
        return tt_fail(TT_EINTERNAL, "the exchange of '%s' uses up '%s', which is needed later", name,
                       graph->values[node->in[0]].name);
    return 0;
}

int tt_lower_exchange(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];
    const struct kind *kind = &kinds[tt_op_row(node->op)->exchange];
    struct tt_instr begin = *from;
    int64_t staging;
    int rc = 0;

    TT_TRY(check(w, from, kind));
    tt_lower_await_inputs(w, from);
    begin.kind = TT_BEGIN;
    begin.purpose = kind->purpose;
    begin.collective = tt_node_collective(graph, from->node);
    begin.collective.tag = next_tag(w, node->attr.peers.axis);
    tt_lower_begin(w, &begin);
    TT_TRY(tt_lower_inputs(w, from));
    tt_lower_operand(w, tt_lower_output(w, from, 0));
    staging = w->in.staging(&begin.collective);
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
    TT_PUSH(w->exchanging, w->n_exchanging, w->cap_exchanging) = w->program->n_instrs - 1;
out:
    return rc;
}

/* Adds the wait for the k-th of the exchanges under way. */
static void await(struct tt_walk *w, int k)
{
    struct tt_program *p = w->program;
    int begin = w->exchanging[k];
    struct tt_instr wait = p->instrs[begin];

    wait.kind = TT_WAIT;
    wait.node = TT_NONE;
    wait.begin = begin;
    wait.collective = (struct tt_collective_desc){0};
    tt_lower_begin(w, &wait);
    for (int i = 0; i < p->instrs[begin].n_operands; i++)
        tt_lower_operand(w, p->operands[p->instrs[begin].operands + i]);
    w->n_exchanging--;
    for (int i = k; i < w->n_exchanging; i++)
        w->exchanging[i] = w->exchanging[i + 1];
}

/* Whether an exchange writes a buffer, or also reads it if `reads`. */
static bool uses(const struct tt_program *p, int begin, int buffer, bool reads)
{
    const struct tt_instr *instr = &p->instrs[begin];
    int n_in = node_of(p, instr)->n_in;

    for (int i = reads ? 0 : n_in; i <= n_in; i++)
        if (p->operands[instr->operands + i] == buffer)
            return true;
    return false;
}

void tt_lower_await(struct tt_walk *w, int buffer, bool overwritten)
{
    for (int k = w->n_exchanging - 1; k >= 0 && buffer != TT_NONE; k--)
        if (uses(w->program, w->exchanging[k], buffer, overwritten))
            await(w, k);
}

void tt_lower_await_grads(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_program *p = w->program;
    int n;
    const int *units = tt_instr_units(p->buckets, from, &n);

    for (int k = 0; k < w->n_exchanging;) {
        const struct tt_instr *begin = &p->instrs[w->exchanging[k]];
        int out = p->operands[begin->operands + node_of(p, begin)->n_in], unit = p->buffers[out].unit;
        bool wanted = false;

        for (int u = 0; u < n; u++)
            wanted = wanted || (unit == units[u] && (w->carries || begin->microbatch == from->microbatch));
        if (wanted)
            await(w, k);
        else
            k++;
    }
}

void tt_lower_await_all(struct tt_walk *w)
{
    while (w->n_exchanging > 0)
        await(w, 0);
}

/* --- running --- */

bool tt_exchange_rounds(const struct tt_program *program, const struct tt_instr *begin)
{
    const struct tt_value *out = &tt_instr_graph(program, begin)->values[node_of(program, begin)->out[0]];

    return out->dtype != begin->collective.dtype;
}

static void round_sum(struct tt_executor *ex, const struct tt_instr *begin)
{
    int64_t bytes = begin->collective.bytes;
    void *const *address = tt_running_address(ex, begin);

    if (tt_exchange_rounds(ex->program, begin))
        tt_running_step(
            ex, (struct tt_step_call){.op = TT_STEP_ROUND,
                                      .in = (char *)address[0] + node_of(ex->program, begin)->attr.peers.index * bytes,
                                      .out = {address[1]},
                                      .n = bytes / (int64_t)sizeof(float)});
}

/* x holds the sum; y may have acc's memory. */
static void add_sum(struct tt_executor *ex, const struct tt_instr *begin)
{
    void *const *address = tt_running_address(ex, begin);

    tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_ADD,
                                              .in = address[0],
                                              .out = {address[2], address[1]},
                                              .n = begin->collective.bytes / (int64_t)sizeof(float)});
}

int tt_running_examine_exchange(struct tt_executor *ex, const struct tt_instr *begin)
{
    const struct tt_node *node = node_of(ex->program, begin);
    const struct tt_value *out = &tt_instr_graph(ex->program, begin)->values[node->out[0]];
    int rc = 0;

    TT_TRY(tt_device_synchronize(ex->stream));
    if (tt_running_order(ex, begin) < ex->bad->order &&
        !tt_running_all_finite(out->dtype, tt_running_address(ex, begin)[node->n_in], tt_value_elements(out)))
        *ex->bad = (struct tt_bad_value){.order = tt_running_order(ex, begin)};
out:
    return rc;
}

/* --- rows --- */

/* " of layers.0.attention_norm" */
static void text(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out)
{
    const struct tt_instr *begin = instr->begin == TT_NONE ? instr : &program->instrs[instr->begin];

    tt_text_add(out, " of %s", tt_instr_graph(program, begin)->values[node_of(program, begin)->in[0]].name);
}

const struct tt_purpose_row tt_purpose_gather_values = {
    .name = "gather rows",
    .wait_name = "wait gather rows",
    .op = TT_ALL_GATHER,
    .among = TT_AMONG_PEERS,
    .of_microbatch = true,
    .rare = true,
    .subject = text,
};

const struct tt_purpose_row tt_purpose_sum_values = {
    .name = "sum rows",
    .wait_name = "wait sum rows",
    .op = TT_REDUCE_SCATTER,
    .among = TT_AMONG_PEERS,
    .of_microbatch = true,
    .rare = true,
    .subject = text,
    .after = round_sum,
};

const struct tt_purpose_row tt_purpose_sum_all_values = {
    .name = "sum",
    .wait_name = "wait sum",
    .op = TT_ALL_SUM,
    .among = TT_AMONG_PEERS,
    .of_microbatch = true,
    .rare = true,
    .subject = text,
    .after = add_sum,
};

const struct tt_purpose_row tt_purpose_swap_values = {
    .name = "swap blocks",
    .wait_name = "wait swap blocks",
    .op = TT_ALL_TO_ALL,
    .among = TT_AMONG_PEERS,
    .of_microbatch = true,
    .rare = true,
    .subject = text,
};
