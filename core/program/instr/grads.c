/* SPDX-License-Identifier: MIT
 *
 * Gradients: reduced over the shard ranks, added over microbatches, and summed over the replicas.
 *
 * The gradient sum over microbatches is a balanced binary tree (core/math/tree.h), into which microbatches may come in
 * any order. Each may be reduced before it is added (TT_FOLD). Or blocks of them are added first, as whole gradients
 * (TT_ADD), and their sums are reduced. Blocks of a power of two are complete subtrees, so the bits are the same.
 */
#include "core/math/tree.h"
#include "core/ops/step/mixed.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

/* --- the reduce-scatter of one microbatch, or of a block of them --- */

/* The microbatch that has in its buffers what is reduced with microbatch mb. */
static int sum_owner(const struct tt_walk *w, int mb, int unit)
{
    return w->block > 1 ? tt_tree_root(tt_lower_block_sums(w, mb, unit)) : mb;
}

static int unit_grad(const struct tt_walk *w, int mb, int unit)
{
    return w->unit_grad[tt_lower_grad_owner(w, sum_owner(w, mb, unit)) * w->in.layout->n_units + unit];
}

/* Nothing is exchanged, but what would travel is rounded. */
static void lower_rounding(struct tt_walk *w, const struct tt_instr *from)
{
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    tt_lower_collective(w, from, TT_REDUCE);
    for (int i = 0; i < n; i++)
        w->begun[TT_REDUCE][units[i]] = TT_NONE; /* it is complete at once */
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, unit_grad(w, from->microbatch, units[i]));
}

static int lower_reduce(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_layout *layout = w->in.layout;
    int64_t staging;
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    if (!tt_lowering_reduces(&w->in, from->unit)) {
        lower_rounding(w, from);
        return 0;
    }
    tt_lower_collective(w, from, TT_REDUCE);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < layout->units[units[i]].n_grads; k++)
            tt_lower_operand(w, tt_lower_grad(w, sum_owner(w, from->microbatch, units[i]), units[i], k));
    for (int i = 0; i < n; i++) {
        int result = tt_lower_made(w, TT_MEMORY_GRAD, layout->units[units[i]].grad_elements * (int64_t)sizeof(float));

        w->program->buffers[result].unit = units[i];
        tt_lower_operand(w, result);
    }
    staging = w->in.staging(&w->program->instrs[w->program->n_instrs - 1].collective);
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
    return 0;
}

/* Puts the gradient of a block into the tree, and adds the sums that now have a neighbour. */
static void add_leaf(struct tt_walk *w, int mb, int unit, int leaf)
{
    const struct tt_instr fold = {
        .kind = TT_FOLD, .microbatch = mb, .node = TT_NONE, .unit = unit, .bucket = TT_NONE, .begin = TT_NONE};
    int neighbours[TT_TREE_LEVELS];
    int n =
        tt_tree_put(tt_lower_partial(w, unit), w->n_leaves, tt_lower_grad_owner(w, mb) / w->block, leaf, neighbours);

    if (n == 0)
        return;
    tt_lower_begin(w, &fold);
    tt_lower_operand(w, leaf);
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, neighbours[i]);
}

static int add_leaves(struct tt_walk *w, const struct tt_instr *from, int begin)
{
    const struct tt_program *p = w->program;
    int n, results = 0;
    const int *units = tt_instr_units(p->buckets, from, &n);

    if (begin != TT_NONE)
        results = p->instrs[begin].operands + p->instrs[begin].n_operands - 1 - n; /* one per unit, then staging */
    for (int i = 0; i < n; i++)
        add_leaf(w, from->microbatch, units[i],
                 begin == TT_NONE ? unit_grad(w, from->microbatch, units[i]) : p->operands[results + i]);
    return 0;
}

static void narrow_grads(struct tt_executor *ex, const struct tt_instr *begin)
{
    void *const *address = tt_running_address(ex, begin);
    int n;
    const int *units = tt_instr_units(ex->program->buckets, begin, &n);

    if (begin->collective.dtype != TT_BF16)
        return;
    if (tt_collective_travels(&begin->collective)) {
        tt_running_each_whole(ex, begin, TT_STEP_NARROW);
        return;
    }
    for (int u = 0; u < n; u++)
        tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_ROUND_HERE,
                                                  .out = {address[u]},
                                                  .n = ex->program->layout->units[units[u]].grad_elements});
}

/* Gradients in bfloat16 have arrived unchanged, one member's after another's, and are added here. */
static void fold_grads(struct tt_executor *ex, const struct tt_instr *begin)
{
    void *const *address = tt_running_address(ex, begin);
    int n, staging = begin->n_operands - 1;
    const int *units = tt_instr_units(ex->program->buckets, begin, &n);
    int64_t stride = begin->collective.bytes / (int64_t)sizeof(uint16_t), before = 0;

    if (begin->collective.dtype != TT_BF16)
        return;
    for (int u = 0; u < n; u++) {
        int64_t elements = ex->program->layout->units[units[u]].grad_elements;

        tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_FOLD_HALVES,
                                                  .in = (const uint16_t *)address[staging] + before,
                                                  .parts = begin->collective.ranks,
                                                  .stride = stride,
                                                  .n = elements,
                                                  .out = {address[staging - n + u]}});
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

    return (struct tt_step_call){.op = TT_STEP_FOLD, .parts = instr->n_operands, .n = bytes / (int64_t)sizeof(float)};
}

static void cost_of_fold(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    struct tt_step_call fold = fold_of(program, instr);

    tt_step_row(fold.op)->cost(&fold, &cost->work);
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
    .cost = cost_of_fold,
    .run = run_fold,
};

/* --- TT_ADD --- */

/* The arrays in which a unit's gradients of a microbatch are: one each, or one for all if nothing is reduced. */
static int n_arrays(const struct tt_layout *layout, int unit)
{
    return tt_unit_shard(layout, unit).n > 1 ? layout->units[unit].n_grads : 1;
}

static int array(struct tt_walk *w, int mb, int unit, int k)
{
    return tt_lowering_reduces(&w->in, unit) ? tt_lower_grad(w, mb, unit, k)
                                             : w->unit_grad[(int64_t)mb * w->in.layout->n_units + unit];
}

/* Sums in bfloat16 would have other bits than those of reduced gradients, so only each microbatch is rounded; those of
 * experts that are shared were, before their ranks added them. */
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

    return (struct tt_step_call){.op = TT_STEP_FOLD, .parts = parts, .n = bytes / (int64_t)sizeof(float)};
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
    int n;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    tt_lower_collective(w, from, TT_ALL_REDUCE);
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, tt_lower_sum(w, units[i]));
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
