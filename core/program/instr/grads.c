/* SPDX-License-Identifier: MIT
 *
 * Gradients: reduced over the shard ranks, added over microbatches, and summed over the replicas.
 *
 * The gradient sum over microbatches is a balanced binary tree (core/math/tree.h). A partial sum is identified by its
 * place in the tree, (level, index): it is the sum of the 2^level microbatches from index * 2^level on. So the order in
 * which microbatches arrive decides when sums are added, but not which.
 */
#include "core/ops/step/mixed.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lowering.h"

/* --- the reduce-scatter of one microbatch --- */

static int unit_grad(const struct tt_walk *w, int mb, int unit)
{
    return w->unit_grad[tt_lower_grad_owner(w, mb) * w->in.layout->n_units + unit];
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
            tt_lower_operand(w, tt_lower_grad(w, from->microbatch, units[i], k));
    for (int i = 0; i < n; i++) {
        int result = tt_lower_made(w, TT_MEMORY_GRAD, layout->units[units[i]].grad_elements * (int64_t)sizeof(float));

        w->program->buffers[result].unit = units[i];
        tt_lower_operand(w, result);
    }
    staging = w->in.staging(&w->program->instrs[w->program->n_instrs - 1].collective);
    tt_lower_operand(w, staging ? tt_lower_made(w, TT_MEMORY_STAGING, staging) : TT_NONE);
    return 0;
}

/*
 * Puts a microbatch's gradient of a unit into the tree. Then adds, level by level, the sums that now have a neighbour.
 * A node without a neighbour, since the microbatches end before it, becomes its parent.
 */
static void add_leaf(struct tt_walk *w, int mb, int unit, int leaf)
{
    const struct tt_instr fold = {
        .kind = TT_FOLD, .microbatch = mb, .node = TT_NONE, .unit = unit, .bucket = TT_NONE, .begin = TT_NONE};
    int *sums = &w->partial[(int64_t)unit * 2 * w->most_leaves];
    int node = w->most_leaves + (int)tt_lower_grad_owner(w, mb), n = 0;
    int neighbours[TT_MOST_LEVELS], into = leaf;

    for (int level = 0; node > 1; node /= 2, level++) {
        int neighbour = node ^ 1;

        if ((neighbour << level) - w->most_leaves >= w->n_leaves)
            continue;
        if (sums[neighbour] == TT_NONE)
            break;
        neighbours[n++] = sums[neighbour];
    }
    if (n) {
        tt_lower_begin(w, &fold);
        tt_lower_operand(w, leaf);
        for (int i = 0; i < n; i++)
            tt_lower_operand(w, neighbours[i]);
        into = neighbours[n - 1];
    }
    sums[node] = into;
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
