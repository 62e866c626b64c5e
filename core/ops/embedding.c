/* SPDX-License-Identifier: MIT
 *
 * EMBEDDING: row tokens[i] of the table for every token.
 *   in   tokens (B, T) I32 in [0, V), which the loader has checked; w (V, D)      out  x (N, D)
 *   attr rows (N), out (V), peers: w is this rank's part of the rows (tt_vocabulary_of), and those of other tokens
 *     are 0
 *
 * EMBEDDING_BWD: the gradient of the table, or of this rank's part of it.
 *   in   dx (N, D), tokens, acc (V, D) or none      out  dw (V, D) = [acc +] dx scattered to its rows
 *   Tiles are ranges of columns. Each goes through the tokens in order, so a row's sum has one order on any
 *     number of threads. If N has grains (attr rows), the gradients of the grains are added as a tree.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, TILE_COLUMNS = 64, TILE_ELEMENTS = 16384, LINE = 64 /* bytes */ };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value tokens = graph->values[node->in[0]];
    int64_t shape[2] = {tt_value_elements(&tokens), 0};

    if (graph->values[node->in[1]].ndim != 2 ||
        !tt_grain_fits(&node->attr.out, tt_value_rows(&graph->values[node->in[1]])) ||
        !tt_grain_fits(&node->attr.rows, shape[0]))
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
    if (!tt_grain_fits(&node->attr.out, shape[0]) || !tt_grain_fits(&node->attr.rows, tt_value_rows(dx)))
        return tt_op_mismatch(graph, node, "a table of whole grains");
    if (!tt_op_acc_fits(graph, node, 2, shape[0], shape[1]))
        return tt_op_mismatch(graph, node, "acc (V, D)");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

/* dw = [acc +] the rows [begin, begin + n) of dx, scattered. */
struct part {
    const struct tt_call *call;
    float *dw;
    const float *acc;
    int64_t begin, n;
};

static void begin_tile(void *arg, int64_t tile, int worker)
{
    const struct part *p = arg;
    const struct tt_value *out = tt_call_out(p->call, 0);
    int64_t width = tt_value_width(out);
    struct tt_range part = tt_tile_range(tt_value_rows(out), TILE_ROWS, tile);
    size_t bytes = (size_t)(part.n * width) * sizeof(float);
    float *dw = p->dw + part.begin * width;

    (void)worker;
    if (p->acc)
        memcpy(dw, p->acc + part.begin * width, bytes);
    else
        memset(dw, 0, bytes);
}

/* Of a part of the vocabulary: runs of tokens that are in it, in order, with their rows. */
static void scatter_own(const struct part *p, const struct tt_range *columns)
{
    const struct tt_call *call = p->call;
    int64_t width = tt_value_width(tt_call_in(call, 0)), end = p->begin + p->n;
    struct tt_range own = tt_vocabulary_of(&call->node->attr, tt_value_rows(tt_call_out(call, 0)));
    const int32_t *tokens = call->in[1], *rows = call->scratch;

    for (int64_t i = p->begin; i < end; i++) {
        int64_t begin = i;

        while (i < end && tokens[i] >= own.begin && tokens[i] < own.begin + own.n)
            i++;
        if (i > begin)
            TT_RUN_KERNEL(call, scatter_add, p->dw + columns->begin,
                          tt_call_in_at(call, 0, begin * width + columns->begin), rows + begin, i - begin, width,
                          columns->n);
    }
}

static void scatter_tile(void *arg, int64_t tile, int worker)
{
    const struct part *p = arg;
    const struct tt_call *call = p->call;
    int64_t width = tt_value_width(tt_call_in(call, 0));
    struct tt_range columns = tt_tile_range(width, TILE_COLUMNS, tile);

    (void)worker;
    if (call->node->attr.peers.n > 1)
        scatter_own(p, &columns);
    else
        TT_RUN_KERNEL(call, scatter_add, p->dw + columns.begin,
                      tt_call_in_at(call, 0, p->begin * width + columns.begin), (const int32_t *)call->in[1] + p->begin,
                      p->n, width, columns.n);
}

static void scatter(struct part *p)
{
    const struct tt_value *out = tt_call_out(p->call, 0);

    if (p->acc != p->dw)
        tt_team_run(p->call->team, tt_tiles(tt_value_rows(out), TILE_ROWS), begin_tile, p);
    tt_team_run(p->call->team, tt_tiles(tt_value_width(out), TILE_COLUMNS), scatter_tile, p);
}

/* Scratch: the rows of a part of the vocabulary that tokens name, then the stack of sums over grains of rows. */
static int64_t ids_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t rows = tt_value_rows(&graph->values[node->in[0]]);

    return node->attr.peers.n > 1 ? tt_round_up(rows * (int64_t)sizeof(int32_t), LINE) : 0;
}

static int64_t scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    int64_t grain = tt_grain_size(&node->attr.rows), rows = tt_value_rows(&graph->values[node->in[0]]);
    int64_t depth = grain ? tt_tree_stack_depth(tt_tiles(rows, grain)) : 0;

    (void)threads;
    return ids_bytes(graph, node) + depth * tt_value_bytes(&graph->values[node->out[0]]);
}

static void local_rows(const struct tt_call *call)
{
    struct tt_range own = tt_vocabulary_of(&call->node->attr, tt_value_rows(tt_call_out(call, 0)));
    const int32_t *tokens = call->in[1];
    int32_t *rows = call->scratch;

    for (int64_t i = 0; i < tt_value_rows(tt_call_in(call, 0)); i++)
        rows[i] = (int32_t)(tokens[i] - own.begin);
}

/* to = a + b, tables. */
struct sum {
    float *to;
    const float *a, *b;
    int64_t n;
};

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct sum *sum = arg;
    struct tt_range part = tt_tile_range(sum->n, TILE_ELEMENTS, tile);

    (void)worker;
    tt_kernels()->add(sum->to + part.begin, sum->a + part.begin, sum->b + part.begin, part.n);
}

static void add(struct tt_team *team, float *to, const float *a, const float *b, int64_t n)
{
    tt_team_run(team, tt_tiles(n, TILE_ELEMENTS), sum_tile, &(struct sum){to, a, b, n});
}

/* The tree over the grains of rows, then the earlier gradient. */
static void run_grains(const struct tt_call *call, int64_t grain)
{
    int64_t rows = tt_value_rows(tt_call_in(call, 0)), n = tt_value_elements(tt_call_out(call, 0));
    float *stack = (float *)((char *)call->scratch + ids_bytes(call->graph, call->node));
    int64_t grains = tt_tiles(rows, grain), depth = 0;

    for (int64_t g = 0; g < grains; g++) {
        struct tt_range part = tt_tile_range(rows, grain, g);
        int64_t carries = g + 1 < grains ? tt_tree_carries(g) : depth;

        scatter(&(struct part){call, stack + depth++ * n, NULL, part.begin, part.n});
        for (; carries > 0; carries--, depth--)
            add(call->team, stack + (depth - 2) * n, stack + (depth - 2) * n, stack + (depth - 1) * n, n);
    }
    if (call->in[2])
        add(call->team, call->out[0], call->in[2], stack, n);
    else
        memcpy(call->out[0], stack, (size_t)n * sizeof *stack);
}

static void run_bwd(const struct tt_call *call)
{
    int64_t grain = tt_grain_size(&call->node->attr.rows);

    if (call->node->attr.peers.n > 1)
        local_rows(call);
    if (grain)
        run_grains(call, grain);
    else
        scatter(&(struct part){call, call->out[0], call->in[2], 0, tt_value_rows(tt_call_in(call, 0))});
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
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
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
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .scratch_bytes = scratch_bwd,
    .alias = {3},
};
