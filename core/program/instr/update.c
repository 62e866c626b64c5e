/* SPDX-License-Identifier: MIT
 *
 * The end of a step: the norm of the gradients, the decision whether they are finite, and the update of the parameters.
 */
#include <math.h>
#include <string.h>

#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

/*
 * Adds the finished sum of a unit's gradients as an operand. It is as long as the unit's trained parameters: the second
 * parts of tied weights, which follow the others, are left out.
 */
static int lower_of_sum(struct tt_walk *w, const struct tt_instr *from)
{
    tt_lower_begin(w, from);
    tt_lower_operand(w, tt_lower_sum(w, from->unit));
    return 0;
}

/* Part k of a unit's finished sum. */
static int part_of_sum(struct tt_walk *w, int unit, int k)
{
    const struct tt_unit_grad *grad = &w->in.layout->units[unit].grads[k];

    return tt_lower_part(w, tt_lower_sum(w, unit), grad->offset * (int64_t)sizeof(float),
                         grad->chunk * (int64_t)sizeof(float));
}

/* A tied weight's gradient is two sums over microbatches and ranks, which are added here, once. */
static void add_sums(struct tt_walk *w, const struct tt_instr *from, int other, int into)
{
    struct tt_instr fold = *from;

    fold.kind = TT_FOLD;
    tt_lower_begin(w, &fold);
    tt_lower_operand(w, other);
    tt_lower_operand(w, into);
}

static int lower_norm(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_layout *layout = w->in.layout;
    const struct tt_unit *unit = &layout->units[from->unit];

    for (int k = unit->n_trained; k < unit->n_grads; k++) {
        int second = part_of_sum(w, from->unit, k);

        add_sums(w, from, second, part_of_sum(w, from->unit, tt_layout_grad(layout, unit->grads[k].param, 0)));
    }
    if (unit->shared_grad != TT_NONE) {
        int own = part_of_sum(w, from->unit, unit->shared_grad);

        add_sums(w, from, tt_lower_exchange_tied(w, from, own), own);
    }
    return lower_of_sum(w, from);
}

/* --- TT_NORM --- */

/* A step op on the trained part of the unit's flat shard, with the members on which its cost depends. */
static struct tt_step_call of_shard(const struct tt_program *program, const struct tt_instr *instr,
                                    enum tt_step_op_id op)
{
    return (struct tt_step_call){
        .op = op, .n = program->layout->units[instr->unit].trained_elements, .dtype = program->shard_dtype};
}

static void cost_of_norm(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    struct tt_step_call squares = of_shard(program, instr, TT_STEP_SQUARES);

    tt_step_row(squares.op)->cost(&squares, &cost->work);
}

static int run_norm(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call squares = of_shard(ex->program, instr, TT_STEP_SQUARES);

    (void)step;
    if (tt_unit_replica(ex->program->layout, instr->unit).index > 0)
        return 0; /* only one rank adds each shard */
    squares.in = tt_running_address(ex, instr)[0];
    squares.out[0] = &ex->state->sums[TT_SUM_SQUARES];
    squares.rows = ex->rows[instr->unit];
    squares.n_rows = ex->n_rows[instr->unit];
    tt_running_step(ex, squares);
    return 0;
}

const struct tt_instr_row tt_instr_norm = {
    .name = "norm",
    .part = TT_SPLIT_OPTIMIZER,
    .phase = TT_PHASE_UPDATE,
    .of_units = true,
    .cost = cost_of_norm,
    .lower = lower_norm,
    .run = run_norm,
};

/* --- TT_CLIP --- */

/* All sums over all ranks at once, up and down a tree. With experts there are many. */
static void cost_of_clip(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    int ranks = program->layout->groups[TT_GROUP_WORLD].n;
    double messages = 2.0 * ceil(log2(ranks)), bytes = (double)sizeof(int64_t) * tt_sums_shared_words(program->layout);

    (void)instr;
    if (ranks > 1)
        *cost = (struct tt_instr_cost){.calls = 1.0, .messages = messages, .link_bytes = messages * bytes};
}

/* The inputs live until the step is known to be finite, since tt_executor_explain may run it again. */
static int lower_clip(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_program *p = w->program;

    tt_lower_begin(w, from);
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].kind == TT_MEMORY_INPUT)
            p->buffers[b].last = p->n_instrs - 1;
    return 0;
}

/* Gets what this rank has summed. What other ranks add too is left out of the sum over the ranks. Losses of routers and
 * loads of experts are of the rank's own rows. */
static int take_sums(struct tt_executor *ex, struct tt_step *step)
{
    const struct tt_layout *layout = ex->program->layout;
    struct tt_exact *sums = ex->sums;
    int rc = 0;

    if (ex->program->logits == TT_NONE) { /* generation has no sums, and so does not wait */
        tt_device_copy(ex->stream, sums, ex->state->sums, tt_sums_bytes(layout));
        TT_TRY(tt_device_synchronize(ex->stream));
    }
    for (int k = 0; k < TT_SUMS; k++)
        tt_exact_normalize(&sums[k]);
    step->local_loss_sum = tt_exact_value(&sums[TT_SUM_LOSS]);
    step->loads = layout->experts ? tt_sums_loads(sums) : NULL;
    if (!layout->adds_losses)
        sums[TT_SUM_LOSS] = sums[TT_SUM_Z_LOSS] = (struct tt_exact){{0}, 0};
out:
    return rc;
}

/* Sums loss, norm and loads over the ranks. Only here can a step stop. */
static int run_clip(struct tt_executor *ex, int i, struct tt_step *step)
{
    struct tt_exact *sums = ex->sums;
    int rc = 0;

    (void)i;
    TT_TRY(take_sums(ex, step));
    if (ex->exchange.sum)
        TT_TRY(ex->exchange.sum(ex->exchange.ctx, (int64_t *)(void *)sums, tt_sums_shared_words(ex->program->layout)));
    step->loss_sum = sums[TT_SUM_LOSS];
    step->loss = tt_exact_value(&sums[TT_SUM_LOSS]) * (double)step->scalars.inv_valid_tokens;
    step->z_loss = tt_exact_value(&sums[TT_SUM_Z_LOSS]) * (double)step->scalars.inv_valid_tokens;
    for (int k = 0; k < TT_ROUTER_LOSSES; k++)
        step->router_losses[k] = tt_exact_value(&sums[TT_SUM_ROUTER + k]) * (double)step->scalars.inv_tokens;
    step->grad_norm = sqrt(tt_exact_value(&sums[TT_SUM_SQUARES]));
    step->scalars.clip = 1.0f;
    if (step->max_norm > 0.0 && step->max_norm / (step->grad_norm + 1e-6) < 1.0)
        step->scalars.clip = (float)(step->max_norm / (step->grad_norm + 1e-6));
    if (!isfinite(step->loss) || !isfinite(step->z_loss) || !isfinite(step->grad_norm))
        rc = tt_fail(TT_ENONFINITE, "%s is not finite",
                     !isfinite(step->loss)     ? "the loss"
                     : !isfinite(step->z_loss) ? "the z-loss"
                                               : "the gradient norm");
out:
    return rc;
}

const struct tt_instr_row tt_instr_clip = {
    .name = "clip",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_SUMS,
    .decides = true,
    .cost = cost_of_clip,
    .lower = lower_clip,
    .run = run_clip,
};

/* --- TT_OPTIMIZER --- */

/* The two parts of a unit's shard: that of AdamW or Adam, and Muon's. */
static struct tt_step_call of_adam(const struct tt_program *program, const struct tt_instr *instr)
{
    struct tt_step_call update = of_shard(program, instr, TT_STEP_ADAMW);

    update.n = program->layout->units[instr->unit].adam_elements;
    return update;
}

static struct tt_step_call of_muon(const struct tt_program *program, const struct tt_instr *instr)
{
    struct tt_step_call momentum = of_shard(program, instr, TT_STEP_MOMENTUM);

    momentum.n -= program->layout->units[instr->unit].adam_elements;
    return momentum;
}

static void cost_of_update(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    struct tt_step_call update = of_adam(program, instr), momentum = of_muon(program, instr);
    struct tt_cost more = {0};

    tt_step_row(update.op)->cost(&update, &cost->work);
    tt_step_row(momentum.op)->cost(&momentum, &more);
    cost->work.bytes += more.bytes;
}

static int run_update(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call update = of_adam(ex->program, instr), momentum = of_muon(ex->program, instr);
    int u = instr->unit, n_adam = ex->program->layout->units[u].n_adam;
    void *sum = tt_running_address(ex, instr)[0];

    update.in = momentum.out[0] = sum;
    update.out[0] = ex->state->array[TT_STATE_PARAM][u];
    update.out[1] = momentum.out[1] = ex->state->array[TT_STATE_EXP_AVG][u];
    update.out[2] = ex->state->array[TT_STATE_EXP_AVG_SQ][u];
    update.rows = ex->rows[u];
    update.n_rows = n_adam;
    momentum.rows = ex->rows[u] + n_adam;
    momentum.n_rows = ex->n_rows[u] - n_adam;
    update.scalars = momentum.scalars = &step->scalars;
    update.decoupled = step->decoupled;
    if (update.n_rows)
        tt_running_step(ex, update);
    if (momentum.n_rows)
        tt_running_step(ex, momentum);
    return 0;
}

const struct tt_instr_row tt_instr_optimizer = {
    .name = "optimizer",
    .part = TT_SPLIT_OPTIMIZER,
    .phase = TT_PHASE_UPDATE,
    .of_units = true,
    .cost = cost_of_update,
    .lower = lower_of_sum,
    .run = run_update,
};
