/* SPDX-License-Identifier: MIT
 *
 * The instructions that begin a collective and wait for it. The rows of the purposes contain the differences.
 */
#include "core/base/mem.h"
#include "core/comm/comm.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "core/program/instr/instr.h"
#include "core/program/internal.h"
#include "core/program/order.h"

/* --- the data of a collective of units --- */

int64_t tt_purpose_elements(const struct tt_unit *unit, enum tt_purpose purpose)
{
    switch (tt_purpose_row(purpose)->carries) {
    case TT_CARRIES_PARAMS:
        return unit->shard_elements;
    case TT_CARRIES_UPDATES:
        return unit->trained_elements - unit->matrices_begin;
    default:
        return unit->grad_elements;
    }
}

int tt_purpose_pieces(const struct tt_unit *unit, enum tt_purpose purpose)
{
    switch (tt_purpose_row(purpose)->carries) {
    case TT_CARRIES_PARAMS:
        return unit->n_params;
    case TT_CARRIES_UPDATES:
        return unit->n_trained - unit->first_matrix;
    default:
        return unit->n_grads;
    }
}

int64_t tt_purpose_chunk(const struct tt_unit *unit, enum tt_purpose purpose, int k)
{
    switch (tt_purpose_row(purpose)->carries) {
    case TT_CARRIES_PARAMS:
        return unit->params[k].chunk;
    case TT_CARRIES_UPDATES:
        return unit->params[unit->first_matrix + k].chunk;
    default:
        return unit->grads[k].chunk;
    }
}

struct tt_collective_desc tt_lowering_collective(const struct tt_lowering *lowering, enum tt_purpose purpose, int unit,
                                                 int64_t elements)
{
    const struct tt_purpose_row *row = tt_purpose_row(purpose);
    const enum tt_dtype sums = tt_dtype_sums(lowering->param_dtype);
    const enum tt_dtype carried[] = {[TT_CARRIES_PARAMS] = lowering->param_dtype,
                                     [TT_CARRIES_GRADS] = lowering->block > 1 ? sums : lowering->reduce_dtype,
                                     [TT_CARRIES_SUMS] = sums,
                                     [TT_CARRIES_UPDATES] = sums};
    const struct tt_unit *of = &lowering->layout->units[unit];
    struct tt_collective_desc desc = {.op = row->op, .dtype = carried[row->carries]};

    desc.group = row->among == TT_AMONG_REPLICAS ? of->replicate_group : of->shard_group;
    if (row->carries == TT_CARRIES_PARAMS && of->packing)
        desc.dtype = TT_U8;
    if (row->carries == TT_CARRIES_GRADS && of->shard_group == TT_GROUP_EFSDP)
        desc.dtype = sums; /* sums over the rows of several ranks, which the ranks rounded before the addition */
    if (row->among == TT_AMONG_MATRIX && lowering->layout->groups[TT_GROUP_TP].n > 1)
        desc.group = TT_GROUP_MATRIX;
    desc.ranks = lowering->layout->groups[desc.group].n;
    desc.shard_bytes = desc.bytes = elements * (int64_t)tt_dtype_size(desc.dtype);
    if (row->among == TT_AMONG_NEIGHBOURS) { /* each neighbour keeps S / n shards */
        desc.bytes *= desc.ranks / of->keep_degree;
        desc.ranks = of->keep_degree;
    }
    return desc;
}

/* Whether there is anything to do: data travels, or is rounded to another type than the one in which it is kept. */
static bool happens(const struct tt_lowering *lowering, enum tt_purpose purpose, const struct tt_collective_desc *desc)
{
    bool of_params = tt_purpose_row(purpose)->carries == TT_CARRIES_PARAMS;

    if (of_params && desc->dtype == TT_U8) /* packed rows are never rounded */
        return tt_collective_travels(desc);
    return tt_collective_travels(desc) ||
           desc->dtype != (of_params ? lowering->shard_dtype : tt_dtype_sums(lowering->param_dtype));
}

bool tt_lowering_gathers(const struct tt_lowering *lowering, int unit)
{
    struct tt_collective_desc desc = tt_lowering_collective(lowering, TT_UNSHARD, unit, 0);

    return !lowering->layout->units[unit].buffers && happens(lowering, TT_UNSHARD, &desc);
}

bool tt_lowering_reduces(const struct tt_lowering *lowering, int unit)
{
    struct tt_collective_desc desc = tt_lowering_collective(lowering, TT_REDUCE, unit, 0);

    return tt_collective_travels(&desc);
}

/* --- TT_BEGIN --- */

void tt_lower_collective(struct tt_walk *w, const struct tt_instr *from, enum tt_purpose purpose)
{
    struct tt_program *p = w->program;
    struct tt_instr begin = *from;
    int tag = 0;
    const struct tt_bucket of = tt_instr_units(p->buckets, from);

    begin.purpose = purpose;
    begin.collective = tt_lower_describe(w, purpose, of.units, of.n);
    if (tt_collective_travels(&begin.collective)) { /* the lowest tag that no collective under way uses */
        while (tag < w->n_tags && w->tag_taken[tag])
            tag++;
        if (tag == w->n_tags)
            TT_PUSH(w->tag_taken, w->n_tags, w->cap_tags) = true;
        w->tag_taken[tag] = true;
        begin.collective.tag = tag;
    }
    tt_lower_begin(w, &begin);
    for (int i = 0; i < of.n; i++)
        w->begun[from->purpose][of.units[i]] = p->n_instrs - 1;
}

static int lower_begin(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_purpose_row *row = tt_purpose_row(from->purpose);
    struct tt_collective_desc desc;
    int rc = 0;

    if (!row->lower)
        return tt_fail(TT_EINTERNAL, "a schedule cannot hold '%s'", row->name);
    if (row->among == TT_AMONG_STAGES) {
        rc = row->lower(w, from);
        *tt_lower_transfer_begun(w, from) = w->program->n_instrs - 1;
        return rc;
    }
    if (row->carries == TT_CARRIES_GRADS)
        tt_lower_await_grads(w, from);
    desc = tt_lower_describe(w, from->purpose, &from->unit, 1);
    return happens(&w->in, from->purpose, &desc) ? row->lower(w, from) : 0;
}

static int run_begin(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    const struct tt_purpose_row *row = tt_purpose_row(instr->purpose);
    int rc = 0;

    (void)step;
    if (row->before)
        row->before(ex, instr);
    if (!tt_collective_travels(&instr->collective) || !ex->exchange.begin)
        goto out;
    /* wait for all earlier work: it produces the data to send, and may use the memory into which data arrives */
    TT_TRY(tt_device_synchronize(ex->stream));
    rc = ex->exchange.begin(ex->exchange.ctx, i);
out:
    return rc;
}

const struct tt_instr_row tt_instr_begin = {
    .name = "begin",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_EXCHANGE,
    .of_units = true,
    .begins = true,
    .lower = lower_begin,
    .run = run_begin,
};

/* --- TT_WAIT --- */

/* Adds the wait for a TT_BEGIN, as a copy of `wait`. It has the same operands, so that they live until then. */
static void add_wait(struct tt_walk *w, struct tt_instr wait, int begin)
{
    struct tt_program *p = w->program;

    wait.kind = TT_WAIT;
    wait.begin = begin;
    wait.collective = (struct tt_collective_desc){0};
    tt_lower_begin(w, &wait);
    for (int i = 0; i < p->instrs[begin].n_operands; i++)
        tt_lower_operand(w, p->operands[p->instrs[begin].operands + i]);
}

static int lower_wait(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_purpose_row *row = tt_purpose_row(from->purpose);
    bool of_stages = row->among == TT_AMONG_STAGES;
    int *begun = of_stages ? tt_lower_transfer_begun(w, from) : &w->begun[from->purpose][from->unit];
    int begin = *begun;
    const struct tt_bucket of = tt_instr_units(w->program->buckets, from);
    struct tt_collective_desc desc;

    if (of_stages) {
        if (begin == TT_NONE)
            return tt_fail(TT_EINTERNAL, "the schedule has '%s' of microbatch %d, which it has not begun",
                           row->wait_name, from->microbatch);
        add_wait(w, *from, begin);
        *begun = TT_NONE;
        return 0;
    }
    if (row->carries == TT_CARRIES_GRADS)
        tt_lower_await_grads(w, from);
    desc = tt_lower_describe(w, from->purpose, &from->unit, 1);
    if (begin != TT_NONE) {
        add_wait(w, *from, begin);
        if (tt_collective_travels(&w->program->instrs[begin].collective))
            w->tag_taken[w->program->instrs[begin].collective.tag] = false;
        for (int i = 0; i < of.n; i++)
            w->begun[from->purpose][of.units[i]] = TT_NONE;
    } else if (tt_collective_travels(&desc)) {
        return tt_fail(TT_EINTERNAL, "the schedule has '%s' of %s, which it has not begun", row->wait_name,
                       w->in.layout->units[from->unit].name);
    }
    return row->arrived ? row->arrived(w, from, begin) : 0;
}

/* In explain: notes whether an exchange inside a layer brought values that are not finite. Waits for the stream. */
static int examine_exchange(struct tt_executor *ex, const struct tt_instr *begin)
{
    const struct tt_node *node = tt_instr_node(ex->program, begin);
    const struct tt_value *out = &tt_instr_graph(ex->program, begin)->values[node->out[0]];
    int rc = tt_device_synchronize(ex->stream);

    if (rc == 0 && tt_running_order(ex, begin) < ex->bad->order &&
        !tt_running_all_finite(out->dtype, tt_running_address(ex, begin)[node->n_in], tt_value_elements(out)))
        *ex->bad = (struct tt_bad_value){.order = tt_running_order(ex, begin)};
    return rc;
}

/* Shows the observer what an exchange inside a layer brought. */
static int show_exchange(struct tt_executor *ex, const struct tt_instr *begin)
{
    const struct tt_node *node = tt_instr_node(ex->program, begin);
    int rc = tt_device_synchronize(ex->stream);

    if (rc == 0)
        ex->observer->value(ex->observer->arg, tt_instr_graph(ex->program, begin), node->out[0], begin->microbatch,
                            tt_running_address(ex, begin)[node->n_in]);
    return rc;
}

int tt_running_wait(struct tt_executor *ex, int i)
{
    const struct tt_instr *begin = &ex->program->instrs[i];
    const struct tt_purpose_row *row = tt_purpose_row(begin->purpose);
    int rc = ex->exchange.wait ? ex->exchange.wait(ex->exchange.ctx, i) : 0;

    if (rc == 0 && row->after)
        row->after(ex, begin);
    if (rc == 0 && ex->bad && row->among == TT_AMONG_PEERS)
        rc = examine_exchange(ex, begin);
    if (rc == 0 && ex->observer && ex->observer->value && row->among == TT_AMONG_PEERS)
        rc = show_exchange(ex, begin);
    return rc;
}

static int run_wait(struct tt_executor *ex, int i, struct tt_step *step)
{
    (void)step;
    return tt_running_wait(ex, ex->program->instrs[i].begin);
}

const struct tt_instr_row tt_instr_wait = {
    .name = "wait",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_WAIT,
    .of_units = true,
    .waits = true,
    .lower = lower_wait,
    .run = run_wait,
};

/*
 * --- between stages of a pipeline ---
 *
 * A transfer carries all values, or all gradients, that cross the boundary of two stages in one microbatch. Its
 * operands are one buffer for each value.
 */

/* The boundary of a stage that a transfer crosses. */
struct crossing {
    const struct tt_boundary *items;
    int n;
    bool grads;
    const struct tt_stage_neighbour *peer;
    int number; /* of the stage before the boundary */
};

static struct crossing crossing_of(const struct tt_stage *stage, enum tt_purpose purpose)
{
    bool out = purpose == TT_SEND_VALUES || purpose == TT_RECEIVE_GRADS;

    return (struct crossing){out ? stage->out : stage->in, out ? stage->n_out : stage->n_in,
                             purpose == TT_SEND_GRADS || purpose == TT_RECEIVE_GRADS,
                             out ? &stage->after : &stage->before, out ? stage->number : stage->number - 1};
}

/* The value at a boundary that the transfer carries, or TT_NONE. */
static int carried(const struct crossing *c, int i)
{
    return c->grads ? c->items[i].grad : c->items[i].value;
}

bool tt_stage_transfers(const struct tt_stage *stage, enum tt_purpose purpose)
{
    struct crossing c = crossing_of(stage, purpose);

    for (int i = 0; c.peer->apart && i < c.n; i++)
        if (carried(&c, i) != TT_NONE)
            return true;
    return false;
}

void tt_lower_note_crossing(struct tt_walk *w, const struct tt_instr *from, int at)
{
    struct crossing c = crossing_of(&w->in.stages[from->stage], from->purpose);

    for (int i = 0; i < c.n; i++)
        if (carried(&c, i) != TT_NONE)
            w->last_reader[tt_lower_slot(w, from->microbatch, from->stage, carried(&c, i))] = at;
}

void tt_transfer_text(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out)
{
    const struct tt_stage *stage = &program->stages[instr->stage];
    bool sends = tt_purpose_row(instr->purpose)->op == TT_SEND;
    bool out_of = crossing_of(stage, instr->purpose).peer == &stage->after;

    tt_text_add(out, " %s stage %d", sends ? "to" : "from", stage->number + (out_of ? 1 : -1));
}

/* Adds the TT_BEGIN `begin` of a transfer to or from the rank at place `peer` of the pipeline. */
static void begin_transfer(struct tt_walk *w, struct tt_instr begin, int peer, enum tt_dtype dtype, int64_t bytes,
                           int tag)
{
    begin.collective = (struct tt_collective_desc){.op = tt_purpose_row(begin.purpose)->op,
                                                   .group = TT_GROUP_PP,
                                                   .ranks = 2,
                                                   .peer = peer,
                                                   .dtype = dtype,
                                                   .bytes = bytes,
                                                   .shard_bytes = bytes,
                                                   .tag = tag};
    tt_lower_begin(w, &begin);
}

static int lower_transfer(struct tt_walk *w, const struct tt_instr *from)
{
    enum { MICROBATCHES = TT_PIPELINE_OVERTAKING, BOUNDARIES = 128 }; /* keeps all tags below TT_TAG_TIED */
    const struct tt_value *values = tt_lower_graph(w, from)->values;
    struct crossing c = crossing_of(&w->in.stages[from->stage], from->purpose);
    bool sends = tt_purpose_row(from->purpose)->op == TT_SEND;
    /* two transfers that are under way between the same ranks differ in microbatch, boundary or direction */
    int tag = 2 * (from->microbatch % MICROBATCHES * BOUNDARIES + c.number % BOUNDARIES) + c.grads;
    int64_t bytes = 0;

    for (int i = 0; i < c.n; i++) {
        if (carried(&c, i) == TT_NONE)
            continue;
        bytes += tt_value_bytes(&values[carried(&c, i)]);
        if (sends)
            tt_lower_await(w, tt_lower_input(w, from, carried(&c, i)), false);
    }
    begin_transfer(w, *from, c.peer->pp, w->in.param_dtype, bytes, TT_TAG_BOUNDARY - TT_TAG_COLLECTIVE + tag);
    for (int i = 0; i < c.n; i++) {
        int buffer;

        if (carried(&c, i) == TT_NONE)
            continue;
        buffer = sends ? tt_lower_input(w, from, carried(&c, i)) : tt_lower_value(w, from, carried(&c, i));
        if (buffer == TT_NONE)
            return tt_fail(TT_EINTERNAL, "the schedule sends '%s' before it is there", values[carried(&c, i)].name);
        tt_lower_operand(w, buffer);
    }
    return 0;
}

/* Adds the TT_BEGIN of a transfer of a unit's shared gradient. Returns its index. */
static int begin_tied(struct tt_walk *w, const struct tt_instr *from, enum tt_purpose purpose, int buffer)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];
    bool is_last = unit->grads[unit->shared_grad].part == 1;
    /* a receiver may answer with the tag of the message that it received */
    int from_last = (purpose == TT_SEND_TIED) == is_last;
    struct tt_instr begin = *from;

    begin.kind = TT_BEGIN;
    begin.purpose = purpose;
    begin_transfer(w, begin, unit->shared_pp, tt_dtype_sums(w->in.param_dtype), w->program->buffers[buffer].bytes,
                   TT_TAG_TIED + from_last - TT_TAG_COLLECTIVE);
    tt_lower_operand(w, buffer);
    return w->program->n_instrs - 1;
}

int tt_lower_exchange_tied(struct tt_walk *w, const struct tt_instr *from, int own)
{
    int other = tt_lower_buffer(w, TT_MEMORY_STAGING, w->program->buffers[own].bytes);
    int sending = begin_tied(w, from, TT_SEND_TIED, own), receiving = begin_tied(w, from, TT_RECEIVE_TIED, other);

    add_wait(w, w->program->instrs[sending], sending);
    add_wait(w, w->program->instrs[receiving], receiving);
    return other;
}

#define OF_STAGES(text, operation) \
    .name = (text), .wait_name = "wait " text, .op = (operation), .among = TT_AMONG_STAGES, .rare = true
#define OF_BOUNDARY(text, operation) \
    OF_STAGES(text, operation), .of_microbatch = true, .subject = tt_transfer_text, .lower = lower_transfer

const struct tt_purpose_row tt_purpose_send_values = {OF_BOUNDARY("send", TT_SEND)};

const struct tt_purpose_row tt_purpose_receive_values = {OF_BOUNDARY("receive", TT_RECEIVE)};

const struct tt_purpose_row tt_purpose_send_grads = {OF_BOUNDARY("send gradient", TT_SEND)};

const struct tt_purpose_row tt_purpose_receive_grads = {OF_BOUNDARY("receive gradient", TT_RECEIVE)};

const struct tt_purpose_row tt_purpose_send_tied = {OF_STAGES("send tied", TT_SEND), .carries = TT_CARRIES_SUMS};

const struct tt_purpose_row tt_purpose_receive_tied = {OF_STAGES("receive tied", TT_RECEIVE),
                                                       .carries = TT_CARRIES_SUMS};

/*
 * --- inside a layer ---
 *
 * A node whose op exchanges rows with the ranks that share the layer (core/ops/exchange.c) does not run. Lowering
 * begins a collective in its place, and waits for it before the first instruction that reads the result or overwrites
 * the data that is sent. Instructions in between overlap the collective.
 *
 * The operands are the node's inputs, its output, and staging. A sum overwrites this rank's term, so no node may read
 * the term later.
 */

static const struct kind {
    enum tt_purpose purpose;
    bool in_blocks; /* x contains a block of `bytes` bytes for each rank */
    bool uses_up;   /* x is undefined afterwards */
} kinds[] = {
    [TT_EXCHANGE_GATHER] = {TT_GATHER_VALUES, false, false},
    [TT_EXCHANGE_SCATTER] = {TT_SUM_VALUES, true, true},
    [TT_EXCHANGE_SUM] = {TT_SUM_ALL_VALUES, false, true},
    [TT_EXCHANGE_BLOCKS] = {TT_SWAP_VALUES, true, false},
};

static enum tt_group_id group_of(enum tt_axis axis)
{
    return axis == TT_AXIS_CP ? TT_GROUP_CP : TT_GROUP_TP;
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

static int check(const struct tt_walk *w, const struct tt_instr *from, const struct kind *kind)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];
    const struct tt_axis_peers *peers = &node->attr.peers;
    struct tt_place place = w->in.layout->groups[group_of(peers->axis)];
    const char *name = graph->values[node->out[0]].name;

    if (peers->n < 2 || peers->n != place.n || peers->index != place.index)
        return tt_fail(TT_EINTERNAL, "'%s' is exchanged as rank %d of %d, but this is rank %d of %d in %s", name,
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
    /* Exchanges take the tags in turn. All ranks begin the exchanges in the same order, but may wait for them at
     * different points, since ranks that share a sequence plan independently. */
    begin.collective.tag =
        TT_TAG_EXCHANGE - TT_TAG_COLLECTIVE + w->n_exchanges[node->attr.peers.axis]++ % TT_TAG_EXCHANGES;
    tt_lower_begin(w, &begin);
    TT_TRY(tt_lower_inputs(w, from));
    tt_lower_operand(w, tt_lower_output(w, from, 0));
    staging = w->in.staging(&begin.collective);
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
    TT_PUSH(w->exchanging, w->n_exchanging, w->cap_exchanging) = w->program->n_instrs - 1;
out:
    return rc;
}

/* Adds the wait for exchange number k of those under way. */
static void await(struct tt_walk *w, int k)
{
    struct tt_instr wait = w->program->instrs[w->exchanging[k]];

    wait.node = TT_NONE;
    add_wait(w, wait, w->exchanging[k]);
    w->n_exchanging--;
    for (int i = k; i < w->n_exchanging; i++)
        w->exchanging[i] = w->exchanging[i + 1];
}

/* Whether an exchange writes a buffer or, if `reads` is set, reads it. */
static bool uses(const struct tt_program *p, int begin, int buffer, bool reads)
{
    const struct tt_instr *instr = &p->instrs[begin];
    int n_in = tt_instr_node(p, instr)->n_in;

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
    const struct tt_bucket of = tt_instr_units(p->buckets, from);

    for (int k = 0; k < w->n_exchanging;) {
        const struct tt_instr *begin = &p->instrs[w->exchanging[k]];
        int out = p->operands[begin->operands + tt_instr_node(p, begin)->n_in], unit = p->buffers[out].unit;
        bool wanted = false;

        for (int u = 0; u < of.n; u++)
            wanted = wanted || (unit == of.units[u] && (w->carries || begin->microbatch == from->microbatch));
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

bool tt_exchange_rounds(const struct tt_program *program, const struct tt_instr *begin)
{
    const struct tt_value *out = &tt_instr_graph(program, begin)->values[tt_instr_node(program, begin)->out[0]];

    return out->dtype != begin->collective.dtype;
}

static void round_sum(struct tt_executor *ex, const struct tt_instr *begin)
{
    int64_t bytes = begin->collective.bytes;
    void *const *address = tt_running_address(ex, begin);

    if (tt_exchange_rounds(ex->program, begin))
        tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_ROUND,
                                                  .in = (char *)address[0] +
                                                        tt_instr_node(ex->program, begin)->attr.peers.index * bytes,
                                                  .out = {address[1]},
                                                  .n = bytes / (int64_t)sizeof(float)});
}

/* x holds the sum; y may have acc's memory. */
static void add_sum(struct tt_executor *ex, const struct tt_instr *begin)
{
    void *const *address = tt_running_address(ex, begin);

    tt_running_step(ex,
                    (struct tt_step_call){.op = TT_STEP_ADD,
                                          .in = address[0],
                                          .out = {address[2], address[1]},
                                          .n = begin->collective.bytes / tt_dtype_sum_bytes(ex->program->param_dtype)});
}

/* " of layers.0.attention_norm" */
static void text(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out)
{
    const struct tt_instr *begin = instr->begin == TT_NONE ? instr : &program->instrs[instr->begin];

    tt_text_add(out, " of %s", tt_instr_graph(program, begin)->values[tt_instr_node(program, begin)->in[0]].name);
}

#define OF_PEERS(text_of_row, operation)                                                                               \
    .name = (text_of_row), .wait_name = "wait " text_of_row, .op = (operation), .among = TT_AMONG_PEERS, .rare = true, \
    .of_microbatch = true, .subject = text

const struct tt_purpose_row tt_purpose_gather_values = {OF_PEERS("gather rows", TT_ALL_GATHER)};

const struct tt_purpose_row tt_purpose_sum_values = {OF_PEERS("sum rows", TT_REDUCE_SCATTER), .after = round_sum};

const struct tt_purpose_row tt_purpose_sum_all_values = {OF_PEERS("sum", TT_ALL_SUM), .after = add_sum};

const struct tt_purpose_row tt_purpose_swap_values = {OF_PEERS("swap blocks", TT_ALL_TO_ALL)};
