/* SPDX-License-Identifier: MIT
 *
 * The instructions of microbatches: to run a node of the graph, and to add the loss.
 */
#include <stdio.h>

#include "core/ops/experts/experts.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "core/program/instr/instr.h"
#include "core/program/internal.h"

/* --- TT_RUN --- */

static enum tt_split_part part_of_node(const struct tt_program *program, const struct tt_instr *instr)
{
    static const enum tt_split_part of_op[] = {[TT_PART_OTHER] = TT_SPLIT_OTHER,
                                               [TT_PART_GEMM] = TT_SPLIT_GEMM,
                                               [TT_PART_ATTENTION] = TT_SPLIT_ATTENTION,
                                               [TT_PART_NORM] = TT_SPLIT_NORMS,
                                               [TT_PART_HEAD] = TT_SPLIT_HEAD};

    return of_op[tt_op_row(tt_instr_node(program, instr)->op)->part];
}

enum tt_phase tt_phase_of_node(const struct tt_program *program, const struct tt_instr *instr)
{
    return tt_instr_node(program, instr)->backward ? TT_PHASE_BACKWARD : TT_PHASE_FORWARD;
}

const char *tt_op_of_node(const struct tt_program *program, const struct tt_instr *instr)
{
    return tt_op_row(tt_instr_node(program, instr)->op)->name;
}

void tt_name_of_node(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out)
{
    const struct tt_node *node = tt_instr_node(program, instr);

    tt_text_add(out, " %s (%s)", tt_instr_graph(program, instr)->values[node->out[0]].name, tt_op_row(node->op)->name);
}

static void cost_of_node(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    const struct tt_node *node = tt_instr_node(program, instr);

    tt_op_cost(tt_instr_graph(program, instr), node, &cost->work);
}

/* Whether input i is absent: an optional input, or, in the first microbatch, a carried gradient. */
static bool is_absent(const struct tt_walk *w, const struct tt_instr *from, int i)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    int id = graph->nodes[from->node].in[i];
    const struct tt_value *value = id == TT_NONE ? NULL : &graph->values[id];

    return !value || (from->microbatch == 0 && value->kind == TT_VALUE_PARAM_GRAD && value->producer == TT_NONE);
}

int tt_lower_inputs(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];

    for (int i = 0; i < node->n_in; i++) {
        bool absent = is_absent(w, from, i);
        int buffer = absent ? TT_NONE : tt_lower_input(w, from, node->in[i]);

        if (buffer == TT_NONE && !absent)
            return tt_fail(TT_EINTERNAL, "the schedule runs %s on '%s' before that value exists",
                           tt_op_row(node->op)->name, graph->values[node->in[i]].name);
        tt_lower_operand(w, buffer);
    }
    return 0;
}

void tt_lower_await_inputs(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_node *node = &tt_lower_graph(w, from)->nodes[from->node];
    const struct tt_op_row *row = tt_op_row(node->op);

    for (int i = 0; i < node->n_in && w->n_exchanging > 0; i++) {
        bool overwritten = false;

        if (is_absent(w, from, i))
            continue;
        for (int k = 0; k < node->n_out; k++)
            overwritten = overwritten || row->alias[k] == i + 1;
        overwritten =
            overwritten && w->last_reader[tt_lower_slot(w, from->microbatch, from->stage, node->in[i])] == w->at;
        tt_lower_await(w, tt_lower_input(w, from, node->in[i]), overwritten);
    }
}

static int lower_run(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];
    const struct tt_op_row *row = tt_op_row_of(graph, node);
    int64_t scratch = row->scratch_bytes ? row->scratch_bytes(graph, node, w->in.threads) : 0;
    int rc = 0;

    if (row->exchange != TT_EXCHANGE_NONE)
        return tt_lower_exchange(w, from);
    if (tt_node_routes(graph, from->node, &(struct tt_routed){0}))
        return tt_lower_experts(w, from);
    tt_lower_await_inputs(w, from);
    tt_lower_begin(w, from);
    TT_TRY(tt_lower_inputs(w, from));
    for (int k = 0; k < node->n_out; k++)
        tt_lower_operand(w, tt_lower_output(w, from, k));
    tt_lower_operand(w, scratch ? tt_lower_made(w, TT_MEMORY_SCRATCH, scratch) : TT_NONE);
out:
    return rc;
}

/* The order must not depend on when this rank computes microbatches and stages. */
int64_t tt_running_order(const struct tt_executor *ex, const struct tt_instr *instr)
{
    enum { STAGES = 1 << 16 };
    int stage = ex->program->stages[instr->stage].number;

    return (int64_t)instr->microbatch * 2 * STAGES +
           (tt_instr_node(ex->program, instr)->backward ? 2 * STAGES - 1 - stage : stage);
}

void tt_running_examine(struct tt_executor *ex, const struct tt_instr *instr, const struct tt_call *call)
{
    int64_t order = tt_running_order(ex, instr);

    for (int k = 0; k < call->node->n_out && order < ex->bad->order; k++) {
        const struct tt_value *value = tt_call_out(call, k);

        if (tt_running_all_finite(value->dtype, call->out[k], tt_value_elements(value)))
            continue;
        ex->bad->order = order;
        (void)snprintf(ex->bad->name, sizeof ex->bad->name, "%s of microbatch %d", value->name, instr->microbatch);
    }
}

struct tt_call tt_running_call(const struct tt_executor *ex, const struct tt_instr *instr, const struct tt_step *step)
{
    const struct tt_node *node = tt_instr_node(ex->program, instr);
    void *const *address = tt_running_address(ex, instr);
    struct tt_call call = {.graph = tt_instr_graph(ex->program, instr),
                           .node = node,
                           .scalars = &step->scalars,
                           .microbatch = ex->microbatches ? ex->microbatches[instr->microbatch] : instr->microbatch,
                           .team = ex->team};

    for (int k = 0; k < node->n_in; k++)
        call.in[k] = address[k];
    for (int k = 0; k < node->n_out; k++)
        call.out[k] = address[node->n_in + k];
    call.scratch = address[node->n_in + node->n_out];
    return call;
}

static int run_node(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_call call = tt_running_call(ex, instr, step);
    int rc = 0;

    tt_device_launch(ex->stream, &call);
    if (ex->bad) {
        TT_TRY(tt_device_synchronize(ex->stream));
        tt_running_examine(ex, instr, &call);
    }
    if (ex->observer && ex->observer->value) {
        TT_TRY(tt_device_synchronize(ex->stream));
        for (int k = 0; k < call.node->n_out; k++)
            if (call.node->out[k] != call.graph->token_loss) /* which several nodes may write */
                ex->observer->value(ex->observer->arg, call.graph, call.node->out[k], instr->microbatch, call.out[k]);
    }
out:
    return rc;
}

const struct tt_instr_row tt_instr_run = {
    .name = "run",
    .of_microbatch = true,
    .part_of = part_of_node,
    .phase_of = tt_phase_of_node,
    .op_of = tt_op_of_node,
    .subject = tt_name_of_node,
    .cost = cost_of_node,
    .lower = lower_run,
    .run = run_node,
};

/* --- TT_LOSS --- */

/* The value that contains the losses of all tokens and, if there is a second row, their z-losses. */
static const struct tt_value *losses(const struct tt_program *program, const struct tt_instr *instr)
{
    const struct tt_graph *graph = tt_instr_graph(program, instr);

    return &graph->values[graph->token_loss];
}

/* The sum of a row. */
static struct tt_step_call sum_of_losses(const struct tt_program *program, const struct tt_instr *instr)
{
    return (struct tt_step_call){.op = TT_STEP_SUM, .n = tt_value_width(losses(program, instr))};
}

static void cost_of_loss(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    struct tt_step_call sum = sum_of_losses(program, instr);

    sum.n = tt_value_elements(losses(program, instr));
    tt_step_row(sum.op)->cost(&sum, &cost->work);
}

static int lower_loss(struct tt_walk *w, const struct tt_instr *from)
{
    int losses = tt_lower_input(w, from, tt_lower_graph(w, from)->token_loss);

    tt_lower_await(w, losses, false);
    tt_lower_begin(w, from);
    tt_lower_operand(w, losses);
    return 0;
}

static int run_loss(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call sum = sum_of_losses(ex->program, instr);
    int rc = 0;

    (void)step;
    if (ex->observer && ex->observer->value) {
        const struct tt_graph *graph = tt_instr_graph(ex->program, instr);

        TT_TRY(tt_device_synchronize(ex->stream));
        ex->observer->value(ex->observer->arg, graph, graph->token_loss, instr->microbatch,
                            tt_running_address(ex, instr)[0]);
    }
    sum.in = tt_running_address(ex, instr)[0];
    sum.out[0] = &ex->state->sums[TT_SUM_LOSS];
    tt_running_step(ex, sum);
    if (losses(ex->program, instr)->ndim == 2) {
        sum.in = (const char *)sum.in + sum.n * tt_dtype_sum_bytes(ex->program->param_dtype);
        sum.out[0] = &ex->state->sums[TT_SUM_Z_LOSS];
        tt_running_step(ex, sum);
    }
out:
    return rc;
}

const struct tt_instr_row tt_instr_loss = {
    .name = "loss",
    .part = TT_SPLIT_HEAD,
    .phase = TT_PHASE_SUMS,
    .of_microbatch = true,
    .cost = cost_of_loss,
    .lower = lower_loss,
    .run = run_loss,
};
