/* SPDX-License-Identifier: MIT
 *
 * The instructions that begin a collective and wait for it. What differs between purposes is in their rows.
 */
#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

/* --- what is exchanged --- */

int64_t tt_purpose_elements(const struct tt_unit *unit, enum tt_purpose purpose)
{
    switch (tt_purpose_row(purpose)->carries) {
    case TT_CARRIES_PARAMS:
        return unit->shard_elements;
    case TT_CARRIES_UPDATES:
        return unit->trained_elements - unit->adam_elements;
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
        return unit->n_trained - unit->n_adam;
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
        return unit->params[unit->n_adam + k].chunk;
    default:
        return unit->grads[k].chunk;
    }
}

struct tt_collective_desc tt_lowering_collective(const struct tt_lowering *lowering, enum tt_purpose purpose, int unit,
                                                 int64_t elements)
{
    const struct tt_purpose_row *row = tt_purpose_row(purpose);
    const enum tt_dtype carried[] = {[TT_CARRIES_PARAMS] = lowering->param_dtype,
                                     [TT_CARRIES_GRADS] = lowering->block > 1 ? TT_F32 : lowering->reduce_dtype,
                                     [TT_CARRIES_SUMS] = TT_F32,
                                     [TT_CARRIES_UPDATES] = TT_F32};
    const struct tt_unit *of = &lowering->layout->units[unit];
    struct tt_collective_desc desc = {.op = row->op, .dtype = carried[row->carries]};

    desc.group = row->among == TT_AMONG_REPLICAS ? of->replicate_group : of->shard_group;
    if (row->carries == TT_CARRIES_GRADS && of->shard_group == TT_GROUP_EFSDP)
        desc.dtype =
            TT_F32; /* gradients of several ranks' rows, rounded before they were added: a sum is not rounded */
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

/* Whether there is anything to do. What is kept in another type than it travels in is rounded even if it does not
 * travel. */
static bool happens(const struct tt_lowering *lowering, enum tt_purpose purpose, const struct tt_collective_desc *desc)
{
    bool of_params = tt_purpose_row(purpose)->carries == TT_CARRIES_PARAMS;

    return tt_collective_travels(desc) || desc->dtype != (of_params ? lowering->shard_dtype : TT_F32);
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

/* The lowest tag that no collective under way has. */
static int free_tag(struct tt_walk *w)
{
    int tag = 0;

    while (tag < w->n_tags && w->tag_taken[tag])
        tag++;
    if (tag == w->n_tags)
        TT_PUSH(w->tag_taken, w->n_tags, w->cap_tags) = true;
    w->tag_taken[tag] = true;
    return tag;
}

void tt_lower_collective(struct tt_walk *w, const struct tt_instr *from, enum tt_purpose purpose)
{
    struct tt_program *p = w->program;
    struct tt_instr begin = *from;
    int n;
    const int *units = tt_instr_units(p->buckets, from, &n);

    begin.purpose = purpose;
    begin.collective = tt_lower_describe(w, purpose, units, n);
    if (tt_collective_travels(&begin.collective))
        begin.collective.tag = free_tag(w);
    tt_lower_begin(w, &begin);
    for (int i = 0; i < n; i++)
        w->begun[from->purpose][units[i]] = p->n_instrs - 1;
}

/* A transfer between stages has a tag of its own, since both ends must know it. */
static int begin_transfer(struct tt_walk *w, const struct tt_instr *from)
{
    int rc = tt_purpose_row(from->purpose)->lower(w, from);

    *tt_lower_transfer_begun(w, from) = w->program->n_instrs - 1;
    return rc;
}

static int lower_begin(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_purpose_row *row = tt_purpose_row(from->purpose);
    struct tt_collective_desc desc;

    if (!row->lower)
        return tt_fail(TT_EINTERNAL, "a schedule cannot hold '%s'", row->name);
    if (row->among == TT_AMONG_STAGES)
        return begin_transfer(w, from);
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
    /* earlier work makes what is sent and may use the memory that receives, so all of it must be complete */
    TT_TRY(tt_device_synchronize(ex->stream));
    rc = ex->exchange.begin(ex->exchange.ctx, i);
out:
    return rc;
}

static void cost_of_begin(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    const struct tt_purpose_row *row = tt_purpose_row(instr->purpose);

    if (row->cost)
        row->cost(program, instr, cost);
}

const struct tt_instr_row tt_instr_begin = {
    .name = "begin",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_EXCHANGE,
    .of_units = true,
    .begins = true,
    .cost = cost_of_begin,
    .lower = lower_begin,
    .run = run_begin,
};

/* --- TT_WAIT --- */

/* A wait has the operands of its TT_BEGIN, so that they live until then. */
static void await(struct tt_walk *w, const struct tt_instr *from, int begin)
{
    struct tt_program *p = w->program;
    int n = p->instrs[begin].n_operands, n_units;
    const int *units = tt_instr_units(p->buckets, from, &n_units);

    tt_lower_begin(w, from);
    p->instrs[p->n_instrs - 1].begin = begin;
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, p->operands[p->instrs[begin].operands + i]);
    if (n_units > 0 && tt_collective_travels(&p->instrs[begin].collective))
        w->tag_taken[p->instrs[begin].collective.tag] = false;
    for (int i = 0; i < n_units; i++)
        w->begun[from->purpose][units[i]] = TT_NONE;
}

static int await_transfer(struct tt_walk *w, const struct tt_instr *from)
{
    int *begin = tt_lower_transfer_begun(w, from);

    if (*begin == TT_NONE)
        return tt_fail(TT_EINTERNAL, "the schedule has '%s' of microbatch %d, which it has not begun",
                       tt_purpose_row(from->purpose)->wait_name, from->microbatch);
    await(w, from, *begin);
    *begin = TT_NONE;
    return 0;
}

static int lower_wait(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_purpose_row *row = tt_purpose_row(from->purpose);
    struct tt_collective_desc desc;
    int begin;

    if (row->among == TT_AMONG_STAGES)
        return await_transfer(w, from);
    if (row->carries == TT_CARRIES_GRADS)
        tt_lower_await_grads(w, from);
    desc = tt_lower_describe(w, from->purpose, &from->unit, 1);
    begin = w->begun[from->purpose][from->unit];
    if (begin != TT_NONE)
        await(w, from, begin);
    else if (tt_collective_travels(&desc))
        return tt_fail(TT_EINTERNAL, "the schedule has '%s' of %s, which it has not begun", row->wait_name,
                       w->in.layout->units[from->unit].name);
    return row->arrived ? row->arrived(w, from, begin) : 0;
}

int tt_running_wait(struct tt_executor *ex, int i)
{
    const struct tt_instr *begin = &ex->program->instrs[i];
    const struct tt_purpose_row *row = tt_purpose_row(begin->purpose);
    int rc = ex->exchange.wait ? ex->exchange.wait(ex->exchange.ctx, i) : 0;

    if (rc == 0 && row->after)
        row->after(ex, begin);
    if (rc == 0 && ex->bad && row->among == TT_AMONG_PEERS)
        rc = tt_running_examine_exchange(ex, begin);
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
