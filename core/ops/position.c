/* SPDX-License-Identifier: MIT
 *
 * POSITION: adds row n % T of a table of learned positions to row n, or the row that positions name.
 *   in   x (N, D), w (P, D) with P >= T, positions (N) or absent
 *   out  y (N, D), may take x's memory
 *   attr seq_len T, from_position, peers: x is the part of this rank's place; positions are those of all rows.
 *        If there are positions, the rows of a sequence need not lie together, and rows may be in grains
 *   With from_position the N <= T rows are the newest of one sequence: row n gets row scalars->position + n of the
 *   table, and those beyond scalars->rows are passed on.
 *
 * POSITION_BWD: the gradient of the table, whole; that of x is dy itself.
 *   in   dy (N, D), acc (P, D) or none, positions (N) or absent
 *   out  dw (P, D) = [acc +] the sum over sequences, may take acc's memory
 *   The rows of a sequence lie one after the other, so the first T rows of the table are one vector of T*D elements
 *   that every sequence adds to, in order. With positions rows are added one by one, in order. If N has grains, the
 *   gradients of the grains are added as a tree: that is what EMBEDDING_BWD does.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { TILE = 4096, TILE_ROWS = 16, TILE_COLUMNS = 64 };

/* Ranks that have a part of the rows each. */
static int64_t parts_of(const struct tt_attr *attr)
{
    return attr->peers.n > 1 ? attr->peers.n : 1;
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    int64_t seq_len = node->attr.seq_len;
    int64_t rows = tt_value_rows(&x) * parts_of(&node->attr);
    bool rows_fit = node->attr.from_position ? rows <= seq_len : rows % seq_len == 0 || node->in[2] != TT_NONE;

    if (seq_len < 1 || !rows_fit || (tt_grain_size(&node->attr.rows) && node->in[2] == TT_NONE) || w->ndim != 2 ||
        w->shape[0] < seq_len || w->shape[1] != tt_value_width(&x) || !tt_op_positions_fit(graph, node, 2, rows))
        return tt_op_mismatch(graph, node, "x (B*T, D), w (P, D) with P >= T, positions (B*T)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

/* The gradient of all rows; each peer has its own. */
static int gather(struct tt_graph *graph, const struct tt_node *forward, int dy, int *ret_all)
{
    const struct tt_value part = graph->values[dy]; /* a copy: adding moves the array */
    int64_t shape[2] = {tt_value_rows(&part) * forward->attr.peers.n, tt_value_width(&part)};
    struct tt_node node = {.op = TT_OP_GATHER_ROWS,
                           .backward = true,
                           .block = forward->block,
                           .n_in = 1,
                           .in = {dy},
                           .n_out = 1,
                           .attr = {.peers = forward->attr.peers}};
    char *name = tt_format("%s.gathered", part.name);
    int rc = 0;

    *ret_all = node.out[0] = tt_graph_value(graph, TT_VALUE_GRAD, part.dtype, name, 2, shape);
    tt_free(name);
    graph->values[*ret_all].producer = graph->n_nodes;
    TT_TRY(tt_op_infer(graph, &node, ""));
    TT_PUSH(graph->nodes, graph->n_nodes, graph->cap_nodes) = node;
out:
    return rc;
}

/* With peers every rank computes the gradient of the whole table. */
static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    struct tt_node forward = graph->nodes[node];
    bool grains = tt_grain_size(&forward.attr.rows) != 0;
    int in[3] = {grad_out[0], grad_in[1], forward.in[2]}, in_grains[3], grad, rc = 0;

    TT_TRY(tt_rule_add(graph, &forward, 0, grad_out[0], grad_in));
    if (!tt_rule_wanted(graph, forward.in[1]))
        return 0;
    if (forward.attr.peers.n > 1)
        TT_TRY(gather(graph, &forward, grad_out[0], &in[0]));
    forward.attr.peers = (struct tt_axis_peers){0};
    memcpy(in_grains, (int[3]){in[0], in[2], in[1]}, sizeof in_grains);
    TT_TRY(tt_rule_node(graph, grains ? TT_OP_EMBEDDING_BWD : TT_OP_POSITION_BWD, &forward, grains ? in_grains : in, 3,
                        &forward.in[1], 1, &grad));
    tt_rule_set(&forward, 1, grad, grad_in);
out:
    return rc;
}

/* Elements of a sequence: T*D. */
static int64_t sequence(const struct tt_call *call)
{
    return call->node->attr.seq_len * tt_value_width(tt_call_in(call, 0));
}

/* A tile is a range of elements of one sequence. */
static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t n = sequence(call), tiles = tt_tiles(n, TILE);
    struct tt_range part = tt_tile_range(n, TILE, tile % tiles);
    int64_t at = tile / tiles * n + part.begin;

    (void)worker;
    TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, at), tt_call_in_at(call, 0, at),
                  tt_call_in_at(call, 1, part.begin), part.n);
}

/* A tile is a range of elements of the new rows. */
static void new_rows_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 0));
    struct tt_range part = tt_tile_range(call->scalars->rows * width, TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, part.begin), tt_call_in_at(call, 0, part.begin),
                  tt_call_in_at(call, 1, call->scalars->position * width + part.begin), part.n);
}

static void run_new_rows(const struct tt_call *call)
{
    int64_t all = tt_value_elements(tt_call_in(call, 0));
    int64_t n = call->scalars->rows * tt_value_width(tt_call_in(call, 0));

    tt_team_run(call->team, tt_tiles(n, TILE), new_rows_tile, (void *)call);
    if (call->out[0] != call->in[0])
        memcpy(tt_call_out_at(call, 0, n), tt_call_in_at(call, 0, n),
               (size_t)(all - n) * tt_dtype_size(tt_call_in(call, 0)->dtype));
}

/* A tile is a range of rows, each with a position of its own: that of its document, or that in its sequence. */
static void document_rows_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const int32_t *positions = call->in[2];
    int64_t rows = tt_value_rows(tt_call_in(call, 0)), width = tt_value_width(tt_call_in(call, 0));
    int64_t first = call->node->attr.peers.index * rows;
    struct tt_range part = tt_tile_range(rows, TILE_ROWS, tile);

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        int64_t position = positions ? positions[first + r] : (first + r) % call->node->attr.seq_len;

        TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width),
                      tt_call_in_at(call, 1, position * width), width);
    }
}

static void run(const struct tt_call *call)
{
    int64_t batch = tt_value_rows(tt_call_in(call, 0)) / call->node->attr.seq_len;

    if (call->node->attr.from_position) {
        run_new_rows(call);
        return;
    }
    if (call->in[2] || parts_of(&call->node->attr) > 1) {
        tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 0)), TILE_ROWS), document_rows_tile,
                    (void *)call);
        return;
    }
    tt_team_run(call->team, batch * tt_tiles(sequence(call), TILE), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = (double)tt_value_elements(&graph->values[node->in[0]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

/* The output must have been chosen by the rule above: the inputs do not tell P. */
static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t shape[2] = {0, tt_value_width(&graph->values[node->in[0]])};

    if (node->n_out != 1)
        return tt_op_mismatch(graph, node, "dy (N, D) and an output made by the backward rule");
    shape[0] = graph->values[node->out[0]].shape[0];
    if (!tt_op_acc_fits(graph, node, 1, shape[0], shape[1]) ||
        !tt_op_positions_fit(graph, node, 2, tt_value_rows(&graph->values[node->in[0]])))
        return tt_op_mismatch(graph, node, "acc (P, D), positions (N)");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

/* Within the sequence it is the sum over the batch; after it the table has no gradient. */
static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t n = sequence(call), tiles = tt_tiles(n, TILE), batch = tt_value_rows(tt_call_in(call, 0));
    int64_t rest = tt_value_elements(tt_call_out(call, 0)) - n;
    struct tt_range part = tile < tiles ? tt_tile_range(n, TILE, tile) : tt_tile_range(rest, TILE, tile - tiles);
    int64_t at = tile < tiles ? part.begin : n + part.begin;
    const float *acc = call->in[1] ? (const float *)call->in[1] + at : NULL;
    float *dw = (float *)call->out[0] + at;

    (void)worker;
    if (tile < tiles)
        TT_RUN_KERNEL(call, sum_rows, dw, acc, tt_call_in_at(call, 0, at), batch / call->node->attr.seq_len, n, part.n);
    else if (!acc)
        memset(dw, 0, (size_t)part.n * sizeof *dw);
    else if (acc != dw)
        memcpy(dw, acc, (size_t)part.n * sizeof *dw);
}

/* dw = acc, or 0: a tile is a range of elements. */
static void begin_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_range part = tt_tile_range(tt_value_elements(tt_call_out(call, 0)), TILE, tile);
    float *dw = (float *)call->out[0] + part.begin;

    (void)worker;
    if (call->in[1])
        memcpy(dw, (const float *)call->in[1] + part.begin, (size_t)part.n * sizeof *dw);
    else
        memset(dw, 0, (size_t)part.n * sizeof *dw);
}

/* A tile is a range of columns. */
static void document_rows_bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 0));
    struct tt_range part = tt_tile_range(width, TILE_COLUMNS, tile);

    (void)worker;
    TT_RUN_KERNEL(call, scatter_add, (float *)call->out[0] + part.begin, tt_call_in_at(call, 0, part.begin),
                  call->in[2], tt_value_rows(tt_call_in(call, 0)), width, part.n);
}

static void run_documents_bwd(const struct tt_call *call)
{
    if (call->in[1] != call->out[0])
        tt_team_run(call->team, tt_tiles(tt_value_elements(tt_call_out(call, 0)), TILE), begin_tile, (void *)call);
    tt_team_run(call->team, tt_tiles(tt_value_width(tt_call_in(call, 0)), TILE_COLUMNS), document_rows_bwd_tile,
                (void *)call);
}

static void run_bwd(const struct tt_call *call)
{
    int64_t n = sequence(call), rest = tt_value_elements(tt_call_out(call, 0)) - n;

    if (call->in[2])
        run_documents_bwd(call);
    else
        tt_team_run(call->team, tt_tiles(n, TILE) + tt_tiles(rest, TILE), bwd_tile, (void *)call);
}

const struct tt_op_row tt_op_position = {
    .name = "position",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ROWS,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .alias = {1},
};

const struct tt_op_row tt_op_position_bwd = {
    .name = "position_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost,
    .alias = {2},
};
