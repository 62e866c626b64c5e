/* SPDX-License-Identifier: MIT
 *
 * Instructions on parameters (gather them from shards or kept parts, free them, keep a part) and on their gradients
 * (reduce them, add them over microbatches, sum them over replicas).
 *
 * To gather float32 in bfloat16, a shard is rounded into its place in the whole parameter and sent from there. Nodes
 * read the gathered parameter as it arrives, in bfloat16.
 */
#include "core/math/bf16.h"
#include "core/math/tree.h"
#include "core/ops/step/step.h"
#include "core/program/executor.h"
#include "core/program/instr/instr.h"
#include "core/program/internal.h"

/* --- gathers --- */

/* Gathers from kept parts if there are any; schedules do not make this distinction. */
static int lower_unshard(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_layout *layout = w->in.layout;
    int kept = 0;
    const struct tt_bucket of = tt_instr_units(w->program->buckets, from);

    for (int i = 0; i < of.n; i++)
        kept += w->kept[of.units[i]] != TT_NONE;
    if (kept && kept < of.n)
        return tt_fail(TT_EINTERNAL, "a bucket gathers %d units from kept parts and %d from shards", kept, of.n - kept);
    tt_lower_collective(w, from, kept ? TT_UNSHARD_KEPT : TT_UNSHARD);
    for (int i = 0; i < of.n; i++)
        for (int k = 0; k < layout->units[of.units[i]].n_params; k++) {
            const struct tt_unit_param *param = &layout->units[of.units[i]].params[k];
            int64_t size = (int64_t)tt_dtype_size(layout->units[of.units[i]].packing ? TT_U8 : w->in.param_dtype);
            int whole = tt_lower_made(w, TT_MEMORY_UNSHARDED, tt_unit_whole(layout, of.units[i], param->chunk) * size);

            w->program->buffers[whole].unit = of.units[i];
            w->unsharded[param->param] = whole;
            tt_lower_operand(w, whole);
        }
    for (int i = 0; i < kept; i++) {
        tt_lower_operand(w, w->kept[of.units[i]]);
        w->kept[of.units[i]] = TT_NONE;
    }
    return 0;
}

static void round_shards(struct tt_executor *ex, const struct tt_instr *begin)
{
    const struct tt_layout *layout = ex->program->layout;
    void *const *address = tt_running_address(ex, begin);
    int operand = 0;
    const struct tt_bucket of = tt_instr_units(ex->program->buckets, begin);

    if (begin->collective.dtype == ex->program->shard_dtype || begin->collective.dtype == TT_U8)
        return;
    for (int u = 0; u < of.n; u++) {
        const struct tt_unit *unit = &layout->units[of.units[u]];
        struct tt_place shard = tt_unit_shard(layout, of.units[u]);

        for (int k = 0; k < unit->n_params; k++, operand++) {
            int64_t chunk = unit->params[k].chunk;
            tt_bf16 *own = (tt_bf16 *)address[operand] + shard.index * chunk;
            void *shards = tt_state_at(ex->state, TT_STATE_PARAM, of.units[u], &unit->params[k]);

            tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_ROUND, .in = shards, .n = chunk, .out = {own}});
        }
    }
}

static void cost_of_rounding(const struct tt_program *program, const struct tt_instr *begin, struct tt_instr_cost *cost)
{
    const struct tt_bucket of = tt_instr_units(program->buckets, begin);
    struct tt_step_call round = {.op = TT_STEP_ROUND};

    if (begin->collective.dtype == program->shard_dtype || begin->collective.dtype == TT_U8)
        return;
    for (int u = 0; u < of.n; u++)
        round.n += program->layout->units[of.units[u]].shard_elements;
    tt_step_row(round.op)->cost(&round, &cost->work);
}

const struct tt_purpose_row tt_purpose_unshard = {
    .name = "unshard",
    .wait_name = "wait unshard",
    .op = TT_ALL_GATHER,
    .among = TT_AMONG_SHARDS,
    .carries = TT_CARRIES_PARAMS,
    .lower = lower_unshard,
    .before = round_shards,
    .cost = cost_of_rounding,
};

const struct tt_purpose_row tt_purpose_unshard_kept = {
    .name = "unshard kept",
    .wait_name = "wait unshard",
    .part_of_group = "neighbours in ",
    .op = TT_ALL_GATHER,
    .among = TT_AMONG_NEIGHBOURS,
    .carries = TT_CARRIES_PARAMS,
    .rare = true,
};

/* --- TT_RESHARD --- */

/* If the instruction has operands, the buffers live until here; otherwise each buffer lives until its last read. */
static void free_whole(struct tt_walk *w, const struct tt_instr *from, bool operands)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];

    tt_lower_begin(w, from);
    for (int i = 0; i < unit->n_params; i++) {
        if (operands)
            tt_lower_operand(w, w->unsharded[unit->params[i].param]);
        w->unsharded[unit->params[i].param] = TT_NONE;
    }
}

/* If nothing travels, the parameters are rounded copies that live until their last read. */
static int lower_reshard(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_collective_desc desc = tt_lower_describe(w, TT_UNSHARD, &from->unit, 1);

    if (tt_lowering_gathers(&w->in, from->unit))
        free_whole(w, from, !w->in.free_early && tt_collective_travels(&desc));
    return 0;
}

const struct tt_instr_row tt_instr_reshard = {
    .name = "reshard",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_SUMS,
    .of_units = true,
    .quiet = true,
    .lower = lower_reshard,
};

/* --- TT_KEEP --- */

static int lower_keep(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_collective_desc desc = tt_lower_describe(w, TT_UNSHARD_KEPT, &from->unit, 1);

    free_whole(w, from, true);
    w->kept[from->unit] = tt_lower_made(w, TT_MEMORY_KEPT, desc.bytes); /* bytes in the type in which it travels */
    w->program->buffers[w->kept[from->unit]].unit = from->unit;
    tt_lower_operand(w, w->kept[from->unit]);
    return 0;
}

/* Copies this rank's part of the gathered parameters: S / n chunks, by its place among n neighbours. */
static int run_keep(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_program *p = ex->program;
    const struct tt_instr *instr = &p->instrs[i];
    const struct tt_unit *unit = &p->layout->units[instr->unit];
    struct tt_place shard = tt_unit_shard(p->layout, instr->unit);
    int64_t chunks = shard.n / unit->keep_degree, part = shard.index % unit->keep_degree;
    size_t size = tt_dtype_size(unit->packing ? TT_U8 : p->param_dtype);
    void *const *address = tt_running_address(ex, instr);
    char *kept = address[unit->n_params];

    (void)step;
    for (int k = 0; k < unit->n_params; k++) {
        int64_t bytes = chunks * unit->params[k].chunk * (int64_t)size;

        tt_device_copy(ex->stream, kept, (const char *)address[k] + part * bytes, (size_t)bytes);
        kept += bytes;
    }
    return 0;
}

const struct tt_instr_row tt_instr_keep = {
    .name = "keep part",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_SUMS,
    .of_units = true,
    .lower = lower_keep,
    .run = run_keep,
};

/*
 * --- the reduce-scatter of one microbatch, or of a block of them ---
 *
 * Gradients are reduced over the shard ranks, added over microbatches, and summed over the replicas. The sum over
 * microbatches is a balanced binary tree (core/math/tree.h), which takes microbatches in any order. Either each
 * gradient is reduced before it is added (TT_FOLD), or the whole gradients of a block are added first (TT_ADD) and
 * their sum is reduced. Blocks of a power of two are complete subtrees, so the bits are the same.
 */

/* The microbatch whose buffers contain the gradients that are reduced after microbatch mb: those of mb itself, or the
 * sum of its block. */
static int sum_owner(const struct tt_walk *w, int mb, int unit)
{
    return w->block > 1 ? tt_tree_root(tt_lower_block_sums(w, mb, unit)) : mb;
}

static int unit_grad(const struct tt_walk *w, int mb, int unit)
{
    return w->unit_grad[tt_lower_grad_owner(w, sum_owner(w, mb, unit)) * w->in.layout->n_units + unit];
}

static int lower_reduce(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_layout *layout = w->in.layout;
    int64_t staging;
    const struct tt_bucket of = tt_instr_units(w->program->buckets, from);

    tt_lower_collective(w, from, TT_REDUCE);
    if (!tt_lowering_reduces(&w->in, from->unit)) { /* gradients are rounded as if they were exchanged */
        for (int i = 0; i < of.n; i++) {
            w->begun[TT_REDUCE][of.units[i]] = TT_NONE; /* complete at once */
            tt_lower_operand(w, unit_grad(w, from->microbatch, of.units[i]));
        }
        return 0;
    }
    for (int i = 0; i < of.n; i++)
        for (int k = 0; k < layout->units[of.units[i]].n_grads; k++)
            tt_lower_operand(w, tt_lower_grad(w, sum_owner(w, from->microbatch, of.units[i]), of.units[i], k));
    for (int i = 0; i < of.n; i++) {
        int result = tt_lower_made(w, TT_MEMORY_GRAD,
                                   layout->units[of.units[i]].grad_elements * tt_dtype_sum_bytes(w->in.param_dtype));

        w->program->buffers[result].unit = of.units[i];
        tt_lower_operand(w, result);
    }
    staging = w->in.staging(&w->program->instrs[w->program->n_instrs - 1].collective);
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
    return 0;
}

/* Puts the gradients of a block into the trees of their units, and adds neighbouring sums that are complete. */
static int add_leaves(struct tt_walk *w, const struct tt_instr *from, int begin)
{
    const struct tt_program *p = w->program;
    struct tt_instr fold = {
        .kind = TT_FOLD, .microbatch = from->microbatch, .node = TT_NONE, .bucket = TT_NONE, .begin = TT_NONE};
    int64_t index = tt_lower_grad_owner(w, from->microbatch) / w->block;
    int results = 0, neighbours[TT_TREE_LEVELS];
    const struct tt_bucket of = tt_instr_units(p->buckets, from);

    if (begin != TT_NONE)
        results = p->instrs[begin].operands + p->instrs[begin].n_operands - 1 - of.n; /* one per unit, then staging */
    for (int i = 0; i < of.n; i++) {
        int leaf = begin == TT_NONE ? unit_grad(w, from->microbatch, of.units[i]) : p->operands[results + i];
        int sums = tt_tree_put(tt_lower_partial(w, of.units[i]), w->n_leaves, index, leaf, neighbours);

        if (sums == 0)
            continue;
        fold.unit = of.units[i];
        tt_lower_begin(w, &fold);
        tt_lower_operand(w, leaf);
        for (int k = 0; k < sums; k++)
            tt_lower_operand(w, neighbours[k]);
    }
    return 0;
}

/* Rounds gradients. Gradients that travel are whole, with one operand each; otherwise there is one operand per unit. */
static void narrow_grads(struct tt_executor *ex, const struct tt_instr *begin)
{
    const struct tt_layout *layout = ex->program->layout;
    bool travels = tt_collective_travels(&begin->collective);
    void *const *address = tt_running_address(ex, begin);
    const struct tt_bucket of = tt_instr_units(ex->program->buckets, begin);

    for (int u = 0; u < of.n && begin->collective.dtype == TT_BF16; u++) {
        const struct tt_unit *unit = &layout->units[of.units[u]];

        for (int k = 0; travels && k < unit->n_grads; k++)
            tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_NARROW,
                                                      .out = {*address++},
                                                      .n = tt_unit_whole(layout, of.units[u], unit->grads[k].chunk)});
        if (!travels)
            tt_running_step(
                ex, (struct tt_step_call){.op = TT_STEP_ROUND_HERE, .out = {address[u]}, .n = unit->grad_elements});
    }
}

/* Adds the gradients, which arrived from the members of the group in bfloat16, in the order of the members. */
static void fold_grads(struct tt_executor *ex, const struct tt_instr *begin)
{
    void *const *address = tt_running_address(ex, begin);
    int staging = begin->n_operands - 1;
    const struct tt_bucket of = tt_instr_units(ex->program->buckets, begin);
    int64_t stride = begin->collective.bytes / (int64_t)sizeof(uint16_t), before = 0;

    if (begin->collective.dtype != TT_BF16)
        return;
    for (int u = 0; u < of.n; u++) {
        int64_t elements = ex->program->layout->units[of.units[u]].grad_elements;

        tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_FOLD_HALVES,
                                                  .in = (const uint16_t *)address[staging] + before,
                                                  .parts = begin->collective.ranks,
                                                  .stride = stride,
                                                  .n = elements,
                                                  .out = {address[staging - of.n + u]}});
        before += elements;
    }
}

const struct tt_purpose_row tt_purpose_reduce = {
    .name = "reduce-scatter",
    .wait_name = "wait reduce-scatter",
    .op = TT_REDUCE_SCATTER,
    .among = TT_AMONG_SHARDS,
    .carries = TT_CARRIES_GRADS,
    .of_microbatch = true,
    .lower = lower_reduce,
    .arrived = add_leaves,
    .before = narrow_grads,
    .after = fold_grads,
};

/* --- TT_FOLD --- */

static struct tt_step_call fold_of(const struct tt_program *program, const struct tt_instr *instr)
{
    int64_t bytes = program->buffers[program->operands[instr->operands]].bytes;

    return (struct tt_step_call){
        .op = TT_STEP_FOLD, .parts = instr->n_operands, .n = bytes / tt_dtype_sum_bytes(program->param_dtype)};
}

static int run_fold(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call fold = fold_of(ex->program, instr);

    (void)step;
    fold.sums = tt_running_address(ex, instr);
    tt_running_step(ex, fold);
    return 0;
}

const struct tt_instr_row tt_instr_fold = {
    .name = "fold",
    .part = TT_SPLIT_OTHER,
    .phase = TT_PHASE_SUMS,
    .of_units = true,
    .of_microbatch = true,
    .step_of = fold_of,
    .run = run_fold,
};

/* --- TT_ADD --- */

/* The number of arrays that hold a unit's gradients of a microbatch: one per gradient, or a single one if nothing is
 * reduced. */
static int n_arrays(const struct tt_layout *layout, int unit)
{
    return tt_unit_shard(layout, unit).n > 1 ? layout->units[unit].n_grads : 1;
}

static int array(struct tt_walk *w, int mb, int unit, int k)
{
    return tt_lowering_reduces(&w->in, unit) ? tt_lower_grad(w, mb, unit, k)
                                             : w->unit_grad[(int64_t)mb * w->in.layout->n_units + unit];
}

/* Only the gradients of single microbatches are rounded to bfloat16: a rounded sum would differ in bits from a sum of
 * reduced gradients. Gradients of shared experts were rounded before their ranks added them. */
static bool rounds(const struct tt_layout *layout, int unit, enum tt_dtype reduce_dtype)
{
    return reduce_dtype == TT_BF16 && layout->units[unit].shard_group != TT_GROUP_EFSDP;
}

static int lower_add(struct tt_walk *w, const struct tt_instr *from)
{
    int neighbours[TT_TREE_LEVELS], mb = from->microbatch, unit = from->unit, n;

    tt_lower_await_grads(w, from);
    n = tt_tree_put(tt_lower_block_sums(w, mb, unit), w->block, mb % w->block, mb, neighbours);
    if (n == 0 && !rounds(w->in.layout, unit, w->in.reduce_dtype))
        return 0;
    tt_lower_begin(w, from);
    for (int k = 0; k < n_arrays(w->in.layout, unit); k++) {
        tt_lower_operand(w, array(w, mb, unit, k));
        for (int i = 0; i < n; i++)
            tt_lower_operand(w, array(w, neighbours[i], unit, k));
    }
    return 0;
}

static struct tt_step_call addition(const struct tt_program *program, const struct tt_instr *instr, int k)
{
    int parts = instr->n_operands / n_arrays(program->layout, instr->unit);
    int64_t bytes = program->buffers[program->operands[instr->operands + k * parts]].bytes;

    return (struct tt_step_call){
        .op = TT_STEP_FOLD, .parts = parts, .n = bytes / tt_dtype_sum_bytes(program->param_dtype)};
}

static void cost_of_add(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    for (int k = 0; k < n_arrays(program->layout, instr->unit); k++) {
        struct tt_step_call call = addition(program, instr, k);
        struct tt_cost one = {0};

        tt_step_row(call.op)->cost(&call, &one);
        cost->work.bytes += call.parts > 1 ? one.bytes : 0.0;
    }
}

static int run_add(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_program *program = ex->program;
    const struct tt_instr *instr = &program->instrs[i];
    void *const *address = tt_running_address(ex, instr);

    (void)step;
    for (int k = 0; k < n_arrays(program->layout, instr->unit); k++) {
        struct tt_step_call call = addition(program, instr, k);

        call.sums = &address[k * call.parts];
        if (rounds(program->layout, instr->unit, program->reduce_dtype))
            tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_ROUND_HERE, .out = {call.sums[0]}, .n = call.n});
        if (call.parts > 1)
            tt_running_step(ex, call);
    }
    return 0;
}

const struct tt_instr_row tt_instr_add = {
    .name = "add",
    .part = TT_SPLIT_OTHER,
    .phase = TT_PHASE_SUMS,
    .of_units = true,
    .of_microbatch = true,
    .cost = cost_of_add,
    .lower = lower_add,
    .run = run_add,
};

/* --- the sum over replicas --- */

static int lower_all_reduce(struct tt_walk *w, const struct tt_instr *from)
{
    int64_t staging;
    const struct tt_bucket of = tt_instr_units(w->program->buckets, from);

    tt_lower_collective(w, from, TT_ALL_REDUCE);
    for (int i = 0; i < of.n; i++)
        tt_lower_operand(w, tt_lower_sum(w, of.units[i]));
    staging = w->in.staging(&w->program->instrs[w->program->n_instrs - 1].collective);
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
    return 0;
}

const struct tt_purpose_row tt_purpose_all_reduce = {
    .name = "all-reduce",
    .wait_name = "wait all-reduce",
    .op = TT_ALL_SUM,
    .among = TT_AMONG_REPLICAS,
    .carries = TT_CARRIES_SUMS,
    .lower = lower_all_reduce,
};
