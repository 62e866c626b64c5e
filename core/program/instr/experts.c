/* SPDX-License-Identifier: MIT
 *
 * TT_EXPERTS: a node on the rows of all ranks that share experts. Each rank tells the others how many rows it has for
 * each expert and grain. Then, round by round (core/program/routing.h), rows go to the ranks of their experts, the node
 * runs on the rows that have arrived, and its output returns to the ranks that sent the rows.
 *
 * The operands are those of TT_RUN. Scratch begins with the windows, one for each input that travels; the output takes
 * the first window. All ranks of a group run these instructions in the same order, so one tag suffices.
 */
#include "core/ops/experts/experts.h"

#include <math.h>

#include "core/graph/pieces.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "core/program/instr/instr.h"
#include "core/program/internal.h"

struct tt_routing_ranks tt_node_routing_ranks(const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;

    return (struct tt_routing_ranks){.n = attr->peers.n,
                                     .index = attr->peers.index,
                                     .experts = attr->experts,
                                     .blocks = tt_parts_blocks(&attr->parts),
                                     .grains = tt_parts_grains(&attr->parts)};
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

int tt_lower_experts(struct tt_walk *w, const struct tt_instr *from)
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
    struct tt_call call = tt_running_call(ex, instr, step), there = call;
    struct tt_node whole = *call.node;
    struct tt_routed routed;
    int rc = 0;

    (void)tt_node_routes(call.graph, instr->node, &routed);
    TT_TRY(tt_device_synchronize(ex->stream));
    TT_TRY(run_rounds(ex, instr, &there, &routed));
    if (ex->bad) {
        whole.n_out = routed.n_whole;
        call.node = &whole;
        tt_running_examine(ex, instr, &call);
    }
out:
    return rc;
}

const struct tt_instr_row tt_instr_experts = {
    .name = "experts",
    .part = TT_SPLIT_GEMM,
    .of_microbatch = true,
    .phase_of = tt_phase_of_node,
    .op_of = tt_op_of_node,
    .subject = tt_name_of_node,
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
