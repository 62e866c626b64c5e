/* SPDX-License-Identifier: MIT
 *
 * SINKS_BWD: the gradient of the sinks of ATTENTION. A sink has the share exp(sink - lse) of a row's softmax and no
 * value, so its score has the gradient -share * dot(do, o), and the gradient of a head's sink is the sum over rows.
 *   in   do, o (N, H*Ev), lse (N, H), sinks (H), acc (H) or none
 *   out  dsinks (H) = [acc +] the sum, may take acc's memory
 *   Summed over blocks of SUM_ROWS rows, then over the blocks (tt_row_blocks_sum). attr heads, rows (N).
 */
#include "core/kernels/attention.h"
#include "core/kernels/kernels.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { SUM_ROWS = 64 };
enum { DO, O, LSE, SINKS, ACC }; /* inputs */

const float *tt_attention_sinks_of(const struct tt_call *call, int input, int64_t first, int64_t n, float *to)
{
    if (!call->in[input])
        return NULL;
    if (tt_call_in(call, input)->dtype == TT_F32)
        return tt_call_in_at(call, input, first);
    tt_kernels()->bf16_widen(to, tt_call_in_at(call, input, first), n);
    return to;
}

int tt_attention_sinks_backward(struct tt_graph *graph, const struct tt_node *forward, int grad_out, int *grad_in)
{
    enum { FORWARD_SINKS = 4 };
    int sinks = forward->in[FORWARD_SINKS], rc = 0, grad;
    int in[5] = {grad_out, forward->out[0], forward->out[1], sinks, grad_in[FORWARD_SINKS]};

    if (sinks == TT_NONE || !tt_rule_wanted(graph, sinks))
        return 0;
    TT_TRY(tt_rule_node(graph, TT_OP_SINKS_BWD, forward, in, 5, &sinks, 1, &grad));
    tt_rule_set(forward, FORWARD_SINKS, grad, grad_in);
out:
    return rc;
}

static int64_t rows_of(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_value_rows(&graph->values[node->in[DO]]);
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t rows = rows_of(graph, node), width = tt_value_width(&graph->values[node->in[DO]]);
    int64_t heads = node->attr.heads;

    if (heads < 1 || width % heads != 0 || !tt_op_acc_fits(graph, node, O, rows, width) ||
        !tt_op_acc_fits(graph, node, LSE, rows, heads) || !tt_op_acc_fits(graph, node, SINKS, 1, heads) ||
        !tt_op_acc_fits(graph, node, ACC, 1, heads) || !tt_grain_fits(&node->attr.rows, rows))
        return tt_op_mismatch(graph, node, "do, o (N, H*Ev), lse (N, H), sinks, acc (H)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &heads);
}

static struct tt_row_blocks blocks_of(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_row_blocks_of(&node->attr.rows, rows_of(graph, node), 1, SUM_ROWS);
}

static void block_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t heads = call->node->attr.heads, width = tt_value_width(tt_call_in(call, DO));
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    struct tt_range part = tt_row_block(&blocks, tile);

    (void)worker;
    TT_RUN_KERNEL(call, sinks_bwd, (float *)call->scratch + tile * heads, tt_call_in_at(call, DO, part.begin * width),
                  tt_call_in_at(call, O, part.begin * width), tt_call_in_at(call, LSE, part.begin * heads),
                  call->in[SINKS], part.n, heads, width / heads);
}

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t heads = call->node->attr.heads;
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    struct tt_range part = tt_tile_range(heads, TT_SUM_COLUMNS, tile);
    const float *acc = call->in[ACC];

    (void)worker;
    tt_row_blocks_sum(&blocks, (float *)call->out[0] + part.begin, acc ? acc + part.begin : NULL,
                      (const float *)call->scratch + part.begin, heads, part.n);
}

static void run(const struct tt_call *call)
{
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);

    tt_team_run(call->team, tt_row_blocks_count(&blocks), block_tile, (void *)call);
    tt_team_run(call->team, tt_tiles(call->node->attr.heads, TT_SUM_COLUMNS), sum_tile, (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_row_blocks blocks = blocks_of(graph, node);

    (void)threads;
    return tt_row_blocks_count(&blocks) * node->attr.heads * (int64_t)sizeof(float);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 2.0 * (double)tt_value_elements(&graph->values[node->in[DO]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_sinks_bwd = {
    .name = "sinks_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_ATTENTION,
    .infer = infer,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {5},
};
