/* SPDX-License-Identifier: MIT
 *
 * Values and gradients that cross the boundary between two stages on different ranks of a pipeline. A transfer carries
 * everything that crosses in one microbatch and one direction. Its operands are one buffer for each value.
 */
#include "core/comm/tags.h"
#include "core/program/instr/instr.h"
#include "core/program/lower/lowering.h"
#include "core/program/order.h"

/* The boundary of a stage that a transfer is about. */
struct crossing {
    const struct tt_boundary *items;
    int n;
    bool grads;
    const struct tt_stage_neighbour *peer;
    int number; /* of the boundary in the pipeline: that of the stage before it */
};

static struct crossing crossing_of(const struct tt_stage *stage, enum tt_purpose purpose)
{
    bool out = purpose == TT_SEND_VALUES || purpose == TT_RECEIVE_GRADS;

    return (struct crossing){out ? stage->out : stage->in, out ? stage->n_out : stage->n_in,
                             purpose == TT_SEND_GRADS || purpose == TT_RECEIVE_GRADS,
                             out ? &stage->after : &stage->before, out ? stage->number : stage->number - 1};
}

/* The value of a boundary that the transfer carries, or TT_NONE. */
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

/* Two transfers that are under way at once between two ranks differ in one of the three. */
static int tag_of(const struct crossing *c, int microbatch)
{
    enum { MICROBATCHES = TT_PIPELINE_OVERTAKING, BOUNDARIES = 128 }; /* so that all tags are below TT_TAG_TIED */

    return TT_TAG_BOUNDARY - TT_TAG_COLLECTIVE + 2 * (microbatch % MICROBATCHES * BOUNDARIES + c->number % BOUNDARIES) +
           c->grads;
}

static void lower_transfer(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_stage *stage = &w->in.stages[from->stage];
    struct crossing c = crossing_of(stage, from->purpose);
    struct tt_instr begin = *from;

    begin.collective = (struct tt_collective_desc){.op = tt_purpose_row(from->purpose)->op,
                                                   .group = TT_GROUP_PP,
                                                   .ranks = 2,
                                                   .peer = c.peer->pp,
                                                   .dtype = w->in.param_dtype,
                                                   .tag = tag_of(&c, from->microbatch)};
    for (int i = 0; i < c.n; i++)
        if (carried(&c, i) != TT_NONE)
            begin.collective.bytes += tt_value_bytes(&stage->graph->values[carried(&c, i)]);
    begin.collective.shard_bytes = begin.collective.bytes;
    tt_lower_begin(w, &begin);
}

static int lower_send(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_stage *stage = &w->in.stages[from->stage];
    struct crossing c = crossing_of(stage, from->purpose);

    for (int i = 0; i < c.n; i++)
        if (carried(&c, i) != TT_NONE)
            tt_lower_await(w, tt_lower_input(w, from, carried(&c, i)), false);
    lower_transfer(w, from);
    for (int i = 0; i < c.n; i++) {
        int buffer;

        if (carried(&c, i) == TT_NONE)
            continue;
        buffer = tt_lower_input(w, from, carried(&c, i));
        if (buffer == TT_NONE)
            return tt_fail(TT_EINTERNAL, "the schedule sends '%s' before it is there",
                           stage->graph->values[carried(&c, i)].name);
        tt_lower_operand(w, buffer);
    }
    return 0;
}

static int lower_receive(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_stage *stage = &w->in.stages[from->stage];
    struct crossing c = crossing_of(stage, from->purpose);

    lower_transfer(w, from);
    for (int i = 0; i < c.n; i++)
        if (carried(&c, i) != TT_NONE)
            tt_lower_operand(w, tt_lower_value(w, from, carried(&c, i)));
    return 0;
}

/* --- runs --- */

void tt_lower_mark_runs(struct tt_walk *w)
{
    int run = 0;

    for (int i = 0; w->in.run_microbatches && i < w->program->n_instrs; i++) {
        struct tt_instr *instr = &w->program->instrs[i];
        const struct tt_instr_row *row = tt_instr_row(instr);
        bool of_microbatch =
            row->begins || row->waits ? tt_purpose_row(instr->purpose)->of_microbatch : row->of_microbatch;

        instr->starts_run = of_microbatch && instr->microbatch / w->in.run_microbatches > run;
        run += instr->starts_run;
    }
}

/* --- tied weights --- */

/* Adds the TT_BEGIN of a transfer of a unit's shared gradient. Returns its index. */
static int begin_tied(struct tt_walk *w, const struct tt_instr *from, enum tt_purpose purpose, int buffer)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];
    bool is_last = unit->grads[unit->shared_grad].part == 1;
    int from_last = (purpose == TT_SEND_TIED) == is_last; /* a receiver may answer with the tag of what it gets */
    struct tt_instr begin = *from;

    begin.kind = TT_BEGIN;
    begin.purpose = purpose;
    begin.collective = (struct tt_collective_desc){.op = tt_purpose_row(purpose)->op,
                                                   .group = TT_GROUP_PP,
                                                   .ranks = 2,
                                                   .peer = unit->shared_pp,
                                                   .dtype = TT_F32,
                                                   .bytes = w->program->buffers[buffer].bytes,
                                                   .shard_bytes = w->program->buffers[buffer].bytes,
                                                   .tag = TT_TAG_TIED + from_last - TT_TAG_COLLECTIVE};
    tt_lower_begin(w, &begin);
    tt_lower_operand(w, buffer);
    return w->program->n_instrs - 1;
}

static void wait_tied(struct tt_walk *w, int begin, int buffer)
{
    struct tt_instr wait = w->program->instrs[begin];

    wait.kind = TT_WAIT;
    wait.begin = begin;
    wait.collective = (struct tt_collective_desc){0};
    tt_lower_begin(w, &wait);
    tt_lower_operand(w, buffer);
}

int tt_lower_exchange_tied(struct tt_walk *w, const struct tt_instr *from, int own)
{
    int other = tt_lower_buffer(w, TT_MEMORY_STAGING, w->program->buffers[own].bytes);
    int sending = begin_tied(w, from, TT_SEND_TIED, own), receiving = begin_tied(w, from, TT_RECEIVE_TIED, other);

    wait_tied(w, sending, own);
    wait_tied(w, receiving, other);
    return other;
}

const struct tt_purpose_row tt_purpose_send_tied = {
    .name = "send tied",
    .wait_name = "wait send tied",
    .op = TT_SEND,
    .among = TT_AMONG_STAGES,
    .carries = TT_CARRIES_SUMS,
    .rare = true,
};

const struct tt_purpose_row tt_purpose_receive_tied = {
    .name = "receive tied",
    .wait_name = "wait receive tied",
    .op = TT_RECEIVE,
    .among = TT_AMONG_STAGES,
    .carries = TT_CARRIES_SUMS,
    .rare = true,
};

/* --- the rows of boundaries --- */

const struct tt_purpose_row tt_purpose_send_values = {
    .name = "send",
    .wait_name = "wait send",
    .op = TT_SEND,
    .among = TT_AMONG_STAGES,
    .of_microbatch = true,
    .rare = true,
    .subject = tt_transfer_text,
    .lower = lower_send,
};

const struct tt_purpose_row tt_purpose_receive_values = {
    .name = "receive",
    .wait_name = "wait receive",
    .op = TT_RECEIVE,
    .among = TT_AMONG_STAGES,
    .of_microbatch = true,
    .rare = true,
    .subject = tt_transfer_text,
    .lower = lower_receive,
};

const struct tt_purpose_row tt_purpose_send_grads = {
    .name = "send gradient",
    .wait_name = "wait send gradient",
    .op = TT_SEND,
    .among = TT_AMONG_STAGES,
    .of_microbatch = true,
    .rare = true,
    .subject = tt_transfer_text,
    .lower = lower_send,
};

const struct tt_purpose_row tt_purpose_receive_grads = {
    .name = "receive gradient",
    .wait_name = "wait receive gradient",
    .op = TT_RECEIVE,
    .among = TT_AMONG_STAGES,
    .of_microbatch = true,
    .rare = true,
    .subject = tt_transfer_text,
    .lower = lower_receive,
};
