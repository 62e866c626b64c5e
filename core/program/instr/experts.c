/* SPDX-License-Identifier: MIT
 *
 * TT_EXPERTS: a node on the rows of all ranks that share experts. The ranks tell each other how many rows they have for
 * each expert and grain; then, round by round (core/program/routing.h), rows go to the ranks of their experts, the node
 * runs on what has arrived, and its output goes back to where the rows came from.
 *
 * Operands are those of TT_RUN. Scratch has the windows first, one for each input that travels; the node's output takes
 * the first window. All ranks of a group run these instructions in the same order, so all have one tag.
 */
#include <math.h>
#include <string.h>

#include "core/graph/token_parts.h"
#include "core/ops/experts/ffn.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

static const struct tt_node *node_of(const struct tt_program *program, const struct tt_instr *instr)
{
    return &tt_instr_graph(program, instr)->nodes[instr->node];
}

struct tt_routing_ranks tt_node_routing_ranks(const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;

    return (struct tt_routing_ranks){.n = attr->peers.n,
                                     .index = attr->peers.index,
                                     .experts = attr->experts,
                                     .blocks = tt_parts_blocks(&attr->parts),
                                     .grains = tt_parts_grains(&attr->parts)};
}

/* Bytes of a row that travels. */
static int64_t row_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[0]];

    return tt_value_width(x) * (int64_t)tt_dtype_size(x->dtype);
}

static int64_t window_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_arena_bytes(node->attr.window * row_bytes(graph, node));
}

/* --- lowering --- */

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
        return tt_fail(TT_EINTERNAL, "experts are divided as on rank %d of %d, and this is rank %d of %d in %s",
                       node->attr.peers.index, node->attr.peers.n, place.index, place.n, tt_group_name(TT_GROUP_EP));
    tt_lower_await_inputs(w, from);
    instr.kind = TT_EXPERTS;
    tt_lower_begin(w, &instr);
    TT_TRY(tt_lower_inputs(w, from));
    for (int k = 0; k < node->n_out; k++)
        tt_lower_operand(w, tt_lower_output(w, from, k));
    tt_lower_operand(w, tt_lower_made(w, TT_MEMORY_SCRATCH,
                                      routed.n_in * window_bytes(graph, node) +
                                          tt_op_row(node->op)->scratch_bytes(graph, node, w->in.threads)));
out:
    return rc;
}

/* --- cost --- */

int64_t tt_node_routed_bytes(const struct tt_graph *graph, int node)
{
    const struct tt_node *of = &graph->nodes[node];
    struct tt_routed routed;

    if (!tt_node_routes(graph, node, &routed))
        return 0;
    return (routed.n_in + 1) * tt_value_bytes(&graph->values[of->in[0]]) / of->attr.peers.n * (of->attr.peers.n - 1);
}

/* All of this rank's rows go away, and all experts that other ranks' tokens have are here. Two rounds have more rows
 * than a window, since a round ends where the next pair does not fit. */
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
        ranks = tt_node_routing_ranks(node_of(program, instr));
        counts = (int64_t)sizeof(int32_t) * (ranks.n - 1) * tt_routing_ends(&ranks);
        bytes += counts + routed;
        *ret_most += counts + tt_node_routed_most(tt_instr_graph(program, instr), instr->node).bytes;
    }
    return bytes;
}

static void cost_of_experts(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *cost)
{
    const struct tt_graph *graph = tt_instr_graph(program, instr);
    const struct tt_node *node = node_of(program, instr);

    tt_op_row(node->op)->cost(graph, node, &cost->work);
    cost->calls = TT_ROUTED_CALLS;
    cost->messages = TT_ROUTED_CALLS * (node->attr.peers.n - 1);
    cost->link_bytes = (double)tt_node_routed_bytes(graph, instr->node);
}

/* --- running --- */

/* What stays on this rank is copied meanwhile. */
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

/* Every rank gets the ends of all ranks. */
static int share_ends(struct tt_executor *ex, int32_t *own)
{
    struct tt_routing *r = &ex->routing;
    int ends = tt_routing_ends(&r->ranks);
    size_t bytes = (size_t)ends * sizeof *own;

    for (int rank = 0; rank < r->ranks.n; rank++) {
        r->there.segments[rank] = (struct tt_segment){own, bytes};
        r->back.segments[rank] = (struct tt_segment){r->ends + (int64_t)rank * ends, bytes};
        r->there.n[rank] = r->back.n[rank] = 1;
    }
    return swap(ex, &r->there, &r->back);
}

/* One round: the rows go to the experts, the node runs, and its output comes back. */
static int run_round(struct tt_executor *ex, const struct tt_call *call, const struct tt_routed_rows *in, int n_in,
                     const struct tt_routed_rows *out)
{
    struct tt_routing *r = &ex->routing;
    int rc = 0;

    tt_routing_list(r, in, n_in);
    TT_TRY(swap(ex, &r->there, &r->back));
    if (r->end[r->ranks.index] > r->first[r->ranks.index])
        tt_device_launch(ex->stream, call);
    TT_TRY(tt_device_synchronize(ex->stream));
    tt_routing_list(r, out, 1);
    TT_TRY(swap(ex, &r->back, &r->there));
out:
    return rc;
}

static int run_rounds(struct tt_executor *ex, const struct tt_instr *instr, struct tt_call *call,
                      const struct tt_routed *routed)
{
    const struct tt_node *node = node_of(ex->program, instr);
    const struct tt_routing_ranks ranks = tt_node_routing_ranks(node);
    struct tt_routing *r = &ex->routing;
    int64_t row = row_bytes(call->graph, node), window = window_bytes(call->graph, node);
    char *scratch = call->scratch;
    struct tt_routed_rows in[2], out = {call->out[routed->out], scratch, row};
    int rc = 0;

    for (int i = 0; i < routed->n_in; i++, scratch += window) {
        in[i] = (struct tt_routed_rows){call->in[routed->in[i]], scratch, row};
        call->in[routed->in[i]] = scratch;
    }
    call->out[routed->out] = out.window;
    call->scratch = scratch;
    tt_routing_begin(r, &ranks, node->attr.window);
    TT_TRY(share_ends(ex, call->in[routed->ends]));
    call->in[routed->ends] = r->pairs;
    while (tt_routing_next(r))
        TT_TRY(run_round(ex, call, in, routed->n_in, &out));
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
