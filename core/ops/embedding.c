/* SPDX-License-Identifier: MIT
 *
 * EMBEDDING: row tokens[i] of the table for every token.
 *   in   tokens (B, T) I32 in [0, V), which the loader has checked; w (V, D)      out  x (N, D)
 *   attr out (V), peers: w is this rank's part of the rows (tt_vocabulary_of), and those of other tokens are 0
 *
 * EMBEDDING_BWD: the gradient of the table, or of this rank's part of it.
 *   in   dx (N, D), tokens, acc (V, D) or none      out  dw (V, D) = [acc +] dx scattered to its rows
 *   Tiles are ranges of columns. Each goes through the tokens in order, so a row's sum has one order on any
 *     number of threads.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, TILE_COLUMNS = 64 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value tokens = graph->values[node->in[0]];
    int64_t shape[2] = {tt_value_elements(&tokens), 0};

    if (graph->values[node->in[1]].ndim != 2 ||
        !tt_grain_fits(&node->attr.out, tt_value_rows(&graph->values[node->in[1]])))
        return tt_op_mismatch(graph, node, "tokens (B, T) I32, w (V, D)");
    shape[1] = tt_value_width(&graph->values[node->in[1]]);
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[3] = {grad_out[0], forward.in[0], grad_in[1]}, rc = 0, grad;

    TT_TRY(tt_rule_node(graph, TT_OP_EMBEDDING_BWD, &forward, in, 3, &forward.in[1], 1, &grad));
    tt_rule_set(&forward, 1, grad, grad_in);
out:
    return rc;
}

static void gather_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *out = tt_call_out(call, 0);
    int64_t width = tt_value_width(out);
    struct tt_range part = tt_tile_range(tt_value_rows(out), TILE_ROWS, tile);
    struct tt_range own = tt_vocabulary_of(&call->node->attr, tt_value_rows(tt_call_in(call, 1)));
    size_t bytes = (size_t)width * tt_dtype_size(out->dtype);
    const int32_t *tokens = call->in[0];

    (void)worker;
    for (int64_t i = part.begin; i < part.begin + part.n; i++) {
        int64_t row = tokens[i] - own.begin;

        if (row >= 0 && row < own.n)
            memcpy(tt_call_out_at(call, 0, i * width), tt_call_in_at(call, 1, row * width), bytes);
        else
            memset(tt_call_out_at(call, 0, i * width), 0, bytes);
    }
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_out(call, 0)), TILE_ROWS), gather_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 0.0;
    ret_cost->bytes = 2.0 * (double)tt_value_bytes(&graph->values[node->out[0]]) +
                      (double)tt_value_bytes(&graph->values[node->in[0]]);
}

/* The backward rule must have chosen the output, since the inputs do not determine V. */
static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dx = &graph->values[node->in[0]];
    int64_t shape[2] = {0, tt_value_width(dx)};

    if (node->n_out != 1 || tt_value_rows(dx) != tt_value_elements(&graph->values[node->in[1]]))
        return tt_op_mismatch(graph, node, "dx (N, D), tokens (B, T) and an output made by the backward rule");
    shape[0] = graph->values[node->out[0]].shape[0];
    if (!tt_grain_fits(&node->attr.out, shape[0]))
        return tt_op_mismatch(graph, node, "a table of whole grains");
    if (!tt_op_acc_fits(graph, node, 2, shape[0], shape[1]))
        return tt_op_mismatch(graph, node, "acc (V, D)");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static void begin_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *out = tt_call_out(call, 0);
    int64_t width = tt_value_width(out);
    struct tt_range part = tt_tile_range(tt_value_rows(out), TILE_ROWS, tile);
    size_t bytes = (size_t)(part.n * width) * sizeof(float);
    float *dw = (float *)call->out[0] + part.begin * width;

    (void)worker;
    if (call->in[2]) {
        memcpy(dw, (const float *)call->in[2] + part.begin * width, bytes);
    } else {
        memset(dw, 0, bytes);
    }
}

/* A part of a vocabulary: runs of tokens that are in it, in order, with their rows. */
static void scatter_own(const struct tt_call *call, const struct tt_range *part)
{
    int64_t n = tt_value_rows(tt_call_in(call, 0)), width = tt_value_width(tt_call_in(call, 0));
    struct tt_range own = tt_vocabulary_of(&call->node->attr, tt_value_rows(tt_call_out(call, 0)));
    const int32_t *tokens = call->in[1], *rows = call->scratch;

    for (int64_t i = 0; i < n; i++) {
        int64_t begin = i;

        while (i < n && tokens[i] >= own.begin && tokens[i] < own.begin + own.n)
            i++;
        if (i > begin)
            TT_RUN_KERNEL(call, scatter_add, (float *)call->out[0] + part->begin,
                          tt_call_in_at(call, 0, begin * width + part->begin), rows + begin, i - begin, width, part->n);
    }
}

static void scatter_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *dx = tt_call_in(call, 0);
    int64_t width = tt_value_width(dx);
    struct tt_range part = tt_tile_range(width, TILE_COLUMNS, tile);

    (void)worker;
    if (call->node->attr.peers.n > 1)
        scatter_own(call, &part);
    else
        TT_RUN_KERNEL(call, scatter_add, (float *)call->out[0] + part.begin, tt_call_in_at(call, 0, part.begin),
                      call->in[1], tt_value_rows(dx), width, part.n);
}

/* Scratch: the rows of a part of the vocabulary that tokens name. */
static int64_t scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    (void)threads;
    return node->attr.peers.n > 1 ? tt_value_rows(&graph->values[node->in[0]]) * (int64_t)sizeof(int32_t) : 0;
}

static void local_rows(const struct tt_call *call)
{
    struct tt_range own = tt_vocabulary_of(&call->node->attr, tt_value_rows(tt_call_out(call, 0)));
    const int32_t *tokens = call->in[1];
    int32_t *rows = call->scratch;

    for (int64_t i = 0; i < tt_value_rows(tt_call_in(call, 0)); i++)
        rows[i] = (int32_t)(tokens[i] - own.begin);
}

static void run_bwd(const struct tt_call *call)
{
    const struct tt_value *out = tt_call_out(call, 0);

    if (call->node->attr.peers.n > 1)
        local_rows(call);
    if (call->in[2] != call->out[0])
        tt_team_run(call->team, tt_tiles(tt_value_rows(out), TILE_ROWS), begin_tile, (void *)call);
    tt_team_run(call->team, tt_tiles(tt_value_width(out), TILE_COLUMNS), scatter_tile, (void *)call);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = (double)tt_value_elements(&graph->values[node->in[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_embedding = {
    .name = "embedding",
    .in = {TT_TYPE_IDS, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
};

const struct tt_op_row tt_op_embedding_bwd = {
    .name = "embedding_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .scratch_bytes = scratch_bwd,
    .alias = {3},
};
