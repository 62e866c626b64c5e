/* SPDX-License-Identifier: MIT
 *
 * Lowering: from a schedule of nodes and collectives to instructions on buffers with lifetimes.
 *
 * Lowering is one walk over the schedule. A value gets its buffer where it is produced. An output takes the memory of
 * an input if the op's row allows it and nothing reads that input later. Reading a buffer extends its life to the
 * reader. The buffers of a collective live until its wait. Gradients of parameters are identified by microbatch and
 * parameter, not by value, since all contributions accumulate in one place. If the graph carries gradients from one
 * microbatch to the next, all microbatches share that place, and the sum after the last one is the only leaf of the
 * tree. If blocks of microbatches are added before they are reduced, the sum of a block has the place of one of them.
 *
 * lower_stages.c joins the stages, lower_buffers.c makes the buffers, and the row of each instruction lowers it.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "core/program/lower/lowering.h"
#include "core/program/state.h"

/* --- before and after the walk --- */

static int *filled(size_t n)
{
    int *array = tt_calloc(n + 1, sizeof *array);

    for (size_t i = 0; i < n; i++)
        array[i] = TT_NONE;
    return array;
}

/* Finds the last reader of each value, in the order of the schedule. A weight part may read long after the rest of
 * backward. */
static void find_last_readers(struct tt_walk *w, const struct tt_schedule *schedule)
{
    w->last_reader = filled((size_t)w->in.microbatches * (size_t)w->n_values);
    for (int i = 0; i < schedule->n; i++) {
        const struct tt_instr *instr = &schedule->instrs[i];
        const struct tt_node *node = instr->node == TT_NONE ? NULL : &tt_lower_graph(w, instr)->nodes[instr->node];

        if (instr->unit == TT_NONE && (tt_instr_row(instr)->begins || tt_instr_row(instr)->waits))
            tt_lower_note_crossing(w, instr, i);
        for (int k = 0; node && k < node->n_in; k++)
            if (node->in[k] != TT_NONE)
                w->last_reader[tt_lower_slot(w, instr->microbatch, instr->stage, node->in[k])] = i;
    }
    for (int s = 0; s < w->in.n_stages; s++) { /* no node may take the memory of the losses */
        int loss = w->in.stages[s].graph->token_loss;

        for (int mb = 0; loss != TT_NONE && mb < w->in.microbatches; mb++)
            w->last_reader[tt_lower_slot(w, mb, s, loss)] = schedule->n;
    }
}

static void prepare(struct tt_walk *w, const struct tt_schedule *schedule)
{
    const struct tt_layout *layout = w->in.layout;
    size_t n_units = (size_t)layout->n_units, n_params = (size_t)layout->n_params;
    size_t n_owned = (size_t)w->in.microbatches * n_units;

    find_last_readers(w, schedule);
    w->value_buffer = filled((size_t)w->in.microbatches * (size_t)w->n_values);
    w->grad_buffer = tt_calloc(n_owned + 1, sizeof *w->grad_buffer);
    for (size_t i = 0; i < n_owned; i++)
        w->grad_buffer[i] = filled((size_t)layout->units[i % n_units].n_grads);
    w->unit_grad = filled(n_owned);
    w->param_shard = filled(n_units);
    w->unsharded = filled(n_params);
    w->update = filled(n_params);
    w->kept = filled(n_units);
    for (int k = 0; k < TT_PURPOSES; k++)
        w->begun[k] = filled(n_units);
    w->transfer_begun = filled((size_t)w->in.microbatches * (size_t)w->in.n_stages * TT_PURPOSES);
    w->block = w->in.block > 1 ? w->in.block : 1;
    w->n_leaves = w->carries ? 1 : w->in.microbatches / w->block;
    w->block_sums = filled(n_owned / (size_t)w->block * (size_t)tt_tree_nodes(w->block));
    w->partial = filled(n_units * (size_t)tt_tree_nodes(w->n_leaves));
}

static void release(struct tt_walk *w)
{
    tt_free(w->first_value);
    tt_free(w->same_as);
    tt_free(w->last_reader);
    tt_free(w->value_buffer);
    for (int64_t i = 0; w->grad_buffer && i < (int64_t)w->in.microbatches * w->in.layout->n_units; i++)
        tt_free(w->grad_buffer[i]);
    tt_free(w->grad_buffer);
    tt_free(w->unit_grad);
    tt_free(w->param_shard);
    tt_free(w->unsharded);
    tt_free(w->update);
    tt_free(w->kept);
    for (int k = 0; k < TT_PURPOSES; k++)
        tt_free(w->begun[k]);
    tt_free(w->transfer_begun);
    tt_free(w->tag_taken);
    tt_free(w->exchanging);
    tt_free(w->block_sums);
    tt_free(w->partial);
}

/* Adds the buffer of a value that no node makes, unless an earlier stage has the same value. mb: its microbatch, or
 * TT_NONE. */
static int given_buffer(struct tt_walk *w, enum tt_memory_kind kind, int stage, int value, int mb)
{
    int *buffer = &w->value_buffer[tt_lower_slot(w, mb == TT_NONE ? 0 : mb, stage, value)];

    if (*buffer == TT_NONE) {
        *buffer = tt_lower_buffer(w, kind, tt_value_bytes(&w->in.stages[stage].graph->values[value]));
        w->program->buffers[*buffer].value = value;
        w->program->buffers[*buffer].stage = stage;
        w->program->buffers[*buffer].microbatch = mb;
    }
    return *buffer;
}

static void add_given_values(struct tt_walk *w, int stage)
{
    const struct tt_graph *graph = w->in.stages[stage].graph;

    for (int v = 0; v < graph->n_values; v++) {
        const struct tt_value *value = &graph->values[v];

        if (value->kind == TT_VALUE_CONST)
            (void)given_buffer(w, TT_MEMORY_CONST, stage, v, TT_NONE);
        if (value->kind == TT_VALUE_CACHE)
            (void)given_buffer(w, TT_MEMORY_CACHE, stage, v, TT_NONE);
        for (int mb = 0; value->kind == TT_VALUE_INPUT && mb < w->in.microbatches; mb++) {
            int buffer = given_buffer(w, TT_MEMORY_INPUT, stage, v, mb);

            if (v == graph->tokens)
                w->program->tokens[mb] = buffer;
            if (v == graph->labels)
                w->program->labels[mb] = buffer;
            if (v == graph->positions)
                w->program->positions[mb] = buffer;
        }
    }
}

/* Buffers that exist before the first instruction: parameter shards, constants, inputs. */
static void add_given_buffers(struct tt_walk *w)
{
    struct tt_program *p = w->program;

    for (int u = 0; u < w->in.layout->n_units; u++) {
        const struct tt_unit *unit = &w->in.layout->units[u];
        enum tt_dtype dtype = tt_state_unit_dtype(TT_STATE_PARAM, unit, w->in.shard_dtype);

        w->param_shard[u] = tt_lower_buffer(w, TT_MEMORY_PARAM, unit->shard_elements * (int64_t)tt_dtype_size(dtype));
        p->buffers[w->param_shard[u]].unit = u;
    }
    for (int s = 0; s < w->in.n_stages; s++)
        add_given_values(w, s);
}

/* The logits live to the end, since the caller reads them after the run. */
static void keep_logits(struct tt_walk *w)
{
    struct tt_program *p = w->program;

    p->logits = TT_NONE;
    for (int s = 0; s < w->in.n_stages; s++)
        if (w->in.stages[s].graph->logits != TT_NONE)
            p->logits = w->value_buffer[tt_lower_slot(w, 0, s, w->in.stages[s].graph->logits)];
    if (p->logits != TT_NONE)
        p->buffers[p->buffers[p->logits].root].last = p->n_instrs - 1;
}

static bool in_step_region(enum tt_memory_kind kind)
{
    return kind != TT_MEMORY_PARAM && kind != TT_MEMORY_CONST && kind != TT_MEMORY_CACHE;
}

/* Puts a buffer at the end of a region that is kept between runs. */
static void place_at_end(struct tt_buffer *buffer, int64_t *region_bytes)
{
    buffer->offset = *region_bytes;
    *region_bytes += tt_arena_bytes(buffer->bytes);
}

static void place_buffers(struct tt_program *p)
{
    struct tt_buffer *step = tt_calloc((size_t)p->n_buffers + 1, sizeof *step);
    int *from = tt_calloc((size_t)p->n_buffers + 1, sizeof *from);
    int n = 0;

    for (int b = 0; b < p->n_buffers; b++) {
        struct tt_buffer *buffer = &p->buffers[b];

        if (buffer->root != b)
            continue;
        if (buffer->kind == TT_MEMORY_CONST) {
            place_at_end(buffer, &p->const_bytes);
        } else if (buffer->kind == TT_MEMORY_CACHE) {
            place_at_end(buffer, &p->cache_bytes);
        } else if (in_step_region(buffer->kind)) {
            from[n] = b;
            step[n] = *buffer;
            step[n].root = n;
            n++;
        }
    }
    p->step_bytes = tt_memory_plan(step, n, p->n_instrs, &p->live_bytes, &p->peak_instr);
    for (int i = 0; i < n; i++)
        p->buffers[from[i]].offset = step[i].offset;
    tt_free(step);
    tt_free(from);
}

static void copy_bucket(struct tt_program *p, const struct tt_bucket *from)
{
    struct tt_bucket bucket = {tt_calloc((size_t)from->n, sizeof *from->units), from->n};

    memcpy(bucket.units, from->units, (size_t)from->n * sizeof *from->units);
    TT_PUSH(p->buckets, p->n_buckets, p->cap_buckets) = bucket;
}

static struct tt_schedule *copy_schedule(const struct tt_schedule *from)
{
    struct tt_schedule *copy = tt_calloc(1, sizeof *copy);

    copy->n = copy->cap = from->n;
    copy->instrs = tt_calloc((size_t)from->n + 1, sizeof *copy->instrs);
    if (from->n)
        memcpy(copy->instrs, from->instrs, (size_t)from->n * sizeof *copy->instrs);
    for (int b = 0; b < from->n_buckets; b++)
        (void)tt_schedule_bucket(copy, from->buckets[b].units, from->buckets[b].n);
    return copy;
}

static int lower_instr(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_instr_row *row = tt_instr_row(from);

    if (row->decides)
        tt_lower_await_all(w);
    return row->lower ? row->lower(w, from) : tt_fail(TT_EINTERNAL, "a schedule cannot hold '%s'", row->name);
}

int tt_program_new(const struct tt_lowering *lowering, const struct tt_schedule *schedule,
                   struct tt_program **ret_program)
{
    struct tt_program *p = tt_calloc(1, sizeof *p);
    struct tt_walk w = {.in = *lowering, .program = p};
    int rc = 0;

    p->stages = lowering->stages;
    p->n_stages = lowering->n_stages;
    for (int s = 0; s < p->n_stages; s++)
        p->is_piped = p->is_piped || p->stages[s].before.apart || p->stages[s].after.apart;
    p->frees_early = lowering->free_early;
    if (lowering->keeps_schedule)
        p->schedule = copy_schedule(schedule);
    p->layout = lowering->layout;
    p->microbatches = lowering->microbatches;
    p->threads = lowering->threads;
    p->muon_steps = lowering->muon_steps;
    p->shard_dtype = lowering->shard_dtype;
    p->param_dtype = lowering->param_dtype;
    p->reduce_dtype = lowering->reduce_dtype;
    p->tokens = filled((size_t)lowering->microbatches);
    p->labels = filled((size_t)lowering->microbatches);
    p->positions = filled((size_t)lowering->microbatches);
    for (int b = 0; b < schedule->n_buckets; b++)
        copy_bucket(p, &schedule->buckets[b]);
    TT_TRY(tt_lower_join_stages(&w));
    prepare(&w, schedule);
    add_given_buffers(&w);
    for (; w.at < schedule->n; w.at++)
        TT_TRY(lower_instr(&w, &schedule->instrs[w.at]));
    tt_lower_await_all(&w);
    tt_lower_averages(&w);
    tt_lower_mark_runs(&w);
    keep_logits(&w);
    place_buffers(p);
    *ret_program = p;
    p = NULL;
out:
    release(&w);
    tt_program_free(p);
    return rc;
}
