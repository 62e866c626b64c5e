/* SPDX-License-Identifier: MIT
 *
 * Lowering: collectives and the sum of gradients. What a collective touches lives until its wait.
 *
 * The gradient sum over microbatches is a balanced binary tree, kept as a binary counter: level l holds the sum of 2^l
 * neighbouring microbatches. Microbatch a closes as many levels as a has trailing one bits; the last one closes all.
 */
#include "core/program/lowering.h"

/* Remembers that the newest instruction began a collective of these units. */
static void note_begun(struct tt_walk *w, const struct tt_instr *from, enum tt_awaited kind)
{
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    for (int i = 0; i < n; i++)
        w->begun[kind][units[i]] = w->program->n_instrs - 1;
}

const struct tt_instr *tt_lower_wait(struct tt_walk *w, const struct tt_instr *from, enum tt_awaited kind)
{
    struct tt_program *p = w->program;
    int begin = w->begun[kind][from->unit], n;

    tt_lower_begin(w, from);
    p->instrs[p->n_instrs - 1].begin = begin;
    n = p->instrs[begin].n_operands;
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, p->operands[p->instrs[begin].operands + i]);
    return &p->instrs[begin];
}

static void unshard_unit(struct tt_walk *w, int u)
{
    const struct tt_unit *unit = &w->in.layout->units[u];

    for (int i = 0; i < unit->n_params; i++) {
        int buffer = tt_lower_made(w, TT_MEMORY_UNSHARDED,
                                   unit->params[i].chunk * w->in.layout->shard_degree * (int64_t)sizeof(float));

        w->program->buffers[buffer].unit = u;
        w->unsharded[unit->params[i].param] = buffer;
        tt_lower_operand(w, buffer);
    }
}

int tt_lower_unshard(struct tt_walk *w, const struct tt_instr *from)
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
    tt_lower_begin(w, &unshard);
    note_begun(w, from, TT_AWAIT_GATHER);
    for (int i = 0; i < n; i++)
        unshard_unit(w, units[i]);
    for (int i = 0; i < kept; i++) {
        tt_lower_operand(w, w->kept[units[i]]);
        w->kept[units[i]] = TT_NONE;
    }
    return 0;
}

void tt_lower_reshard(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];

    tt_lower_begin(w, from);
    for (int i = 0; i < unit->n_params; i++) {
        if (!w->in.free_early || from->kind == TT_KEEP)
            tt_lower_operand(w, w->unsharded[unit->params[i].param]);
        w->unsharded[unit->params[i].param] = TT_NONE;
    }
}

void tt_lower_keep(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];
    int64_t bytes = 0;

    for (int i = 0; i < unit->n_params; i++)
        bytes += w->program->buffers[w->unsharded[unit->params[i].param]].bytes;
    tt_lower_reshard(w, from);
    bytes = bytes / (int64_t)sizeof(float) * (int64_t)tt_dtype_size(w->in.param_dtype); /* as it travels */
    w->kept[from->unit] = tt_lower_made(w, TT_MEMORY_KEPT, bytes / unit->keep_degree);
    w->program->buffers[w->kept[from->unit]].unit = from->unit;
    tt_lower_operand(w, w->kept[from->unit]);
}

void tt_lower_reduce(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_layout *layout = w->in.layout;
    int64_t shard_bytes = tt_instr_shard_bytes(w->program, from);
    int64_t staging = tt_lowering_reduce_staging(&w->in, shard_bytes);
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    tt_lower_begin(w, from);
    note_begun(w, from, TT_AWAIT_REDUCE);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < layout->units[units[i]].n_params; k++)
            tt_lower_operand(w, tt_lower_grad(w, from->microbatch, layout->units[units[i]].params[k].param));
    for (int i = 0; i < n; i++) {
        int result = tt_lower_made(w, TT_MEMORY_GRAD, layout->units[units[i]].shard_elements * (int64_t)sizeof(float));

        w->program->buffers[result].unit = units[i];
        tt_lower_operand(w, result);
    }
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
}

void tt_lower_round(struct tt_walk *w, const struct tt_instr *from)
{
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    tt_lower_begin(w, from);
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, w->unit_grad[tt_lower_grad_owner(w, from->microbatch) * w->in.layout->n_units + units[i]]);
}

/* Puts a microbatch's gradient of a unit into the tree; emits a fold when levels close. */
static void add_leaf(struct tt_walk *w, int mb, int unit, int leaf)
{
    const struct tt_instr fold = {
        .kind = TT_FOLD, .microbatch = mb, .node = TT_NONE, .unit = unit, .bucket = TT_NONE, .begin = TT_NONE};
    int *level = w->level[unit];
    int closed = 0, into = leaf;
    bool last = mb == w->in.microbatches - 1;
    int sources[TT_MOST_LEVELS];

    for (int l = 0; l < TT_MOST_LEVELS && (last || (mb >> l & 1)); l++) {
        if (level[l] == TT_NONE)
            continue;
        sources[closed++] = level[l];
        level[l] = TT_NONE;
    }
    if (closed) {
        tt_lower_begin(w, &fold);
        tt_lower_operand(w, leaf);
        for (int i = 0; i < closed; i++)
            tt_lower_operand(w, sources[i]);
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

void tt_lower_wait_reduce(struct tt_walk *w, const struct tt_instr *from)
{
    int n, results = 0;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    if (w->sharded) {
        const struct tt_instr *begin = tt_lower_wait(w, from, TT_AWAIT_REDUCE);

        results = begin->operands + begin->n_operands - 1 - n; /* a result per unit, then staging */
    }
    for (int i = 0; i < n; i++)
        add_leaf(w, from->microbatch, units[i],
                 w->sharded
                     ? w->program->operands[results + i]
                     : w->unit_grad[tt_lower_grad_owner(w, from->microbatch) * w->in.layout->n_units + units[i]]);
}

void tt_lower_all_reduce(struct tt_walk *w, const struct tt_instr *from)
{
    int64_t staging = w->in.all_reduce_staging(w->in.layout, tt_instr_shard_bytes(w->program, from));
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    tt_lower_begin(w, from);
    note_begun(w, from, TT_AWAIT_ALL_REDUCE);
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, w->sum[units[i]]);
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
}
