/* SPDX-License-Identifier: MIT
 *
 * The end of a step: the norm of the gradients, the decision whether they are finite, and the update of the parameters.
 */
#include <math.h>

#include "core/optim/optim.h"
#include "core/program/executor.h"
#include "core/program/instr/instr.h"
#include "core/program/internal.h"

/* Adds the finished sum of a unit's gradients as an operand. The instruction ignores the second parts of tied weights,
 * at the end. */
static int lower_of_sum(struct tt_walk *w, const struct tt_instr *from)
{
    tt_lower_begin(w, from);
    tt_lower_operand(w, tt_lower_sum(w, from->unit));
    return 0;
}

/* A part of a unit's finished sum, in elements. */
static int part_of_sum(struct tt_walk *w, int unit, int64_t offset, int64_t n)
{
    return tt_lower_part(w, tt_lower_sum(w, unit), offset * tt_dtype_sum_bytes(w->in.param_dtype),
                         n * tt_dtype_sum_bytes(w->in.param_dtype));
}

/* Gradient k in a unit's finished sum. */
static int grad_of_sum(struct tt_walk *w, int unit, int k)
{
    const struct tt_unit_grad *grad = &w->in.layout->units[unit].grads[k];

    return part_of_sum(w, unit, grad->offset, grad->chunk);
}

/* Adds the two sums over microbatches and ranks that form the gradient of a tied weight. */
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
        int second = grad_of_sum(w, from->unit, k);

        add_sums(w, from, second, grad_of_sum(w, from->unit, tt_layout_grad(layout, unit->grads[k].param, 0)));
    }
    if (unit->shared_grad != TT_NONE) {
        int own = grad_of_sum(w, from->unit, unit->shared_grad);

        add_sums(w, from, tt_lower_exchange_tied(w, from, own), own);
    }
    return lower_of_sum(w, from);
}

/* --- TT_NORM --- */

/* A step op on the trained part of the unit's flat shard, with only the members on which its cost depends. */
static struct tt_step_call of_shard(const struct tt_program *program, const struct tt_instr *instr,
                                    enum tt_step_op_id op)
{
    return (struct tt_step_call){
        .op = op, .n = program->layout->units[instr->unit].trained_elements, .dtype = program->shard_dtype};
}

static struct tt_step_call squares_of(const struct tt_program *program, const struct tt_instr *instr)
{
    return of_shard(program, instr, TT_STEP_SQUARES);
}

static int run_norm(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call squares = squares_of(ex->program, instr);

    (void)step;
    if (ex->observer) {
        int rc = tt_device_synchronize(ex->stream);

        if (rc < 0)
            return rc;
        ex->observer->gradients(ex->observer->arg, instr->unit, tt_running_address(ex, instr)[0]);
    }
    if (tt_unit_replica(ex->program->layout, instr->unit).index > 0)
        return 0; /* only one rank adds each shard to the norm */
    squares.in = tt_running_address(ex, instr)[0];
    squares.out[0] = &ex->state->sums[TT_SUM_SQUARES];
    squares.rows = ex->rows[instr->unit];
    squares.n_rows = ex->program->layout->units[instr->unit].n_trained;
    tt_running_step(ex, squares);
    return 0;
}

const struct tt_instr_row tt_instr_norm = {
    .name = "norm",
    .part = TT_SPLIT_OPTIMIZER,
    .phase = TT_PHASE_UPDATE,
    .of_units = true,
    .step_of = squares_of,
    .lower = lower_norm,
    .run = run_norm,
};

/* --- TT_CLIP --- */

/* All sums travel together, up and down a tree of all ranks. Models with experts have many of them. */
static void cost_of_clip(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    int ranks = program->layout->groups[TT_GROUP_WORLD].n;
    double messages = 2.0 * ceil(log2(ranks)), bytes = (double)sizeof(int64_t) * tt_sums_shared_words(program->layout);

    (void)instr;
    if (ranks > 1)
        *cost = (struct tt_instr_cost){.calls = 1.0, .messages = messages, .link_bytes = messages * bytes};
}

/* Inputs stay in memory until the step is known to be finite, since tt_executor_explain may run it again. */
static int lower_clip(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_program *p = w->program;

    tt_lower_begin(w, from);
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].kind == TT_MEMORY_INPUT)
            p->buffers[b].last = p->n_instrs - 1;
    return 0;
}

/* Takes this rank's sums, except those that another rank contributes as well. Router losses and expert loads always
 * belong to the rank's own rows. */
static int take_sums(struct tt_executor *ex, struct tt_step *step)
{
    const struct tt_layout *layout = ex->program->layout;
    struct tt_exact *sums = ex->sums;
    int rc = 0;

    if (ex->program->logits == TT_NONE) { /* generation has no sums to wait for */
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

/* Sums loss, norm and loads over the ranks. A step can stop only here. */
static int run_clip(struct tt_executor *ex, int i, struct tt_step *step)
{
    struct tt_exact *sums = ex->sums;
    int rc = 0;

    (void)i;
    TT_TRY(take_sums(ex, step));
    if (ex->exchange.sum)
        TT_TRY(ex->exchange.sum(ex->exchange.ctx, (int64_t *)(void *)sums, tt_sums_shared_words(ex->program->layout)));
    step->loss_sum = sums[TT_SUM_LOSS];
    step->loss = tt_exact_value(&sums[TT_SUM_LOSS]) * step->scalars.inv_valid_tokens;
    step->z_loss = tt_exact_value(&sums[TT_SUM_Z_LOSS]) * step->scalars.inv_valid_tokens;
    for (int k = 0; k < TT_ROUTER_LOSSES; k++)
        step->router_losses[k] = tt_exact_value(&sums[TT_SUM_ROUTER + k]) * step->scalars.inv_tokens;
    step->grad_norm = sqrt(tt_exact_value(&sums[TT_SUM_SQUARES]));
    step->scalars.clip = 1.0;
    if (step->max_norm > 0.0 && step->max_norm / (step->grad_norm + 1e-6) < 1.0)
        step->scalars.clip = step->max_norm / (step->grad_norm + 1e-6);
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

/* The update of parameter `first` and those after it with the same optimizer; ret_end: the first parameter after
 * them. */
static struct tt_step_call update_of(const struct tt_program *program, const struct tt_unit *unit, int first,
                                     int *ret_end)
{
    const struct tt_unit_param *params = unit->params;
    int end = first;

    while (end < unit->n_trained && params[end].optim == params[first].optim)
        end++;
    *ret_end = end;
    return (struct tt_step_call){.op = tt_optim_row(params[first].optim)->update,
                                 .n = (end < unit->n_trained ? params[end].offset : unit->trained_elements) -
                                      params[first].offset,
                                 .dtype = program->shard_dtype};
}

static void cost_of_update(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    const struct tt_unit *unit = &program->layout->units[instr->unit];

    for (int k = 0; k < unit->n_trained;) {
        struct tt_step_call update = update_of(program, unit, k, &k);
        struct tt_cost one = {0};

        tt_step_row(update.op)->cost(&update, &one);
        cost->work.bytes += one.bytes;
    }
}

static int run_update(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    const struct tt_unit *unit = &ex->program->layout->units[instr->unit];
    void *sum = tt_running_address(ex, instr)[0];

    for (int first = 0, end; first < unit->n_trained; first = end) {
        struct tt_step_call update = update_of(ex->program, unit, first, &end);

        update.in = update.out[3] = sum;
        update.out[0] = ex->state->array[TT_STATE_PARAM][instr->unit];
        for (int k = 0; k < TT_OPTIM_MOMENTS; k++) {
            bool blocks = tt_optim_row(unit->params[first].optim)->codes[k];

            update.out[1 + k] = ex->state->array[(blocks ? TT_STATE_CODES : TT_STATE_MOMENT) + k][instr->unit];
            update.largest[k] = ex->state->array[TT_STATE_BLOCKS + k][instr->unit];
        }
        update.rows = ex->rows[instr->unit] + first;
        update.n_rows = end - first;
        update.scalars = &step->scalars;
        tt_running_step(ex, update);
    }
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

/*
 * --- Muon: the gather ---
 *
 * The updates of Muon's matrices are all-gathered, every rank orthogonalizes the whole matrices, and each rank updates
 * its part of the parameters. The parts of tensor-parallel ranks are not contiguous in a matrix, so it is assembled
 * first.
 */

static int lower_gather(struct tt_walk *w, const struct tt_instr *from)
{
    int ranks;
    const struct tt_bucket of = tt_instr_units(w->program->buckets, from);

    tt_lower_collective(w, from, TT_GATHER_UPDATES);
    ranks = w->program->instrs[w->program->n_instrs - 1].collective.ranks;
    for (int i = 0; i < of.n; i++) {
        const struct tt_unit *unit = &w->in.layout->units[of.units[i]];

        for (int k = unit->first_matrix; k < unit->n_trained; k++) {
            int whole = tt_lower_made(w, TT_MEMORY_PARAM_GRAD,
                                      ranks * unit->params[k].chunk * tt_dtype_sum_bytes(w->in.param_dtype));

            w->program->buffers[whole].unit = of.units[i];
            w->update[unit->params[k].param] = whole;
            tt_lower_operand(w, whole);
        }
    }
    for (int i = 0; i < of.n; i++) { /* Muon's part of a unit's finished sum contains this rank's part of the updates */
        const struct tt_unit *unit = &w->in.layout->units[of.units[i]];

        tt_lower_operand(
            w, part_of_sum(w, of.units[i], unit->matrices_begin, tt_purpose_elements(unit, TT_GATHER_UPDATES)));
    }
    return 0;
}

const struct tt_purpose_row tt_purpose_gather_updates = {
    .name = "gather updates",
    .wait_name = "wait gather updates",
    .op = TT_ALL_GATHER,
    .among = TT_AMONG_MATRIX,
    .carries = TT_CARRIES_UPDATES,
    .rare = true,
    .lower = lower_gather,
};

/* --- TT_MUON --- */

/* Bytes at the beginning of the scratch memory for the assembled matrix; 0: the gather made it whole. */
static int64_t assembled_bytes(const struct tt_unit_param *param, enum tt_dtype dtype)
{
    return param->blocks ? tt_arena_bytes(param->height * param->width * tt_dtype_sum_bytes(dtype)) : 0;
}

static int lower_muon(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];
    int64_t scratch = 0;

    tt_lower_begin(w, from);
    for (int k = unit->first_matrix; k < unit->n_trained; k++) {
        const struct tt_unit_param *param = &unit->params[k];
        int64_t bytes = assembled_bytes(param, w->in.param_dtype) +
                        tt_orthogonalize_scratch_bytes(param->height, param->width, w->in.threads) *
                            (tt_dtype_sum_bytes(w->in.param_dtype) / (int64_t)sizeof(float));
        int *whole = &w->update[param->param];

        /* without a gather, the finished sum contains the whole matrices */
        tt_lower_operand(w, *whole == TT_NONE ? part_of_sum(w, from->unit, param->offset, param->chunk) : *whole);
        *whole = TT_NONE;
        scratch = bytes > scratch ? bytes : scratch;
    }
    tt_lower_operand(w, tt_lower_made(w, TT_MEMORY_SCRATCH, scratch));
    return 0;
}

static struct tt_step_call orthogonalize_of(const struct tt_program *program, const struct tt_unit_param *param)
{
    return (struct tt_step_call){
        .op = TT_STEP_ORTHOGONALIZE, .n = param->height, .stride = param->width, .parts = program->muon_steps};
}

static void cost_of_muon(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    const struct tt_unit *unit = &program->layout->units[instr->unit];

    for (int k = unit->first_matrix; k < unit->n_trained; k++) {
        struct tt_step_call whole = orthogonalize_of(program, &unit->params[k]);
        struct tt_cost one = {0};

        tt_step_row(whole.op)->cost(&whole, &one);
        cost->work.flops += one.flops;
        cost->work.bytes += one.bytes;
        /* the update of this rank's part */
        cost->work.bytes += (double)unit->params[k].chunk * (double)(2 * (int64_t)tt_dtype_size(program->shard_dtype) +
                                                                     tt_dtype_sum_bytes(program->param_dtype));
        cost->work.bytes +=
            2.0 * (double)assembled_bytes(&unit->params[k], program->param_dtype); /* read and written */
    }
}

static int run_muon(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_program *p = ex->program;
    const struct tt_instr *instr = &p->instrs[i];
    const struct tt_unit *unit = &p->layout->units[instr->unit];
    void *const *address = tt_running_address(ex, instr);
    char *scratch = address[unit->n_trained - unit->first_matrix];

    for (int k = unit->first_matrix; k < unit->n_trained; k++) {
        void *matrix = assembled_bytes(&unit->params[k], p->param_dtype) ? scratch : address[k - unit->first_matrix];
        struct tt_step_call parts = {.op = TT_STEP_ASSEMBLE,
                                     .in = address[k - unit->first_matrix],
                                     .out = {matrix},
                                     .rows = ex->parts[instr->unit][k],
                                     .n_rows = p->layout->groups[TT_GROUP_MATRIX].n};
        struct tt_step_call whole = orthogonalize_of(p, &unit->params[k]);
        struct tt_step_call update = {.op = TT_STEP_MUON_APPLY,
                                      .in = matrix,
                                      .n = unit->params[k].height,
                                      .dtype = p->shard_dtype,
                                      .rows = &ex->rows[instr->unit][k],
                                      .n_rows = 1,
                                      .scalars = &step->scalars};

        if (matrix == scratch)
            tt_running_step(ex, parts);
        whole.out[0] = matrix;
        whole.out[1] = scratch + assembled_bytes(&unit->params[k], p->param_dtype);
        update.out[0] = ex->state->array[TT_STATE_PARAM][instr->unit];
        tt_running_step(ex, whole);
        tt_running_step(ex, update);
    }
    return 0;
}

const struct tt_instr_row tt_instr_muon = {
    .name = "muon",
    .part = TT_SPLIT_OPTIMIZER,
    .phase = TT_PHASE_UPDATE,
    .of_units = true,
    .cost = cost_of_muon,
    .lower = lower_muon,
    .run = run_muon,
};

/* --- TT_AVERAGE: the averages of the weights (EMA), after all parameters have their new values --- */

static struct tt_step_call average_of(const struct tt_program *program, const struct tt_instr *instr)
{
    return of_shard(program, instr, TT_STEP_AVERAGE);
}

static int run_average(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call average = average_of(ex->program, instr);

    average.in = ex->state->array[TT_STATE_PARAM][instr->unit];
    average.out[0] = ex->state->array[TT_STATE_EMA][instr->unit];
    average.scalars = &step->scalars;
    tt_running_step(ex, average);
    return 0;
}

const struct tt_instr_row tt_instr_average = {
    .name = "average",
    .part = TT_SPLIT_OPTIMIZER,
    .phase = TT_PHASE_UPDATE,
    .of_units = true,
    .step_of = average_of,
    .run = run_average,
};
