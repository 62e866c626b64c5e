/* SPDX-License-Identifier: MIT
 *
 * Muon's matrices: their updates are gathered, orthogonalized as a whole by every rank, and each rank updates its part
 * of the parameters. Parts that ranks of a layer have are not neighbours in the matrix, so it is assembled first.
 */
#include "core/optim/orthogonalize.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

/* --- the gather --- */

/* Muon's part of a unit's finished sum, which is this rank's part of the updates. */
static int own_updates(struct tt_walk *w, int u)
{
    const struct tt_unit *unit = &w->in.layout->units[u];

    return tt_lower_part(w, tt_lower_sum(w, u), unit->adam_elements * (int64_t)sizeof(float),
                         (unit->trained_elements - unit->adam_elements) * (int64_t)sizeof(float));
}

static int lower_gather(struct tt_walk *w, const struct tt_instr *from)
{
    int n, ranks;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    tt_lower_collective(w, from, TT_GATHER_UPDATES);
    ranks = w->program->instrs[w->program->n_instrs - 1].collective.ranks;
    for (int i = 0; i < n; i++) {
        const struct tt_unit *unit = &w->in.layout->units[units[i]];

        for (int k = unit->n_adam; k < unit->n_trained; k++) {
            int whole = tt_lower_made(w, TT_MEMORY_PARAM_GRAD, ranks * unit->params[k].chunk * (int64_t)sizeof(float));

            w->program->buffers[whole].unit = units[i];
            w->update[unit->params[k].param] = whole;
            tt_lower_operand(w, whole);
        }
    }
    for (int i = 0; i < n; i++)
        tt_lower_operand(w, own_updates(w, units[i]));
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

/* Without a gather the finished sum has the whole matrices. */
static int whole_update(struct tt_walk *w, int u, const struct tt_unit_param *param)
{
    if (w->update[param->param] != TT_NONE)
        return w->update[param->param];
    return tt_lower_part(w, tt_lower_sum(w, u), param->offset * (int64_t)sizeof(float),
                         param->chunk * (int64_t)sizeof(float));
}

/* The matrix that is assembled at the begin of the scratch memory; 0: it was gathered whole. */
static int64_t assembled_bytes(const struct tt_unit_param *param)
{
    return param->blocks ? tt_arena_bytes(param->height * param->width * (int64_t)sizeof(float)) : 0;
}

static int64_t scratch_bytes(const struct tt_program *program, const struct tt_unit *unit)
{
    int64_t most = 0;

    for (int k = unit->n_adam; k < unit->n_trained; k++) {
        const struct tt_unit_param *param = &unit->params[k];
        int64_t bytes =
            assembled_bytes(param) + tt_orthogonalize_scratch_bytes(param->height, param->width, program->threads);

        most = bytes > most ? bytes : most;
    }
    return most;
}

static int lower_muon(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];

    tt_lower_begin(w, from);
    for (int k = unit->n_adam; k < unit->n_trained; k++) {
        tt_lower_operand(w, whole_update(w, from->unit, &unit->params[k]));
        w->update[unit->params[k].param] = TT_NONE;
    }
    tt_lower_operand(w, tt_lower_made(w, TT_MEMORY_SCRATCH, scratch_bytes(w->program, unit)));
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

    for (int k = unit->n_adam; k < unit->n_trained; k++) {
        struct tt_step_call whole = orthogonalize_of(program, &unit->params[k]);
        struct tt_cost one = {0};

        tt_step_row(whole.op)->cost(&whole, &one);
        cost->work.flops += one.flops;
        cost->work.bytes += one.bytes;
        /* the update of this rank's part */
        cost->work.bytes +=
            (double)unit->params[k].chunk * (double)(2 * tt_dtype_size(program->shard_dtype) + sizeof(float));
        cost->work.bytes += 2.0 * (double)assembled_bytes(&unit->params[k]); /* read and written */
    }
}

static int run_muon(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_program *p = ex->program;
    const struct tt_instr *instr = &p->instrs[i];
    const struct tt_unit *unit = &p->layout->units[instr->unit];
    void *const *address = tt_running_address(ex, instr);
    char *scratch = address[unit->n_trained - unit->n_adam];

    for (int k = unit->n_adam; k < unit->n_trained; k++) {
        void *matrix = assembled_bytes(&unit->params[k]) ? scratch : address[k - unit->n_adam];
        struct tt_step_call parts = {.op = TT_STEP_ASSEMBLE,
                                     .in = address[k - unit->n_adam],
                                     .out = {matrix},
                                     .rows = ex->parts[instr->unit][k],
                                     .n_rows = p->layout->groups[TT_GROUP_MATRIX].n};
        struct tt_step_call whole = orthogonalize_of(p, &unit->params[k]);
        struct tt_step_call update = {.op = TT_STEP_MUON,
                                      .in = matrix,
                                      .n = unit->params[k].height,
                                      .dtype = p->shard_dtype,
                                      .rows = &ex->rows[instr->unit][k],
                                      .n_rows = 1,
                                      .scalars = &step->scalars};

        if (matrix == scratch)
            tt_running_step(ex, parts);
        whole.out[0] = matrix;
        whole.out[1] = scratch + assembled_bytes(&unit->params[k]);
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
