/* SPDX-License-Identifier: MIT
 *
 * Lowering: from a schedule of nodes and collectives to instructions on buffers with lifetimes.
 *
 * Lowering walks over the schedule once. A value gets its buffer where it is produced. An output takes the memory of an
 * input if the op's row allows it and nothing reads that input later. Reading a buffer extends its life to the reader.
 * The buffers of a collective live until its wait. A gradient of a parameter is identified by microbatch and parameter,
 * not by value, since all contributions accumulate in one buffer. If the graph carries gradients from one microbatch to
 * the next, all microbatches share that buffer, and the sum after the last microbatch is the only leaf of the tree. If
 * the gradients of a block of microbatches are added before they are reduced, their sum is in the buffer of one of
 * these microbatches.
 *
 * Each instruction's row lowers it; the functions here join the stages and make the buffers.
 */
#include "core/base/mem.h"
#include "core/ops/op.h"
#include "core/program/instr/instr.h"
#include "core/program/internal.h"
#include "core/program/state.h"

/* --- stages --- */

/*
 * Several stages become one program. A value that leaves one stage and enters the next has one buffer, which lives
 * until the last reader in either stage. The same holds for its gradient, which goes the other way. Inputs and
 * constants that several stages read share buffers too.
 */

/* Whether stage s of the program continues in the next one of this rank. */
static bool continues(const struct tt_lowering *in, int s)
{
    return s >= 0 && s + 1 < in->n_stages && in->stages[s + 1].number == in->stages[s].number + 1;
}

static int check_neighbours(const struct tt_lowering *in)
{
    for (int s = 0; s < in->n_stages; s++) {
        const struct tt_stage *stage = &in->stages[s];
        int enter = continues(in, s - 1) ? in->stages[s - 1].n_out : 0;
        int leave = continues(in, s) ? in->stages[s + 1].n_in : 0;

        if ((!stage->before.apart && stage->n_in != enter) || (!stage->after.apart && stage->n_out != leave))
            return tt_fail(TT_EINTERNAL, "stage %d exchanges values with a stage that no rank has", stage->number);
    }
    return 0;
}

/* Checks that only one stage produces each gradient: a second stage would overwrite the buffer in which it
 * accumulates. */
static int check_gradients(const struct tt_lowering *in)
{
    int *made_in = tt_calloc(2 * (size_t)in->layout->n_params, sizeof *made_in); /* 2 * param + part -> 1 + stage */
    int rc = 0;

    for (int s = 0; s < in->n_stages; s++)
        for (int v = 0; v < in->stages[s].graph->n_values; v++) {
            const struct tt_value *value = &in->stages[s].graph->values[v];
            int *made;

            if (value->kind != TT_VALUE_PARAM_GRAD)
                continue;
            made = &made_in[2 * value->param + value->part];
            if (*made && *made != s + 1) {
                rc = tt_fail(TT_EINTERNAL, "stages %d and %d both make '%s'", *made - 1, s, value->name);
                goto out;
            }
            *made = s + 1;
        }
out:
    tt_free(made_in);
    return rc;
}

static void join(struct tt_walk *w, int stage, int value, int with_stage, int with)
{
    if (value != TT_NONE && with != TT_NONE)
        w->same_as[w->first_value[stage] + value] = w->same_as[w->first_value[with_stage] + with];
}

/* Numbers the values of all stages and finds equal values in different stages. TT_EINTERNAL for stages that cannot form
 * one program. */
static int join_stages(struct tt_walk *w)
{
    const struct tt_lowering *in = &w->in;
    const struct tt_stage *stages = in->stages;
    int rc = 0;

    TT_TRY(check_neighbours(in));
    TT_TRY(check_gradients(in));
    w->first_value = tt_calloc((size_t)in->n_stages, sizeof *w->first_value);
    for (int s = 0; s < in->n_stages; s++) {
        w->first_value[s] = w->n_values;
        w->n_values += stages[s].graph->n_values;
        w->carries = w->carries || stages[s].graph->carries;
    }
    w->same_as = tt_calloc((size_t)w->n_values + 1, sizeof *w->same_as);
    for (int v = 0; v < w->n_values; v++)
        w->same_as[v] = v;
    for (int s = 1; s < in->n_stages; s++)
        for (int first = s - 1; first >= 0; first--) { /* an input or a constant is shared from its first stage */
            const struct tt_graph *graph = stages[s].graph, *before = stages[first].graph;

            join(w, s, graph->tokens, first, before->tokens);
            join(w, s, graph->labels, first, before->labels);
            join(w, s, graph->positions, first, before->positions);
            join(w, s, graph->rope_table, first, before->rope_table);
            join(w, s, graph->local_rope_table, first, before->local_rope_table);
        }
    /* values from the first stage to the last, since a value may pass through a stage; gradients from the last to the
     * first */
    for (int s = 1; s < in->n_stages; s++)
        for (int i = 0; continues(in, s - 1) && i < stages[s].n_in; i++)
            join(w, s, stages[s].in[i].value, s - 1, stages[s - 1].out[i].value);
    for (int s = in->n_stages - 2; s >= 0; s--)
        for (int i = 0; continues(in, s) && i < stages[s].n_out; i++)
            join(w, s, stages[s].out[i].grad, s + 1, stages[s + 1].in[i].grad);
out:
    return rc;
}

/* --- the program as it grows --- */

int tt_lower_buffer(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes)
{
    struct tt_program *p = w->program;
    int id = p->n_buffers;

    TT_PUSH(p->buffers, p->n_buffers, p->cap_buffers) = (struct tt_buffer){.kind = kind,
                                                                           .bytes = bytes,
                                                                           .first = p->n_instrs,
                                                                           .last = p->n_instrs,
                                                                           .root = id,
                                                                           .value = TT_NONE,
                                                                           .microbatch = TT_NONE,
                                                                           .unit = TT_NONE};
    return id;
}

int tt_lower_part(struct tt_walk *w, int root, int64_t offset, int64_t bytes)
{
    int id = tt_lower_buffer(w, w->program->buffers[root].kind, bytes);

    w->program->buffers[id].root = root;
    w->program->buffers[id].offset = offset;
    return id;
}

void tt_lower_begin(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_program *p = w->program;
    struct tt_instr *instr = &TT_PUSH(p->instrs, p->n_instrs, p->cap_instrs);

    *instr = *from;
    instr->operands = p->n_operands;
    instr->n_operands = 0;
}

void tt_lower_operand(struct tt_walk *w, int buffer)
{
    struct tt_program *p = w->program;

    TT_PUSH(p->operands, p->n_operands, p->cap_operands) = buffer;
    p->instrs[p->n_instrs - 1].n_operands++;
    if (buffer != TT_NONE)
        p->buffers[p->buffers[buffer].root].last = p->n_instrs - 1;
}

int tt_lower_made(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes)
{
    int id = tt_lower_buffer(w, kind, bytes);

    w->program->buffers[id].first = w->program->buffers[id].last = w->program->n_instrs - 1;
    return id;
}

/* --- values --- */

static int param_buffer(struct tt_walk *w, int param)
{
    const struct tt_layout *layout = w->in.layout;
    const struct tt_unit_param *place = tt_layout_param(layout, param);
    const struct tt_unit *unit = &layout->units[layout->unit_of[param]];
    int64_t size = (int64_t)tt_dtype_size(tt_state_unit_dtype(TT_STATE_PARAM, unit, w->in.shard_dtype));

    if (tt_lowering_gathers(&w->in, layout->unit_of[param]))
        return w->unsharded[param];
    if (w->unsharded[param] == TT_NONE)
        w->unsharded[param] =
            tt_lower_part(w, w->param_shard[layout->unit_of[param]], place->offset * size, place->chunk * size);
    return w->unsharded[param];
}

int tt_lower_grad(struct tt_walk *w, int mb, int unit, int k)
{
    const struct tt_layout *layout = w->in.layout;
    const struct tt_unit_grad *place = &layout->units[unit].grads[k];
    int64_t owned = tt_lower_grad_owner(w, mb) * layout->n_units + unit;
    int *slot = &w->grad_buffer[owned][k], *flat = &w->unit_grad[owned];

    if (*slot != TT_NONE)
        return *slot;
    if (tt_lowering_reduces(&w->in, unit)) {
        *slot = tt_lower_made(w, TT_MEMORY_PARAM_GRAD,
                              place->chunk * tt_unit_shard(layout, unit).n * tt_dtype_sum_bytes(w->in.param_dtype));
    } else {
        if (*flat == TT_NONE) {
            *flat = tt_lower_made(w, TT_MEMORY_GRAD,
                                  layout->units[unit].grad_elements * tt_dtype_sum_bytes(w->in.param_dtype));
            w->program->buffers[*flat].unit = unit;
        }
        *slot = tt_lower_part(w, *flat, place->offset * tt_dtype_sum_bytes(w->in.param_dtype),
                              place->chunk * tt_dtype_sum_bytes(w->in.param_dtype));
    }
    w->program->buffers[*slot].unit = unit;
    return *slot;
}

/* The buffer for a value that is a gradient of a parameter. */
static int grad_of(struct tt_walk *w, int mb, const struct tt_value *value)
{
    int unit = w->in.layout->unit_of[value->param];

    return tt_lower_grad(w, mb, unit, tt_layout_grad(w->in.layout, value->param, value->part));
}

int tt_lower_input(struct tt_walk *w, const struct tt_instr *from, int value)
{
    const struct tt_value *v = &tt_lower_graph(w, from)->values[value];

    switch (v->kind) {
    case TT_VALUE_PARAM:
        return param_buffer(w, v->param);
    case TT_VALUE_PARAM_GRAD:
        return grad_of(w, from->microbatch, v);
    case TT_VALUE_CONST:
    case TT_VALUE_CACHE:
        return w->value_buffer[tt_lower_slot(w, 0, from->stage, value)]; /* shared by all microbatches */
    default:
        return w->value_buffer[tt_lower_slot(w, from->microbatch, from->stage, value)];
    }
}

/* The slot of the input whose memory output k of a node may take over, or TT_NONE. */
static int64_t overwritable_input(const struct tt_walk *w, const struct tt_instr *from, int k)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];
    int i = tt_op_row(node->op)->alias[k] - 1, uses = 0;
    const struct tt_value *in, *out = &graph->values[node->out[k]];
    int64_t slot;

    if (i < 0 || node->in[i] == TT_NONE)
        return TT_NONE;
    in = &graph->values[node->in[i]];
    slot = tt_lower_slot(w, from->microbatch, from->stage, node->in[i]);
    for (int j = 0; j < node->n_in; j++)
        uses += node->in[j] != TT_NONE && tt_lower_slot(w, from->microbatch, from->stage, node->in[j]) == slot;
    if (w->last_reader[slot] != w->at || uses != 1 || (in->kind != TT_VALUE_ACTIVATION && in->kind != TT_VALUE_GRAD) ||
        tt_value_bytes(in) != tt_value_bytes(out))
        return TT_NONE;
    return slot;
}

int tt_lower_value(struct tt_walk *w, const struct tt_instr *from, int value)
{
    const struct tt_value *v = &tt_lower_graph(w, from)->values[value];
    int *buffer = &w->value_buffer[tt_lower_slot(w, from->microbatch, from->stage, value)];

    *buffer = tt_lower_made(w, v->kind == TT_VALUE_GRAD ? TT_MEMORY_ACTIVATION_GRAD : TT_MEMORY_ACTIVATION,
                            tt_value_bytes(v));
    w->program->buffers[*buffer].value = value;
    w->program->buffers[*buffer].stage = from->stage;
    w->program->buffers[*buffer].microbatch = from->microbatch;
    return *buffer;
}

int tt_lower_output(struct tt_walk *w, const struct tt_instr *from, int k)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    int value = graph->nodes[from->node].out[k];
    const struct tt_value *v = &graph->values[value];
    int *buffer = &w->value_buffer[tt_lower_slot(w, from->microbatch, from->stage, value)];
    int64_t over;

    if (v->kind == TT_VALUE_PARAM_GRAD)
        return grad_of(w, from->microbatch, v);
    over = overwritable_input(w, from, k);
    return over == TT_NONE ? tt_lower_value(w, from, value) : (*buffer = w->value_buffer[over]);
}

/* --- before and after the walk --- */

/* Finds the last reader of each value, in the order of the schedule. A weight part may read long after the rest of
 * backward. */
static void find_last_readers(struct tt_walk *w, const struct tt_schedule *schedule)
{
    w->last_reader = tt_ids_new((size_t)w->in.microbatches * (size_t)w->n_values);
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
    w->value_buffer = tt_ids_new((size_t)w->in.microbatches * (size_t)w->n_values);
    w->grad_buffer = tt_calloc(n_owned + 1, sizeof *w->grad_buffer);
    for (size_t i = 0; i < n_owned; i++)
        w->grad_buffer[i] = tt_ids_new((size_t)layout->units[i % n_units].n_grads);
    w->unit_grad = tt_ids_new(n_owned);
    w->param_shard = tt_ids_new(n_units);
    w->unsharded = tt_ids_new(n_params);
    w->update = tt_ids_new(n_params);
    w->kept = tt_ids_new(n_units);
    for (int k = 0; k < TT_PURPOSES; k++)
        w->begun[k] = tt_ids_new(n_units);
    w->transfer_begun = tt_ids_new((size_t)w->in.microbatches * (size_t)w->in.n_stages * TT_PURPOSES);
    w->block = w->in.block > 1 ? w->in.block : 1;
    w->n_leaves = w->carries ? 1 : w->in.microbatches / w->block;
    w->block_sums = tt_ids_new(n_owned / (size_t)w->block * (size_t)tt_tree_nodes(w->block));
    w->partial = tt_ids_new(n_units * (size_t)tt_tree_nodes(w->n_leaves));
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

/* Adds the buffer of a value that no node produces, unless an earlier stage has the same value. mb: the microbatch of
 * the value, or TT_NONE. */
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
        enum tt_value_kind kind = graph->values[v].kind;

        if (kind == TT_VALUE_CONST || kind == TT_VALUE_CACHE)
            (void)given_buffer(w, kind == TT_VALUE_CONST ? TT_MEMORY_CONST : TT_MEMORY_CACHE, stage, v, TT_NONE);
        for (int mb = 0; kind == TT_VALUE_INPUT && mb < w->in.microbatches; mb++) {
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

/* Adds the buffers that exist before the first instruction: parameter shards, constants, inputs. */
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

static void place_buffers(struct tt_program *p)
{
    struct tt_buffer *step = tt_calloc((size_t)p->n_buffers + 1, sizeof *step);
    int *from = tt_calloc((size_t)p->n_buffers + 1, sizeof *from);
    int n = 0;

    for (int b = 0; b < p->n_buffers; b++) {
        struct tt_buffer *buffer = &p->buffers[b];
        int64_t *kept = buffer->kind == TT_MEMORY_CONST   ? &p->const_bytes
                        : buffer->kind == TT_MEMORY_CACHE ? &p->cache_bytes
                                                          : NULL; /* a region that is kept between runs */

        if (buffer->root != b)
            continue;
        if (kept) {
            buffer->offset = *kept;
            *kept += tt_arena_bytes(buffer->bytes);
        } else if (tt_memory_is_of_step(buffer->kind)) {
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

static struct tt_schedule *copy_schedule(const struct tt_schedule *from)
{
    struct tt_schedule *copy = tt_calloc(1, sizeof *copy);

    for (int i = 0; i < from->n; i++)
        TT_PUSH(copy->instrs, copy->n, copy->cap) = from->instrs[i];
    for (int b = 0; b < from->n_buckets; b++)
        (void)tt_schedule_bucket(copy, from->buckets[b].units, from->buckets[b].n);
    return copy;
}

/* Marks the first instruction of each further run through the pipeline. */
static void mark_runs(struct tt_walk *w)
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
    p->tokens = tt_ids_new((size_t)lowering->microbatches);
    p->labels = tt_ids_new((size_t)lowering->microbatches);
    p->positions = tt_ids_new((size_t)lowering->microbatches);
    for (int b = 0; b < schedule->n_buckets; b++)
        TT_PUSH(p->buckets, p->n_buckets, p->cap_buckets) = tt_bucket_copy(&schedule->buckets[b]);
    TT_TRY(join_stages(&w));
    prepare(&w, schedule);
    add_given_buffers(&w);
    for (; w.at < schedule->n; w.at++) {
        const struct tt_instr_row *row = tt_instr_row(&schedule->instrs[w.at]);

        if (row->decides)
            tt_lower_await_all(&w);
        TT_TRY(row->lower ? row->lower(&w, &schedule->instrs[w.at])
                          : tt_fail(TT_EINTERNAL, "a schedule cannot hold '%s'", row->name));
    }
    tt_lower_await_all(&w);
    for (int u = 0; u < p->layout->n_units && lowering->averages; u++)
        if (p->layout->units[u].trained_elements > 0)
            tt_lower_begin(&w,
                           &(struct tt_instr){
                               .kind = TT_AVERAGE, .node = TT_NONE, .unit = u, .bucket = TT_NONE, .begin = TT_NONE});
    mark_runs(&w);
    p->logits = TT_NONE;
    for (int s = 0; s < p->n_stages; s++)
        if (p->stages[s].graph->logits != TT_NONE)
            p->logits = w.value_buffer[tt_lower_slot(&w, 0, s, p->stages[s].graph->logits)];
    if (p->logits != TT_NONE) /* logits live to the end, since the caller reads them after the run */
        p->buffers[p->buffers[p->logits].root].last = p->n_instrs - 1;
    place_buffers(p);
    *ret_program = p;
    p = NULL;
out:
    release(&w);
    tt_program_free(p);
    return rc;
}
