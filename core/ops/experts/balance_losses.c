/* SPDX-License-Identifier: MIT
 *
 * ROUTER_LOSSES: the balance losses of a router of whose microbatch this rank has a part of the rows. The ranks have
 * gathered the experts of all rows.
 *   in   scores (N, X) F32, ids (N', k) I32 of all rows, losses (5, N) F32 of ROUTER, ids (N, k) I32 of ROUTER
 *   out  losses (5, N) F32, with the terms of all losses (router_losses.h)
 *   attr that of ROUTER, without rows
 */
#include "core/ops/experts/choice.h"
#include "core/ops/experts/router_losses.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64 };
enum { SCORES, ALL_IDS, LOSSES, IDS = TT_COUNTED_IDS };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value scores = graph->values[node->in[SCORES]];
    int64_t rows = tt_value_rows(&scores), losses[2] = {TT_ROUTER_LOSS_ROWS, rows}, k = node->attr.top_k;

    if (scores.ndim != 2 || tt_value_width(&graph->values[node->in[ALL_IDS]]) != k ||
        !tt_router_losses_fit(&node->attr, tt_value_rows(&graph->values[node->in[ALL_IDS]])) ||
        !tt_op_acc_fits(graph, node, LOSSES, losses[0], rows) || !tt_op_acc_fits(graph, node, IDS, rows, k))
        return tt_op_mismatch(graph, node, "scores (N, X), ids of all rows, losses (5, N), ids (N, k)");
    return tt_op_output(graph, node, 0, name, NULL, 2, losses);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t rows = tt_value_rows(tt_call_in(call, SCORES)), experts = tt_value_width(tt_call_in(call, SCORES));
    struct tt_range part = tt_tile_range(rows, TILE_ROWS, tile);
    int64_t all_rows = tt_value_rows(tt_call_in(call, ALL_IDS));
    const float *losses = call->in[LOSSES];
    const int32_t *ids = call->in[IDS];

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++)
        tt_router_loss_terms(
            &call->node->attr, tt_router_token_factors(&call->node->attr, call->scratch, r, all_rows, experts),
            &(struct tt_loss_token){(const float *)call->in[SCORES] + r * experts, losses[TT_ROUTER_LSE * rows + r],
                                    tt_id_is_padding(ids[r * call->node->attr.top_k])},
            r, rows, experts, call->out[0]);
}

static void run(const struct tt_call *call)
{
    const struct tt_value *scores = tt_call_in(call, SCORES);

    tt_router_factors(&call->node->attr, call->in[ALL_IDS], tt_router_loads(call, tt_value_width(scores)),
                      tt_value_rows(tt_call_in(call, ALL_IDS)), tt_value_width(scores), call->scratch);
    tt_team_run(call->team, tt_tiles(tt_value_rows(scores), TILE_ROWS), run_tile, (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    (void)threads;
    return tt_router_factor_floats(&node->attr, tt_value_rows(&graph->values[node->in[ALL_IDS]]),
                                   tt_value_width(&graph->values[node->in[SCORES]])) *
           (int64_t)sizeof(float);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 4.0 * (double)tt_value_elements(&graph->values[node->in[SCORES]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_router_losses = {
    .name = "router_losses",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = infer,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};
