/* SPDX-License-Identifier: MIT
 *
 * The averages of the weights (EMA), after all parameters have their new values.
 */
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

static struct tt_step_call average_of(const struct tt_program *program, const struct tt_instr *instr)
{
    return (struct tt_step_call){.op = TT_STEP_AVERAGE,
                                 .n = program->layout->units[instr->unit].trained_elements,
                                 .dtype = program->shard_dtype};
}

static void cost_of_average(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    struct tt_step_call average = average_of(program, instr);

    tt_step_row(average.op)->cost(&average, &cost->work);
}

void tt_lower_averages(struct tt_walk *w)
{
    const struct tt_layout *layout = w->in.layout;

    for (int u = 0; u < layout->n_units && w->in.averages; u++) {
        const struct tt_instr average = {
            .kind = TT_AVERAGE, .node = TT_NONE, .unit = u, .bucket = TT_NONE, .begin = TT_NONE};

        if (layout->units[u].trained_elements > 0)
            tt_lower_begin(w, &average);
    }
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
    .cost = cost_of_average,
    .run = run_average,
};
