/* SPDX-License-Identifier: MIT
 *
 * The instructions of microbatches: to run a node of the graph, and to add the loss.
 */
#include <math.h>
#include <stdio.h>

#include "core/graph/pieces.h"
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

/* For rows of instructions that run a node: forward or backward; the text " layers.3.attention.o (linear)". */
static enum tt_phase node_phase(const struct tt_program *program, const struct tt_instr *instr)
{
    return tt_instr_node(program, instr)->backward ? TT_PHASE_BACKWARD : TT_PHASE_FORWARD;
}

static const char *node_op(const struct tt_program *program, const struct tt_instr *instr)
{
    return tt_op_row(tt_instr_node(program, instr)->op)->name;
}

static void add_node(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out)
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

/* Bytes of a row that is exchanged. */
static int64_t row_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[0]];

    return tt_value_width(x) * (int64_t)tt_dtype_size(x->dtype);
}

static int64_t window_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_arena_bytes(node->attr.window * row_bytes(graph, node));
}

/* Adds the instruction for a node whose experts are shared by ranks. */
static int lower_experts(struct tt_walk *w, const struct tt_instr *from)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];
    struct tt_place place = w->in.layout->groups[TT_GROUP_EP];
    struct tt_instr instr = *from;
    struct tt_routed routed;
    int rc = 0;

    (void)tt_node_routes(graph, from->node, &routed);
    if (node->attr.peers.n != place.n || node->attr.peers.index != place.index)
        return tt_fail(TT_EINTERNAL, "experts are divided as on rank %d of %d, but this is rank %d of %d in %s",
                       node->attr.peers.index, node->attr.peers.n, place.index, place.n, tt_group_name(TT_GROUP_EP));
    tt_lower_await_inputs(w, from);
    instr.kind = TT_EXPERTS;
    tt_lower_begin(w, &instr);
    TT_TRY(tt_lower_inputs(w, from));
    for (int k = 0; k < node->n_out; k++)
        tt_lower_operand(w, tt_lower_output(w, from, k));
    tt_lower_operand(w, tt_lower_made(w, TT_MEMORY_SCRATCH,
                                      routed.n_in * window_bytes(graph, node) +
                                          tt_op_row_of(graph, node)->scratch_bytes(graph, node, w->in.threads)));
out:
    return rc;
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
        return lower_experts(w, from);
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

/* In explain: notes the node's first output that contains a value that is not finite. The stream must have run the
 * node. */
static void examine(struct tt_executor *ex, const struct tt_instr *instr, const struct tt_call *call)
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

/* The run of an instruction's node, with operands as for TT_RUN. */
static struct tt_call node_call(const struct tt_executor *ex, const struct tt_instr *instr, const struct tt_step *step)
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
    struct tt_call call = node_call(ex, instr, step);
    int rc = 0;

    tt_device_launch(ex->stream, &call);
    if (ex->bad) {
        TT_TRY(tt_device_synchronize(ex->stream));
        examine(ex, instr, &call);
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
    .phase_of = node_phase,
    .op_of = node_op,
    .subject = add_node,
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

/* TT_EXPERTS: a node on the rows of all ranks that share experts. Each rank tells the others how many rows it has for
 * each expert and grain. Then, round by round (core/program/routing.h), rows go to the ranks of their experts, the node
 * runs on the rows that have arrived, and its output returns to the ranks that sent the rows.
 *
 * The operands are those of TT_RUN. Scratch begins with the windows, one for each input that travels; the output takes
 * the first window. All ranks of a group run these instructions in the same order, so one tag suffices. */

struct tt_routing_ranks tt_node_routing_ranks(const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;

    return (struct tt_routing_ranks){.n = attr->peers.n,
                                     .index = attr->peers.index,
                                     .experts = attr->experts,
                                     .blocks = tt_parts_blocks(&attr->parts),
                                     .grains = tt_parts_grains(&attr->parts)};
}

int64_t tt_node_routed_bytes(const struct tt_graph *graph, int node)
{
    const struct tt_node *of = &graph->nodes[node];
    struct tt_routed routed;

    if (!tt_node_routes(graph, node, &routed))
        return 0;
    return (routed.n_in + 1) * tt_value_bytes(&graph->values[of->in[0]]) / of->attr.peers.n * (of->attr.peers.n - 1);
}

/* In the worst case all rows of this rank leave it, and all tokens of the other ranks choose experts of this rank. Any
 * two successive rounds together carry more rows than one window holds, since a round ends only when the next pair does
 * not fit. */
struct tt_routed_most tt_node_routed_most(const struct tt_graph *graph, int node)
{
    const struct tt_node *of = &graph->nodes[node];
    int64_t ranks = of->attr.peers.n, own, k = of->attr.top_k, rows, here;
    struct tt_routed_most most = {0};
    struct tt_routed routed;
    double all, rounds;

    if (!tt_node_routes(graph, node, &routed))
        return most;
    own = of->attr.experts / ranks;
    rows = tt_value_rows(&graph->values[of->in[0]]);
    here = (ranks - 1) * rows / k * (k < own ? k : own);
    all = (double)here * (double)ranks / (double)(ranks - 1);
    rounds = fmax(1.0, ceil(2.0 * all / (double)of->attr.window));
    most.bytes = (routed.n_in * rows + here) * row_bytes(graph, of);
    most.rows = fmax(1.0, all / (double)rows);
    most.calls = 1.0 + 2.0 * rounds;
    most.messages = most.calls * (double)(ranks - 1);
    most.link_bytes = (double)((routed.n_in + 1) * here * row_bytes(graph, of));
    return most;
}

int64_t tt_program_routed_bytes(const struct tt_program *program, int64_t *ret_most)
{
    int64_t bytes = 0;

    *ret_most = 0;
    for (int i = 0; i < program->n_instrs; i++) {
        const struct tt_instr *instr = &program->instrs[i];
        int64_t routed = instr->node == TT_NONE ? 0 : tt_node_routed_bytes(tt_instr_graph(program, instr), instr->node);
        struct tt_routing_ranks ranks;
        int64_t counts;

        if (routed == 0)
            continue;
        ranks = tt_node_routing_ranks(tt_instr_node(program, instr));
        counts = (int64_t)sizeof(int32_t) * (ranks.n - 1) * tt_routing_ends(&ranks);
        bytes += counts + routed;
        *ret_most += counts + tt_node_routed_most(tt_instr_graph(program, instr), instr->node).bytes;
    }
    return bytes;
}

static void cost_of_experts(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    const struct tt_graph *graph = tt_instr_graph(program, instr);
    const struct tt_node *node = tt_instr_node(program, instr);

    tt_op_cost(graph, node, &cost->work);
    cost->calls = TT_ROUTED_CALLS;
    cost->messages = TT_ROUTED_CALLS * (node->attr.peers.n - 1);
    cost->link_bytes = (double)tt_node_routed_bytes(graph, instr->node);
}

/* Exchanges rows; meanwhile this rank copies the rows that stay. */
static int swap(struct tt_executor *ex, const struct tt_swap_list *give, const struct tt_swap_list *take)
{
    const struct tt_routing *r = &ex->routing;
    int from = 0, to = 0, rc = 0;

    TT_TRY(ex->exchange.swap_begin(ex->exchange.ctx, give, take));
    for (int rank = 0; rank < r->ranks.index; rank++) {
        from += give->n[rank];
        to += take->n[rank];
    }
    for (int i = 0; i < give->n[r->ranks.index]; i++)
        tt_device_copy(ex->stream, take->segments[to + i].data, give->segments[from + i].data,
                       give->segments[from + i].bytes);
    TT_TRY(tt_device_synchronize(ex->stream));
    TT_TRY(ex->exchange.swap_wait(ex->exchange.ctx));
out:
    return rc;
}

static int run_rounds(struct tt_executor *ex, const struct tt_instr *instr, struct tt_call *call,
                      const struct tt_routed *routed)
{
    const struct tt_node *node = tt_instr_node(ex->program, instr);
    const struct tt_routing_ranks ranks = tt_node_routing_ranks(node);
    struct tt_routing *r = &ex->routing;
    int64_t row = row_bytes(call->graph, node), window = window_bytes(call->graph, node);
    char *scratch = call->scratch;
    struct tt_routed_rows in[2], out = {call->out[routed->out], scratch, row};
    int n_ends = tt_routing_ends(&ranks), rc = 0;
    size_t ends_bytes = (size_t)n_ends * sizeof *r->ends;

    for (int i = 0; i < routed->n_in; i++, scratch += window) {
        in[i] = (struct tt_routed_rows){call->in[routed->in[i]], scratch, row};
        call->in[routed->in[i]] = scratch;
    }
    call->out[routed->out] = out.window;
    call->scratch = scratch;
    tt_routing_begin(r, &ranks, node->attr.window);
    for (int rank = 0; rank < ranks.n; rank++) { /* every rank gets the ends of all ranks */
        r->there.segments[rank] = (struct tt_segment){call->in[routed->ends], ends_bytes};
        r->back.segments[rank] = (struct tt_segment){r->ends + (int64_t)rank * n_ends, ends_bytes};
        r->there.n[rank] = r->back.n[rank] = 1;
    }
    TT_TRY(swap(ex, &r->there, &r->back));
    call->in[routed->ends] = r->pairs;
    while (tt_routing_next(r)) { /* the rows go to their experts, the node runs, and its output comes back */
        tt_routing_list(r, in, routed->n_in);
        TT_TRY(swap(ex, &r->there, &r->back));
        if (r->end[ranks.index] > r->first[ranks.index])
            tt_device_launch(ex->stream, call);
        TT_TRY(tt_device_synchronize(ex->stream));
        tt_routing_list(r, &out, 1);
        TT_TRY(swap(ex, &r->back, &r->there));
    }
out:
    return rc;
}

static int run_experts(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_call call = node_call(ex, instr, step), there = call;
    struct tt_node whole = *call.node;
    struct tt_routed routed;
    int rc = 0;

    (void)tt_node_routes(call.graph, instr->node, &routed);
    TT_TRY(tt_device_synchronize(ex->stream));
    TT_TRY(run_rounds(ex, instr, &there, &routed));
    if (ex->bad) {
        whole.n_out = routed.n_whole;
        call.node = &whole;
        examine(ex, instr, &call);
    }
out:
    return rc;
}

const struct tt_instr_row tt_instr_experts = {
    .name = "experts",
    .part = TT_SPLIT_GEMM,
    .of_microbatch = true,
    .phase_of = node_phase,
    .op_of = node_op,
    .subject = add_node,
    .cost = cost_of_experts,
    .run = run_experts,
};

/*
 * --- TT_COUNT ---
 *
 * The loads of experts: the number of slots that each expert of each layer got in the step. They are integers, so their
 * sums do not depend on the layout. A router is counted where it runs in the forward pass, not where it is recomputed.
 */

/* The value that contains the experts of the tokens. */
static const struct tt_value *experts_of(const struct tt_program *program, const struct tt_instr *instr)
{
    int value = program->buffers[program->operands[instr->operands]].value;

    return &tt_instr_graph(program, instr)->values[value];
}

static struct tt_step_call call_of(const struct tt_program *program, const struct tt_instr *instr)
{
    return (struct tt_step_call){.op = TT_STEP_COUNT, .n = tt_value_elements(experts_of(program, instr))};
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
    count.node = TT_NONE; /* a program sets `node` only if the instruction runs a node */
    tt_lower_begin(w, &count);
    tt_lower_operand(w, tt_lower_input(w, from, counted.ids));
    tt_lower_operand(w, counted.losses == TT_NONE ? TT_NONE : tt_lower_input(w, from, counted.losses));
    return 0;
}

static int run_count(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    struct tt_step_call count = call_of(ex->program, instr);
    int producer = experts_of(ex->program, instr)->producer;
    int layer = tt_instr_graph(ex->program, instr)->nodes[producer].block;
    int64_t tokens = tt_value_rows(experts_of(ex->program, instr));
    const char *losses = tt_running_address(ex, instr)[1];

    (void)step;
    count.in = tt_running_address(ex, instr)[0];
    count.out[0] = tt_sums_loads(ex->state->sums) + (int64_t)layer * ex->program->layout->experts;
    tt_running_step(ex, count);
    for (int k = 0; losses && k < TT_ROUTER_LOSSES; k++)
        tt_running_step(ex,
                        (struct tt_step_call){.op = TT_STEP_SUM,
                                              .n = tokens,
                                              .in = losses + k * tokens * tt_dtype_sum_bytes(ex->program->param_dtype),
                                              .out = {&ex->state->sums[TT_SUM_ROUTER + k]}});
    return 0;
}

const struct tt_instr_row tt_instr_count = {
    .name = "count",
    .part = TT_SPLIT_OTHER,
    .phase = TT_PHASE_SUMS,
    .of_microbatch = true,
    .step_of = call_of,
    .subject = name_of_value,
    .lower = lower_count,
    .run = run_count,
};

/* --- TT_BALANCE: changes the biases of experts by the loads --- */

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

/* The loads are on the host, where they were summed over the ranks. */
static int run_balance(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_layout *layout = ex->program->layout;
    int unit = ex->program->instrs[i].unit;

    tt_device_copy(ex->stream, ex->state->sums, ex->sums, tt_sums_bytes(layout));
    for (int k = 0; k < layout->units[unit].n_params; k++) {
        const struct tt_unit_param *place = &layout->units[unit].params[k];
        struct tt_step_call balance = balance_of(ex->program);

        balance.in = tt_sums_loads(ex->state->sums) + (int64_t)place->block * layout->experts;
        balance.out[0] = (char *)ex->state->array[TT_STATE_PARAM][unit] +
                         place->offset * tt_dtype_sum_bytes(ex->program->param_dtype);
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
