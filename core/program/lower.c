/* SPDX-License-Identifier: MIT
 *
 * Lowering: from a schedule of nodes and collectives to instructions on buffers with lifetimes.
 *
 * One walk over the schedule. A value gets its buffer where it is produced; an output takes over the memory of an input
 * when the op's row allows it and nobody reads that input later. Reading a buffer extends its life to the reader. What a
 * collective touches lives until its wait. Gradients of parameters are keyed by (microbatch, parameter), not by SSA value:
 * every contribution accumulates in one place. When the graph carries gradients from one microbatch to the next, all of
 * them have that one place, and what is reduced behind the last is the only leaf of the tree.
 *
 * The gradient sum over microbatches is a balanced binary tree, kept as a binary counter: level l holds the sum of 2^l
 * neighbouring microbatches. Microbatch a closes as many levels as a has trailing one bits; the last one closes all.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/ops/op.h"
#include "core/program/program.h"

enum { MOST_LEVELS = 32 };

/* A unit may be gathered again while its reduce-scatter is still under way, so waits are paired by kind and unit. */
enum collective { GATHER, REDUCE, ALL_REDUCE, COLLECTIVES };

struct lowering {
    struct tt_lowering in;
    struct tt_program *program;
    bool sharded;              /* more than one shard: collectives are real */
    bool gathers;              /* parameters are not the shards: several, or of another type */
    int *last_reader;          /* value -> last node that reads it, TT_NONE if none */
    int *value_buffer;         /* microbatch * n_values + value -> buffer */
    int *grad_buffer;          /* microbatch * n_params + param -> whole gradient */
    int *unit_grad;            /* microbatch * n_units + unit -> its flat gradient, when there is one shard */
    int *param_shard;          /* unit -> state buffer of its parameter shard */
    int *unsharded;            /* param -> gathered buffer, TT_NONE when resharded */
    int *kept;                 /* unit -> kept part, TT_NONE when there is none */
    int *begun[COLLECTIVES];   /* unit -> instruction that began its newest collective of each kind */
    int (*level)[MOST_LEVELS]; /* unit -> buffers of partial sums, TT_NONE where empty */
    int *sum;                  /* unit -> finished gradient shard */
};

/* --- buffers --- */

static int new_buffer(struct lowering *w, enum tt_memory_kind kind, int64_t bytes)
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

static int part_of(struct lowering *w, int root, int64_t offset, int64_t bytes)
{
    int id = new_buffer(w, w->program->buffers[root].kind, bytes);

    w->program->buffers[id].root = root;
    w->program->buffers[id].offset = offset;
    return id;
}

/* --- instructions --- */

static void begin_instr(struct lowering *w, const struct tt_instr *from)
{
    struct tt_program *p = w->program;
    struct tt_instr *instr = &TT_PUSH(p->instrs, p->n_instrs, p->cap_instrs);

    *instr = *from;
    instr->operands = p->n_operands;
    instr->n_operands = 0;
}

/* Adds an operand to the newest instruction; the buffer lives at least until there. */
static void operand(struct lowering *w, int buffer)
{
    struct tt_program *p = w->program;

    TT_PUSH(p->operands, p->n_operands, p->cap_operands) = buffer;
    p->instrs[p->n_instrs - 1].n_operands++;
    if (buffer != TT_NONE)
        p->buffers[p->buffers[buffer].root].last = p->n_instrs - 1;
}

/* A buffer made by the newest instruction. */
static int made_here(struct lowering *w, enum tt_memory_kind kind, int64_t bytes)
{
    int id = new_buffer(w, kind, bytes);

    w->program->buffers[id].first = w->program->buffers[id].last = w->program->n_instrs - 1;
    return id;
}

/* --- values --- */

static int param_buffer(struct lowering *w, int value)
{
    const struct tt_layout *layout = w->in.layout;
    int param = w->in.graph->values[value].param;
    const struct tt_unit_param *place = tt_layout_param(layout, param);

    if (w->gathers)
        return w->unsharded[param];
    if (w->unsharded[param] == TT_NONE)
        w->unsharded[param] = part_of(w, w->param_shard[layout->unit_of[param]], place->offset * (int64_t)sizeof(float),
                                      place->chunk * (int64_t)sizeof(float));
    return w->unsharded[param];
}

/* The first of the microbatches that share their gradients with mb. */
static int64_t grad_owner(const struct lowering *w, int mb)
{
    return w->in.graph->carries ? 0 : mb;
}

/* Where microbatch mb's whole gradient of a parameter is written. */
static int grad_buffer(struct lowering *w, int mb, int param)
{
    const struct tt_layout *layout = w->in.layout;
    const struct tt_unit_param *place = tt_layout_param(layout, param);
    int *slot = &w->grad_buffer[grad_owner(w, mb) * layout->n_params + param];
    int unit = layout->unit_of[param];
    int *flat = &w->unit_grad[grad_owner(w, mb) * layout->n_units + unit];

    if (*slot != TT_NONE)
        return *slot;
    if (w->sharded) {
        *slot = made_here(w, TT_MEMORY_PARAM_GRAD, place->chunk * layout->shard_degree * (int64_t)sizeof(float));
    } else {
        if (*flat == TT_NONE) {
            *flat = made_here(w, TT_MEMORY_GRAD, layout->units[unit].shard_elements * (int64_t)sizeof(float));
            w->program->buffers[*flat].unit = unit;
        }
        *slot = part_of(w, *flat, place->offset * (int64_t)sizeof(float), place->chunk * (int64_t)sizeof(float));
    }
    w->program->buffers[*slot].unit = unit;
    return *slot;
}

static int input_buffer(struct lowering *w, int mb, int value)
{
    switch (w->in.graph->values[value].kind) {
    case TT_VALUE_PARAM:
        return param_buffer(w, value);
    case TT_VALUE_PARAM_GRAD:
        return grad_buffer(w, mb, w->in.graph->values[value].param);
    case TT_VALUE_CONST:
    case TT_VALUE_CACHE:
        return w->value_buffer[value]; /* shared by all microbatches */
    default:
        return w->value_buffer[(int64_t)mb * w->in.graph->n_values + value];
    }
}

/* The input whose memory output k of a node may take over, or TT_NONE. */
static int overwritable_input(const struct lowering *w, int node, int k)
{
    const struct tt_graph *graph = w->in.graph;
    const struct tt_node *n = &graph->nodes[node];
    int i = tt_op_row(n->op)->alias[k] - 1, uses = 0;
    const struct tt_value *in, *out = &graph->values[n->out[k]];

    if (i < 0 || n->in[i] == TT_NONE || w->last_reader[n->in[i]] != node)
        return TT_NONE;
    in = &graph->values[n->in[i]];
    for (int j = 0; j < n->n_in; j++)
        uses += n->in[j] == n->in[i];
    if (uses != 1 || (in->kind != TT_VALUE_ACTIVATION && in->kind != TT_VALUE_GRAD) ||
        tt_value_bytes(in) != tt_value_bytes(out))
        return TT_NONE;
    return n->in[i];
}

static int output_buffer(struct lowering *w, int mb, int node, int k)
{
    const struct tt_graph *graph = w->in.graph;
    int value = graph->nodes[node].out[k];
    const struct tt_value *v = &graph->values[value];
    int *slot = &w->value_buffer[(int64_t)mb * graph->n_values + value];
    int over;

    if (v->kind == TT_VALUE_PARAM_GRAD)
        return grad_buffer(w, mb, v->param);
    over = overwritable_input(w, node, k);
    if (over != TT_NONE) {
        *slot = w->value_buffer[(int64_t)mb * graph->n_values + over];
    } else {
        *slot = made_here(w, v->kind == TT_VALUE_GRAD ? TT_MEMORY_ACTIVATION_GRAD : TT_MEMORY_ACTIVATION,
                          tt_value_bytes(v));
        w->program->buffers[*slot].value = value;
        w->program->buffers[*slot].microbatch = mb;
    }
    return *slot;
}

/* --- one instruction of the schedule --- */

/* The sum of the microbatches before this one, where there are none. */
static bool is_first_carry(const struct lowering *w, int mb, int value)
{
    return mb == 0 && w->in.graph->values[value].kind == TT_VALUE_PARAM_GRAD &&
           w->in.graph->values[value].producer == TT_NONE;
}

static int lower_run(struct lowering *w, const struct tt_instr *from)
{
    const struct tt_graph *graph = w->in.graph;
    const struct tt_node *node = &graph->nodes[from->node];
    const struct tt_op_row *row = tt_op_row(node->op);
    int64_t scratch = row->scratch_bytes ? row->scratch_bytes(graph, node, w->in.threads) : 0;

    begin_instr(w, from);
    for (int i = 0; i < node->n_in; i++) {
        bool absent = node->in[i] == TT_NONE || is_first_carry(w, from->microbatch, node->in[i]);
        int buffer = absent ? TT_NONE : input_buffer(w, from->microbatch, node->in[i]);

        if (buffer == TT_NONE && !absent)
            return tt_fail(TT_EINTERNAL, "the schedule runs %s on '%s' before it is there", row->name,
                           graph->values[node->in[i]].name);
        operand(w, buffer);
    }
    for (int k = 0; k < node->n_out; k++)
        operand(w, output_buffer(w, from->microbatch, from->node, k));
    operand(w, scratch ? made_here(w, TT_MEMORY_SCRATCH, scratch) : TT_NONE);
    return 0;
}

/* Remembers that the newest instruction began a collective of these units. */
static void note_begun(struct lowering *w, const struct tt_instr *from, enum collective kind)
{
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    for (int i = 0; i < n; i++)
        w->begun[kind][units[i]] = w->program->n_instrs - 1;
}

/* A wait has the operands of what it waits for, so that they live until then. */
static const struct tt_instr *lower_wait(struct lowering *w, const struct tt_instr *from, enum collective kind)
{
    struct tt_program *p = w->program;
    int begin = w->begun[kind][from->unit], n;

    begin_instr(w, from);
    p->instrs[p->n_instrs - 1].begin = begin;
    n = p->instrs[begin].n_operands;
    for (int i = 0; i < n; i++)
        operand(w, p->operands[p->instrs[begin].operands + i]);
    return &p->instrs[begin];
}

static void unshard_unit(struct lowering *w, int u)
{
    const struct tt_unit *unit = &w->in.layout->units[u];

    for (int i = 0; i < unit->n_params; i++) {
        int buffer = made_here(w, TT_MEMORY_UNSHARDED,
                               unit->params[i].chunk * w->in.layout->shard_degree * (int64_t)sizeof(float));

        w->program->buffers[buffer].unit = u;
        w->unsharded[unit->params[i].param] = buffer;
        operand(w, buffer);
    }
}

/* From the kept parts where there are any: the schedule need not know. */
static int lower_unshard(struct lowering *w, const struct tt_instr *from)
{
    struct tt_instr unshard = *from;
    int n, kept = 0;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    for (int i = 0; i < n; i++)
        kept += w->kept[units[i]] != TT_NONE;
    if (kept && kept < n)
        return tt_fail(TT_EINTERNAL, "a bucket gathers %d units from kept parts and %d from shards", kept, n - kept);
    if (kept)
        unshard.kind = TT_UNSHARD_KEPT;
    begin_instr(w, &unshard);
    note_begun(w, from, GATHER);
    for (int i = 0; i < n; i++)
        unshard_unit(w, units[i]);
    for (int i = 0; i < kept; i++) {
        operand(w, w->kept[units[i]]);
        w->kept[units[i]] = TT_NONE;
    }
    return 0;
}

static void lower_reshard(struct lowering *w, const struct tt_instr *from)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];

    begin_instr(w, from);
    for (int i = 0; i < unit->n_params; i++) {
        if (!w->in.free_early || from->kind == TT_KEEP)
            operand(w, w->unsharded[unit->params[i].param]);
        w->unsharded[unit->params[i].param] = TT_NONE;
    }
}

static void lower_keep(struct lowering *w, const struct tt_instr *from)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];
    int64_t bytes = 0;

    for (int i = 0; i < unit->n_params; i++)
        bytes += w->program->buffers[w->unsharded[unit->params[i].param]].bytes;
    lower_reshard(w, from);
    bytes = bytes / (int64_t)sizeof(float) * (int64_t)tt_dtype_size(w->in.param_dtype); /* as it travels */
    w->kept[from->unit] = made_here(w, TT_MEMORY_KEPT, bytes / unit->keep_degree);
    w->program->buffers[w->kept[from->unit]].unit = from->unit;
    operand(w, w->kept[from->unit]);
}

static void lower_reduce(struct lowering *w, const struct tt_instr *from)
{
    const struct tt_layout *layout = w->in.layout;
    int64_t shard_bytes = tt_instr_shard_bytes(w->program, from);
    int64_t staging = tt_lowering_reduce_staging(&w->in, shard_bytes);
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    begin_instr(w, from);
    note_begun(w, from, REDUCE);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < layout->units[units[i]].n_params; k++)
            operand(w, grad_buffer(w, from->microbatch, layout->units[units[i]].params[k].param));
    for (int i = 0; i < n; i++) {
        int result = made_here(w, TT_MEMORY_GRAD, layout->units[units[i]].shard_elements * (int64_t)sizeof(float));

        w->program->buffers[result].unit = units[i];
        operand(w, result);
    }
    operand(w, staging ? made_here(w, TT_MEMORY_STAGING, staging) : TT_NONE);
}

/* One shard: there is nothing to exchange, but what would travel is rounded all the same. */
static void lower_round(struct lowering *w, const struct tt_instr *from)
{
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    begin_instr(w, from);
    for (int i = 0; i < n; i++)
        operand(w, w->unit_grad[grad_owner(w, from->microbatch) * w->in.layout->n_units + units[i]]);
}

/* Puts a microbatch's gradient of a unit into the tree; emits a fold when levels close. */
static void add_leaf(struct lowering *w, int mb, int unit, int leaf)
{
    const struct tt_instr fold = {
        .kind = TT_FOLD, .microbatch = mb, .node = TT_NONE, .unit = unit, .bucket = TT_NONE, .begin = TT_NONE};
    int *level = w->level[unit];
    int closed = 0, into = leaf;
    bool last = mb == w->in.microbatches - 1;
    int sources[MOST_LEVELS];

    for (int l = 0; l < MOST_LEVELS && (last || (mb >> l & 1)); l++) {
        if (level[l] == TT_NONE)
            continue;
        sources[closed++] = level[l];
        level[l] = TT_NONE;
    }
    if (closed) {
        begin_instr(w, &fold);
        operand(w, leaf);
        for (int i = 0; i < closed; i++)
            operand(w, sources[i]);
        into = sources[closed - 1];
    }
    if (last) {
        w->sum[unit] = into;
    } else {
        int l = 0;

        while (mb >> l & 1)
            l++;
        level[l] = into;
    }
}

static void lower_wait_reduce(struct lowering *w, const struct tt_instr *from)
{
    int n, results = 0;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    if (w->sharded) {
        const struct tt_instr *begin = lower_wait(w, from, REDUCE);

        results = begin->operands + begin->n_operands - 1 - n; /* a result per unit, then staging */
    }
    for (int i = 0; i < n; i++)
        add_leaf(w, from->microbatch, units[i],
                 w->sharded ? w->program->operands[results + i]
                            : w->unit_grad[grad_owner(w, from->microbatch) * w->in.layout->n_units + units[i]]);
}

static void lower_all_reduce(struct lowering *w, const struct tt_instr *from)
{
    int64_t staging = w->in.all_reduce_staging(w->in.layout, tt_instr_shard_bytes(w->program, from));
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    begin_instr(w, from);
    note_begun(w, from, ALL_REDUCE);
    for (int i = 0; i < n; i++)
        operand(w, w->sum[units[i]]);
    operand(w, staging ? made_here(w, TT_MEMORY_STAGING, staging) : TT_NONE);
}

/* Until the step is known to be good its inputs stay: tt_executor_explain runs it a second time. */
static void lower_clip(struct lowering *w, const struct tt_instr *from)
{
    struct tt_program *p = w->program;

    begin_instr(w, from);
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].kind == TT_MEMORY_INPUT)
            p->buffers[b].last = p->n_instrs - 1;
}

static int lower_instr(struct lowering *w, const struct tt_instr *from)
{
    bool sharded = w->sharded, replicated = w->in.layout->replicate_degree > 1;

    switch (from->kind) {
    case TT_RUN:
        return lower_run(w, from);
    case TT_UNSHARD:
        return w->gathers ? lower_unshard(w, from) : 0;
    case TT_WAIT_UNSHARD:
        if (w->gathers)
            (void)lower_wait(w, from, GATHER);
        return 0;
    case TT_RESHARD:
        if (w->gathers)
            lower_reshard(w, from);
        return 0;
    case TT_KEEP:
        if (sharded)
            lower_keep(w, from);
        return 0;
    case TT_REDUCE:
        if (sharded)
            lower_reduce(w, from);
        else if (w->in.reduce_dtype != TT_F32)
            lower_round(w, from);
        return 0;
    case TT_WAIT_REDUCE:
        lower_wait_reduce(w, from);
        return 0;
    case TT_ALL_REDUCE:
        if (replicated)
            lower_all_reduce(w, from);
        return 0;
    case TT_WAIT_ALL_REDUCE:
        if (replicated)
            (void)lower_wait(w, from, ALL_REDUCE);
        return 0;
    case TT_LOSS:
        begin_instr(w, from);
        operand(w, input_buffer(w, from->microbatch, w->in.graph->token_loss));
        return 0;
    case TT_NORM:
    case TT_OPTIMIZER:
        begin_instr(w, from);
        operand(w, w->sum[from->unit]);
        return 0;
    case TT_CLIP:
        lower_clip(w, from);
        return 0;
    default:
        return tt_fail(TT_EINTERNAL, "a schedule cannot hold '%s'", tt_instr_name(from->kind));
    }
}

/* --- before and after the walk --- */

static int *filled(size_t n)
{
    int *array = tt_calloc(n + 1, sizeof *array);

    for (size_t i = 0; i < n; i++)
        array[i] = TT_NONE;
    return array;
}

static void prepare(struct lowering *w)
{
    const struct tt_graph *graph = w->in.graph;
    const struct tt_layout *layout = w->in.layout;
    size_t n_units = (size_t)layout->n_units, n_params = (size_t)layout->n_params;

    w->sharded = layout->shard_degree > 1;
    w->gathers = w->sharded || w->in.param_dtype != TT_F32;
    w->last_reader = filled((size_t)graph->n_values);
    for (int n = 0; n < graph->n_nodes; n++)
        for (int i = 0; i < graph->nodes[n].n_in; i++)
            if (graph->nodes[n].in[i] != TT_NONE)
                w->last_reader[graph->nodes[n].in[i]] = n;
    if (graph->token_loss != TT_NONE)
        w->last_reader[graph->token_loss] = graph->n_nodes; /* TT_LOSS */
    w->value_buffer = filled((size_t)w->in.microbatches * (size_t)graph->n_values);
    w->grad_buffer = filled((size_t)w->in.microbatches * n_params);
    w->unit_grad = filled((size_t)w->in.microbatches * n_units);
    w->param_shard = filled(n_units);
    w->unsharded = filled(n_params);
    w->kept = filled(n_units);
    for (int k = 0; k < COLLECTIVES; k++)
        w->begun[k] = filled(n_units);
    w->sum = filled(n_units);
    w->level = tt_calloc(n_units, sizeof *w->level);
    for (size_t u = 0; u < n_units; u++)
        for (int l = 0; l < MOST_LEVELS; l++)
            w->level[u][l] = TT_NONE;
}

static void release(struct lowering *w)
{
    tt_free(w->last_reader);
    tt_free(w->value_buffer);
    tt_free(w->grad_buffer);
    tt_free(w->unit_grad);
    tt_free(w->param_shard);
    tt_free(w->unsharded);
    tt_free(w->kept);
    for (int k = 0; k < COLLECTIVES; k++)
        tt_free(w->begun[k]);
    tt_free(w->sum);
    tt_free(w->level);
}

/* Buffers that exist before the first instruction: parameter shards, constants, inputs. */
static void add_given_buffers(struct lowering *w)
{
    const struct tt_graph *graph = w->in.graph;
    struct tt_program *p = w->program;

    for (int u = 0; u < w->in.layout->n_units; u++) {
        w->param_shard[u] =
            new_buffer(w, TT_MEMORY_PARAM, w->in.layout->units[u].shard_elements * (int64_t)sizeof(float));
        p->buffers[w->param_shard[u]].unit = u;
    }
    for (int v = 0; v < graph->n_values; v++) {
        const struct tt_value *value = &graph->values[v];

        if (value->kind == TT_VALUE_CONST || value->kind == TT_VALUE_CACHE) {
            w->value_buffer[v] =
                new_buffer(w, value->kind == TT_VALUE_CONST ? TT_MEMORY_CONST : TT_MEMORY_CACHE, tt_value_bytes(value));
            p->buffers[w->value_buffer[v]].value = v;
        }
        for (int mb = 0; value->kind == TT_VALUE_INPUT && mb < w->in.microbatches; mb++) {
            int buffer = new_buffer(w, TT_MEMORY_INPUT, tt_value_bytes(value));

            w->value_buffer[(int64_t)mb * graph->n_values + v] = buffer;
            p->buffers[buffer].value = v;
            p->buffers[buffer].microbatch = mb;
            if (v == graph->tokens)
                p->tokens[mb] = buffer;
            if (v == graph->labels)
                p->labels[mb] = buffer;
        }
    }
}

/* The caller reads them after the run. */
static void keep_logits(struct lowering *w)
{
    struct tt_program *p = w->program;

    p->logits = w->in.graph->logits == TT_NONE ? TT_NONE : w->value_buffer[w->in.graph->logits];
    if (p->logits != TT_NONE)
        p->buffers[p->buffers[p->logits].root].last = p->n_instrs - 1;
}

static bool in_step_region(enum tt_memory_kind kind)
{
    return kind != TT_MEMORY_PARAM && kind != TT_MEMORY_CONST && kind != TT_MEMORY_CACHE;
}

/* Puts a buffer behind the others of a region that is kept between runs. */
static void place_behind(struct tt_buffer *buffer, int64_t *region_bytes)
{
    buffer->offset = *region_bytes;
    *region_bytes += (buffer->bytes + 63) / 64 * 64;
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
            place_behind(buffer, &p->const_bytes);
        } else if (buffer->kind == TT_MEMORY_CACHE) {
            place_behind(buffer, &p->cache_bytes);
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

int tt_program_new(const struct tt_lowering *lowering, const struct tt_schedule *schedule,
                   struct tt_program **ret_program)
{
    struct tt_program *p = tt_calloc(1, sizeof *p);
    struct lowering w = {.in = *lowering, .program = p};
    int rc = 0;

    p->graph = lowering->graph;
    p->layout = lowering->layout;
    p->microbatches = lowering->microbatches;
    p->threads = lowering->threads;
    p->param_dtype = lowering->param_dtype;
    p->reduce_dtype = lowering->reduce_dtype;
    p->tokens = filled((size_t)lowering->microbatches);
    p->labels = filled((size_t)lowering->microbatches);
    for (int b = 0; b < schedule->n_buckets; b++)
        copy_bucket(p, &schedule->buckets[b]);
    prepare(&w);
    add_given_buffers(&w);
    for (int i = 0; i < schedule->n; i++)
        TT_TRY(lower_instr(&w, &schedule->instrs[i]));
    keep_logits(&w);
    place_buffers(p);
    *ret_program = p;
    p = NULL;
out:
    release(&w);
    tt_program_free(p);
    return rc;
}
