/* SPDX-License-Identifier: MIT
 *
 * The loads of experts: how many slots each expert of each layer got in the step. They are integers, so their sums do
 * not depend on the layout. A router is counted where it runs in the forward pass, and not where it is recomputed. And
 * what follows from them: the update of the biases.
 */
#include "core/ops/op.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

/* The value with the experts of the tokens. */
static const struct tt_value *experts_of(const struct tt_program *program, const struct tt_instr *instr)
{
    int value = program->buffers[program->operands[instr->operands]].value;

    return &tt_instr_graph(program, instr)->values[value];
}

static struct tt_step_call call_of(const struct tt_program *program, const struct tt_instr *instr)
{
    return (struct tt_step_call){.op = TT_STEP_COUNT, .n = tt_value_elements(experts_of(program, instr))};
}

static void cost_of_count(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    struct tt_step_call count = call_of(program, instr);

    tt_step_row(count.op)->cost(&count, &cost->work);
}

static void name_of_value(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out)
{
    tt_text_add(out, " %s", experts_of(program, instr)->name);
}

static int lower_count(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_router_counted counted;
    struct tt_instr count = *from;

    (void)tt_node_counted(tt_lower_graph(w, from), from->node, &counted);
    count.node = TT_NONE; /* which is of instructions that run a node */
    tt_lower_begin(w, &count);
    tt_lower_operand(w, tt_lower_input(w, from, counted.ids));
    tt_lower_operand(w, counted.losses == TT_NONE ? TT_NONE : tt_lower_input(w, from, counted.losses));
    return 0;
}

/* Adds the terms of the router's losses. */
static void add_losses(struct tt_executor *ex, const float *losses, int64_t tokens)
{
    for (int k = 0; k < TT_ROUTER_LOSSES; k++)
        tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_SUM,
                                                  .n = tokens,
                                                  .in = losses + k * tokens,
                                                  .out = {&ex->state->sums[TT_SUM_ROUTER + k]}});
}

static int run_count(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call count = call_of(ex->program, instr);
    int producer = experts_of(ex->program, instr)->producer;
    int layer = tt_instr_graph(ex->program, instr)->nodes[producer].block;

    (void)step;
    count.in = tt_running_address(ex, instr)[0];
    count.out[0] = tt_sums_loads(ex->state->sums) + (int64_t)layer * ex->program->layout->experts;
    tt_running_step(ex, count);
    if (tt_running_address(ex, instr)[1])
        add_losses(ex, tt_running_address(ex, instr)[1], tt_value_rows(experts_of(ex->program, instr)));
    return 0;
}

const struct tt_instr_row tt_instr_count = {
    .name = "count",
    .part = TT_SPLIT_OTHER,
    .phase = TT_PHASE_SUMS,
    .of_microbatch = true,
    .cost = cost_of_count,
    .subject = name_of_value,
    .lower = lower_count,
    .run = run_count,
};

/* --- TT_BALANCE --- */

static struct tt_step_call balance_of(const struct tt_program *program)
{
    return (struct tt_step_call){.op = TT_STEP_BALANCE, .n = program->layout->experts};
}

static void cost_of_balance(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    struct tt_step_call balance = balance_of(program);

    tt_step_row(balance.op)->cost(&balance, &cost->work);
    cost->work.bytes *= program->layout->units[instr->unit].n_params;
}

static int lower_balance(struct tt_walk *w, const struct tt_instr *from)
{
    tt_lower_begin(w, from);
    return 0;
}

/* The loads of all ranks are on the host, where they were added. */
static int run_balance(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_layout *layout = ex->program->layout;
    int unit = ex->program->instrs[i].unit;

    tt_device_copy(ex->stream, ex->state->sums, ex->sums, tt_sums_bytes(layout));
    for (int k = 0; k < layout->units[unit].n_params; k++) {
        const struct tt_unit_param *place = &layout->units[unit].params[k];
        struct tt_step_call balance = balance_of(ex->program);

        balance.in = tt_sums_loads(ex->state->sums) + (int64_t)place->block * layout->experts;
        balance.out[0] = (float *)ex->state->array[TT_STATE_PARAM][unit] + place->offset;
        balance.scalars = &step->scalars;
        tt_running_step(ex, balance);
    }
    return 0;
}

const struct tt_instr_row tt_instr_balance = {
    .name = "balance",
    .part = TT_SPLIT_OPTIMIZER,
    .phase = TT_PHASE_UPDATE,
    .of_units = true,
    .cost = cost_of_balance,
    .lower = lower_balance,
    .run = run_balance,
};
