/* SPDX-License-Identifier: MIT
 *
 * EMBEDDING: row tokens[i] of the table for every token.
 *   in   tokens (B, T) I32 in [0, V), which the loader has checked; w (V, D)      out  x (N, D)
 *   attr rows (N), out (V), peers: w is this rank's part of the table (own_tokens); rows of x are 0 for tokens that
 *     other ranks have
 *
 * EMBEDDING_BWD: the gradient of the table, or of this rank's part of it.
 *   in   dx (N, D), tokens, acc (V, D) or none      out  dw (V, D) = [acc +] dx scattered to its rows
 *   Tiles are ranges of columns. Each goes through the tokens in order, so a row's sum has one order on any
 *     number of threads. If N has grains (attr rows), the gradients of the grains are added as a tree.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { EMBEDDING_TILE_ROWS = 64, TILE_COLUMNS = 64, LINE = 64 /* bytes */ };

/* The number of tokens of every peer except the last, which may have fewer. */
static int64_t tokens_of_peer(const struct tt_attr *attr)
{
    return tt_grain_size(&attr->out) * (attr->out.grains / attr->peers.n);
}

/* The tokens whose rows this rank has, given its place among the peers. local: the number of these tokens. */
static struct tt_range own_tokens(const struct tt_attr *attr, int64_t local)
{
    return (struct tt_range){attr->peers.n > 1 ? attr->peers.index * tokens_of_peer(attr) : 0, local};
}

/* The place of the peer that holds a token's row. */
static int owner_of(const struct tt_attr *attr, int64_t token)
{
    return attr->peers.n <= 1 ? 0 : (int)(token / tokens_of_peer(attr));
}

static int embedding_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
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

/* A row of a packed table, in the output's type. */
static void unpack(const struct tt_call *call, int64_t row, void *to)
{
    const struct tt_value *w = tt_call_in(call, 1);
    int64_t width = tt_value_width(w);
    const char *from = (const char *)call->in[1] + row * tt_packing_row_bytes(w->packing, width);

    if (tt_call_out(call, 0)->dtype == TT_BF16)
        tt_kernels()->unpack_bf16(to, w->packing, from, width, 0, width);
    else
        tt_kernels()->unpack(to, w->packing, from, width, 0, width);
}

static void gather_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *out = tt_call_out(call, 0);
    int64_t width = tt_value_width(out);
    struct tt_range own = own_tokens(&call->node->attr, tt_value_rows(tt_call_in(call, 1)));
    size_t bytes = (size_t)width * tt_dtype_size(out->dtype);
    const int32_t *tokens = call->in[0];

    for (int64_t i = part.begin; i < part.begin + part.n; i++) {
        int64_t row = tokens[i] - own.begin;

        if (row >= 0 && row < own.n && tt_call_in(call, 1)->packing)
            unpack(call, row, tt_call_out_at(call, 0, i * width));
        else if (row >= 0 && row < own.n)
            memcpy(tt_call_out_at(call, 0, i * width), tt_call_in_at(call, 1, row * width), bytes);
        else
            memset(tt_call_out_at(call, 0, i * width), 0, bytes);
    }
}

static void embedding_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->bytes = 2.0 * (double)tt_value_bytes(&graph->values[node->out[0]]) +
                      (double)tt_value_bytes(&graph->values[node->in[0]]);
}

/* The backward rule must have chosen the output, since the inputs do not determine V. */
static int embedding_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
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

/* dw = [acc +] rows [begin, begin + n) of dx, scattered. */
struct part {
    const struct tt_call *call;
    tt_real *dw;
    const tt_real *acc;
    const int32_t *tokens; /* token ids or positions: the rows of dw */
    int64_t begin, n;
};

static void embedding_begin_tile(void *arg, int64_t tile, int worker)
{
    const struct part *p = arg;
    const struct tt_value *out = tt_call_out(p->call, 0);
    int64_t width = tt_value_width(out);
    struct tt_range part = tt_tile_range(tt_value_rows(out), EMBEDDING_TILE_ROWS, tile);
    size_t bytes = (size_t)(part.n * width) * sizeof(tt_real);
    tt_real *dw = p->dw + part.begin * width;

    (void)worker;
    if (p->acc)
        memcpy(dw, p->acc + part.begin * width, bytes);
    else
        memset(dw, 0, bytes);
}

/* For a part of the vocabulary: runs of tokens that belong to it, in order, with their rows. */
static void scatter_own(const struct part *p, const struct tt_range *columns)
{
    const struct tt_call *call = p->call;
    int64_t width = tt_value_width(tt_call_in(call, 0)), end = p->begin + p->n;
    struct tt_range own = own_tokens(&call->node->attr, tt_value_rows(tt_call_out(call, 0)));
    const int32_t *tokens = p->tokens, *rows = call->scratch;

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
                      tt_call_in_at(call, 0, p->begin * width + columns.begin), p->tokens + p->begin, p->n, width,
                      columns.n);
}

static void scatter(struct part *p)
{
    const struct tt_value *out = tt_call_out(p->call, 0);

    if (p->acc != p->dw)
        tt_team_run(p->call->team, tt_tiles(tt_value_rows(out), EMBEDDING_TILE_ROWS), embedding_begin_tile, p);
    tt_team_run(p->call->team, tt_tiles(tt_value_width(out), TILE_COLUMNS), scatter_tile, p);
}

/* Scratch: the rows, in a part of the vocabulary, that tokens name; then the stack of sums over grains of rows. */
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
    struct tt_range own = own_tokens(&call->node->attr, tt_value_rows(tt_call_out(call, 0)));
    const int32_t *tokens = call->in[1];
    int32_t *rows = call->scratch;

    for (int64_t i = 0; i < tt_value_rows(tt_call_in(call, 0)); i++)
        rows[i] = (int32_t)(tokens[i] - own.begin);
}

static void scatter_grain(void *arg, int64_t grain, tt_real *to)
{
    const struct tt_call *call = arg;
    struct tt_range part =
        tt_tile_range(tt_value_rows(tt_call_in(call, 0)), tt_grain_size(&call->node->attr.rows), grain);

    scatter(&(struct part){call, to, NULL, call->in[1], part.begin, part.n});
}

static void embedding_run_bwd(const struct tt_call *call)
{
    int64_t grain = tt_grain_size(&call->node->attr.rows), rows = tt_value_rows(tt_call_in(call, 0));
    tt_real *stack = (tt_real *)((char *)call->scratch + ids_bytes(call->graph, call->node));

    if (call->node->attr.peers.n > 1)
        local_rows(call);
    if (grain)
        tt_op_sum_grains(call->team, tt_tiles(rows, grain), tt_value_elements(tt_call_out(call, 0)), stack, call->in[2],
                         call->out[0], scatter_grain, (void *)call);
    else
        scatter(&(struct part){call, call->out[0], call->in[2], call->in[1], 0, rows});
}

const struct tt_op_row TT_OF_TYPE(tt_op_embedding) = {
    .name = "embedding",
    .unpacks = 1U << 1,
    .in = {TT_TYPE_IDS, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .infer = embedding_infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_EMBEDDING_BWD, 1, 1, {TT_DY0, TT_X0, TT_DX1}}},
    .run = tt_op_run_rows,
    .tile = gather_tile,
    .tile_rows = EMBEDDING_TILE_ROWS,
    .cost = embedding_cost,
};

const struct tt_op_row TT_OF_TYPE(tt_op_embedding_bwd) = {
    .name = "embedding_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .infer = embedding_infer_bwd,
    .run = embedding_run_bwd,
    .flops = 1.0,
    .scratch_bytes = scratch_bwd,
    .alias = {3},
};

/*
 * PICK_ROWS: each of n peers has looked up its part of the vocabulary and sent a block of rows; this picks the rows
 * that were found. Row r of the result belongs to token peers.index N + r, and comes from the block of the peer that
 * has the token.
 *   in   x (n N, D), in n blocks, tokens (n N)      out  y (N, D)
 *
 * PICK_ROWS_BWD: puts every row back into the block that it came from; other rows are 0.
 *   in   dy (N, D), tokens                          out  dx (n N, D)
 *   attr out (V), peers: n and this rank's place
 */

static int pick_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    int64_t rows = tt_value_rows(x), n = node->attr.peers.n, shape[2] = {0, tt_value_width(x)};

    if (n < 1 || rows % n != 0 || tt_value_elements(&graph->values[node->in[1]]) != rows)
        return tt_op_mismatch(graph, node, "x (n N, D) in a block for each peer, tokens (n N)");
    shape[0] = rows / n;
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static int pick_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dy = &graph->values[node->in[0]];
    int64_t shape[2] = {tt_value_rows(dy) * node->attr.peers.n, tt_value_width(dy)};

    if (tt_value_elements(&graph->values[node->in[1]]) != shape[0])
        return tt_op_mismatch(graph, node, "dy (N, D), and the tokens of all peers");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

/* A tile is a range of this rank's rows; forward reads the blocks, backward writes them. */
static void pick_run_tile(const struct tt_call *call, struct tt_range part)
{
    bool back = call->node->op == TT_OP_PICK_ROWS_BWD;
    const struct tt_value *rows = back ? tt_call_in(call, 0) : tt_call_out(call, 0);
    int64_t own = tt_value_rows(rows), width = tt_value_width(rows);
    const int32_t *tokens = (const int32_t *)call->in[1] + call->node->attr.peers.index * own;
    size_t bytes = (size_t)width * tt_dtype_size(rows->dtype);

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        int owner = owner_of(&call->node->attr, tokens[r]);

        if (!back) {
            memcpy(tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, (owner * own + r) * width), bytes);
            continue;
        }
        for (int b = 0; b < call->node->attr.peers.n; b++) {
            void *to = tt_call_out_at(call, 0, (b * own + r) * width);

            if (b == owner)
                memcpy(to, tt_call_in_at(call, 0, r * width), bytes);
            else
                memset(to, 0, bytes);
        }
    }
}

static void pick_run(const struct tt_call *call)
{
    bool back = call->node->op == TT_OP_PICK_ROWS_BWD;
    const struct tt_value *rows = back ? tt_call_in(call, 0) : tt_call_out(call, 0);

    tt_op_run_tiles(call, tt_value_rows(rows), EMBEDDING_TILE_ROWS, pick_run_tile);
}

static void pick_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->bytes = 2.0 * (double)tt_value_bytes(&graph->values[node->out[0]]);
}

const struct tt_op_row TT_OF_TYPE(tt_op_pick_rows) = {
    .name = "pick_rows",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_OUT,
    .infer = pick_infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_PICK_ROWS_BWD, 0, 1, {TT_DY0, TT_X1}}},
    .run = pick_run,
    .cost = pick_cost,
};

const struct tt_op_row TT_OF_TYPE(tt_op_pick_rows_bwd) = {
    .name = "pick_rows_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_OUT,
    .infer = pick_infer_bwd,
    .run = pick_run,
    .cost = pick_cost,
};

/*
 * POSITION: adds row n % T of a table of learned positions to row n, or the row that positions name.
 *   in   x (N, D), w (P, D) with P >= T, positions (N) or absent
 *   out  y (N, D), may take x's memory
 *   attr seq_len T, from_position, peers: x is this rank's part of the rows; positions are of all rows.
 *        With positions, the rows of a sequence need not be contiguous, and rows may be in grains.
 *   With from_position, the N <= T rows are the newest of one sequence: row n gets row scalars->position + n of the
 *   table, and those beyond scalars->rows are passed on.
 *
 * POSITION_BWD: the whole gradient of the table; the gradient of x is dy itself.
 *   in   dy (N, D), acc (P, D) or none, positions (N) or absent
 *   out  dw (P, D) = [acc +] the sum over sequences, may take acc's memory
 *   The rows of a sequence lie one after the other, so the first T rows of the table are one vector of T*D elements
 *   that every sequence adds to, in order. With positions rows are added one by one, in order. If N has grains, the
 *   gradients of the grains are added as a tree: that is what EMBEDDING_BWD does.
 */

enum {
    TILE = 4096,
    POSITION_TILE_ROWS = 16,
};

/* For ranks that each hold a part of the rows. */
static int64_t parts_of(const struct tt_attr *attr)
{
    return attr->peers.n > 1 ? attr->peers.n : 1;
}

static int position_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
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

/* With peers every rank computes the gradient of the whole table. */
static int position_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    struct tt_node forward = graph->nodes[node];
    bool grains = tt_grain_size(&forward.attr.rows) != 0;
    int in[3] = {grad_out[0], grad_in[1], forward.in[2]}, in_grains[3], grad, rc = 0;

    TT_TRY(tt_rule_add(graph, &forward, 0, grad_out[0], grad_in));
    if (!tt_rule_wanted(graph, forward.in[1]))
        return 0;
    if (forward.attr.peers.n > 1) { /* the peers that have the gradients of the other rows */
        const struct tt_value *dy = &graph->values[grad_out[0]];
        int64_t shape[2] = {tt_value_rows(dy) * forward.attr.peers.n, tt_value_width(dy)};

        in[0] = tt_rule_value(graph, grad_out[0], "gathered", dy->dtype, 2, shape, false);
        TT_TRY(tt_rule_push(graph, &(struct tt_node){.op = TT_OP_GATHER_ROWS,
                                                     .backward = true,
                                                     .block = forward.block,
                                                     .n_in = 1,
                                                     .in = {grad_out[0]},
                                                     .n_out = 1,
                                                     .out = {in[0]},
                                                     .attr = {.peers = forward.attr.peers}}));
    }
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
static void new_rows_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t width = tt_value_width(tt_call_in(call, 0));

    TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, part.begin), tt_call_in_at(call, 0, part.begin),
                  tt_call_in_at(call, 1, call->scalars->position * width + part.begin), part.n);
}

static void run_new_rows(const struct tt_call *call)
{
    int64_t all = tt_value_elements(tt_call_in(call, 0));
    int64_t n = call->scalars->rows * tt_value_width(tt_call_in(call, 0));

    tt_op_run_tiles(call, n, TILE, new_rows_tile);
    if (call->out[0] != call->in[0])
        memcpy(tt_call_out_at(call, 0, n), tt_call_in_at(call, 0, n),
               (size_t)(all - n) * tt_dtype_size(tt_call_in(call, 0)->dtype));
}

/* A tile is a range of rows, each with its own position: in its document, or in its sequence. */
static void document_rows_tile(const struct tt_call *call, struct tt_range part)
{
    const int32_t *positions = call->in[2];
    int64_t rows = tt_value_rows(tt_call_in(call, 0)), width = tt_value_width(tt_call_in(call, 0));
    int64_t first = call->node->attr.peers.index * rows;

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        int64_t position = positions ? positions[first + r] : (first + r) % call->node->attr.seq_len;

        TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width),
                      tt_call_in_at(call, 1, position * width), width);
    }
}

static void position_run(const struct tt_call *call)
{
    int64_t batch = tt_value_rows(tt_call_in(call, 0)) / call->node->attr.seq_len;

    if (call->node->attr.from_position) {
        run_new_rows(call);
        return;
    }
    if (call->in[2] || parts_of(&call->node->attr) > 1) {
        tt_op_run_tiles(call, tt_value_rows(tt_call_in(call, 0)), POSITION_TILE_ROWS, document_rows_tile);
        return;
    }
    tt_team_run(call->team, batch * tt_tiles(sequence(call), TILE), run_tile, (void *)call);
}

/* The rule above must have chosen the output: the inputs do not determine P. */
static int position_infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
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

/* For positions within the sequence, the gradient is the sum over the batch; for later ones it is 0. */
static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t n = sequence(call), tiles = tt_tiles(n, TILE), batch = tt_value_rows(tt_call_in(call, 0));
    int64_t rest = tt_value_elements(tt_call_out(call, 0)) - n;
    struct tt_range part = tile < tiles ? tt_tile_range(n, TILE, tile) : tt_tile_range(rest, TILE, tile - tiles);
    int64_t at = tile < tiles ? part.begin : n + part.begin;
    const tt_real *acc = call->in[1] ? (const tt_real *)call->in[1] + at : NULL;
    tt_real *dw = (tt_real *)call->out[0] + at;

    (void)worker;
    if (tile < tiles)
        TT_RUN_KERNEL(call, sum_rows, dw, acc, tt_call_in_at(call, 0, at), batch / call->node->attr.seq_len, n, part.n);
    else if (!acc)
        memset(dw, 0, (size_t)part.n * sizeof *dw);
    else if (acc != dw)
        memcpy(dw, acc, (size_t)part.n * sizeof *dw);
}

static void position_run_bwd(const struct tt_call *call)
{
    int64_t n = sequence(call), rest = tt_value_elements(tt_call_out(call, 0)) - n;

    if (call->in[2])
        scatter(&(struct part){call, call->out[0], call->in[1], call->in[2], 0, tt_value_rows(tt_call_in(call, 0))});
    else
        tt_team_run(call->team, tt_tiles(n, TILE) + tt_tiles(rest, TILE), bwd_tile, (void *)call);
}

const struct tt_op_row TT_OF_TYPE(tt_op_position) = {
    .name = "position",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ROWS,
    .infer = position_infer,
    .backward = position_backward,
    .run = position_run,
    .flops = 1.0,
    .alias = {1},
};

const struct tt_op_row TT_OF_TYPE(tt_op_position_bwd) = {
    .name = "position_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_F32},
    .infer = position_infer_bwd,
    .run = position_run_bwd,
    .flops = 1.0,
    .alias = {2},
};
