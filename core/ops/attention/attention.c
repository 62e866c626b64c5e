/* SPDX-License-Identifier: MIT
 *
 * ATTENTION: o = softmax(scale q k^T) v, causal inside each sequence of T rows, for every query head; query head h
 * reads key/value head h / (H / K). With positions, attention is causal inside each document of a sequence.
 *   in   q (N, H*E), k (M, K*E), v (M, K*Ev), positions (N) or absent, sinks (H) or absent
 *   out  o (N, H*Ev), lse (N, H): log of the sum of exp of each row, including the head's sink
 *   attr seq_len, heads, kv_heads, head_dim (E), value_dim (Ev; 0: E), scale (0: 1 / sqrt(E)), soft_cap (0: none),
 *        sliding_window (0: none); rows (N), in grains of whole sequences; out (K); pieces: q holds the rows of some
 *        grains of every sequence, k and v the rows of all grains, in the order of core/graph/pieces.h. Without grains
 *        N is M.
 *
 * With a soft cap a score s becomes soft_cap tanh(s / soft_cap) before the mask (Gemma 2).
 *
 * A sink is a score that takes its share of a row's softmax but has no value (Xiao et al. 2023). lse includes the sink,
 * so backward needs nothing else from it; SINKS_BWD computes the gradient of the sink itself.
 *
 * A tile is TT_ATTENTION_ROWS rows of a piece of a head.
 */
#include "core/ops/attention/attention.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { GATHER_ROWS = 128, LINE = 64, SINKS = 4 /* index of the input */ };

/*
 * SINKS_BWD: the gradient of the sinks of ATTENTION. A sink's share of a row's softmax is exp(sink - lse), and it has
 * no value, so the gradient of its score is -share * dot(do, o), and the gradient of a head's sink is the sum over
 * rows.
 *   in   do, o (N, H*Ev), lse (N, H), sinks (H), acc (H) or none
 *   out  dsinks (H) = [acc +] the sum, may take acc's memory
 *   Summed over blocks of SUM_ROWS rows, then over the blocks (struct tt_row_sums). attr heads, rows (N).
 */

enum { SUM_ROWS = 64 };
enum { DO, O, LSE, BWD_SINKS, ACC }; /* inputs */

const tt_real *tt_attention_sinks(const struct tt_call *call, int input, int64_t first, int64_t n, tt_real *to)
{
    if (!call->in[input])
        return NULL;
    if (tt_call_in(call, input)->dtype == TT_REAL_TYPE)
        return tt_call_in_at(call, input, first);
    tt_kernels()->bf16_widen(to, tt_call_in_at(call, input, first), n);
    return to;
}

/* Adds the gradient of the sinks to the graph, if an ATTENTION has trained sinks. */
static int sinks_backward(struct tt_graph *graph, const struct tt_node *forward, int grad_out, int *grad_in)
{
    int sinks = forward->in[SINKS], rc = 0, grad;
    int in[5] = {grad_out, forward->out[0], forward->out[1], sinks, grad_in[SINKS]};

    if (sinks == TT_NONE || !tt_rule_wanted(graph, sinks))
        return 0;
    TT_TRY(tt_rule_node(graph, TT_OP_SINKS_BWD, forward, in, 5, &sinks, 1, &grad));
    tt_rule_set(forward, SINKS, grad, grad_in);
out:
    return rc;
}

static int sinks_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dout = &graph->values[node->in[DO]];
    int64_t rows = tt_value_rows(dout), width = tt_value_width(dout), heads = node->attr.heads;

    if (heads < 1 || width % heads != 0 || !tt_op_acc_fits(graph, node, O, rows, width) ||
        !tt_op_acc_fits(graph, node, LSE, rows, heads) || !tt_op_acc_fits(graph, node, BWD_SINKS, 1, heads) ||
        !tt_op_acc_fits(graph, node, ACC, 1, heads) || !tt_grain_fits(&node->attr.rows, rows))
        return tt_op_mismatch(graph, node, "do, o (N, H*Ev), lse (N, H), sinks, acc (H)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &heads);
}

static void sinks_block(const struct tt_call *call, struct tt_range rows, tt_real *to)
{
    int64_t heads = call->node->attr.heads, width = tt_value_width(tt_call_in(call, DO));

    TT_RUN_KERNEL(call, sinks_bwd, to, tt_call_in_at(call, DO, rows.begin * width),
                  tt_call_in_at(call, O, rows.begin * width), tt_call_in_at(call, LSE, rows.begin * heads),
                  call->in[BWD_SINKS], rows.n, heads, width / heads);
}

static struct tt_row_sums sinks_sums(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t rows = tt_value_rows(&graph->values[node->in[DO]]);

    return (struct tt_row_sums){.blocks = tt_row_blocks_of(&node->attr.rows, rows, 1, SUM_ROWS),
                                .columns = node->attr.heads,
                                .n = 1,
                                .acc = ACC,
                                .block = sinks_block};
}

const struct tt_op_row TT_OF_TYPE(tt_op_sinks_bwd) = {
    .name = "sinks_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_ATTENTION,
    .infer = sinks_infer,
    .run = tt_op_run_sums,
    .sums = sinks_sums,
    .flops = 2.0,
    .scratch_bytes = tt_op_sums_scratch,
    .alias = {5},
};

/* --- ATTENTION --- */

/* The pieces of the sequences in a node with `keys` rows of keys. */
struct pieces {
    struct tt_pieces of;
    int64_t sequences;
    int64_t length;     /* size of a piece */
    int64_t first, own; /* the places of the pieces that the queries come from */
};

static struct pieces pieces_of(const struct tt_attr *attr, int64_t keys)
{
    return (struct pieces){.of = attr->pieces,
                           .sequences = keys / attr->seq_len,
                           .length = attr->seq_len / tt_pieces_count(&attr->pieces),
                           .first = tt_pieces_first(&attr->pieces),
                           .own = tt_pieces_own(&attr->pieces)};
}

static bool pieces_fit(const struct tt_attr *attr, int64_t rows, int64_t keys)
{
    const struct tt_pieces *pieces = &attr->pieces;

    if (pieces->grains > 1 && (pieces->first < 0 || pieces->own < 1 || pieces->head_ranks < 1 ||
                               pieces->first + pieces->own > pieces->grains))
        return false;
    return keys % attr->seq_len == 0 && attr->seq_len % tt_pieces_count(pieces) == 0 &&
           rows * tt_pieces_count(pieces) == keys * tt_pieces_own(pieces);
}

/* Whether inputs q, q + 1 and q + 2 of the node have the shapes of q, k and v, and input `positions`, if any, has the
 * right one. */
static bool attention_fits(const struct tt_graph *graph, const struct tt_node *node, int q, int positions)
{
    const struct tt_attr *attr = &node->attr;
    int64_t rows = tt_value_rows(&graph->values[node->in[q]]), keys = tt_value_rows(&graph->values[node->in[q + 1]]);
    int64_t width = attr->value_dim ? attr->value_dim : attr->head_dim;

    return attr->seq_len > 0 && attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0 &&
           pieces_fit(attr, rows, keys) && tt_grain_fits(&attr->rows, rows) &&
           tt_grain_fits(&attr->out, attr->kv_heads) && (tt_grain_size(&attr->rows) % attr->seq_len == 0) &&
           tt_op_positions_fit(graph, node, positions, rows) &&
           tt_op_acc_fits(graph, node, q, rows, (int64_t)attr->heads * attr->head_dim) &&
           tt_op_acc_fits(graph, node, q + 1, keys, (int64_t)attr->kv_heads * attr->head_dim) &&
           tt_op_acc_fits(graph, node, q + 2, keys, attr->kv_heads * width);
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value q = graph->values[node->in[0]];
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    int64_t lse[2] = {tt_value_rows(&q), node->attr.heads}, out[TT_MAX_DIMS];
    int rc = 0;

    if (!attention_fits(graph, node, 0, 3) || !tt_op_acc_fits(graph, node, SINKS, 1, node->attr.heads))
        return tt_op_mismatch(graph, node,
                              "q (N, H*E), k (B*T, K*E), v (B*T, K*Ev), H a multiple of K, positions (N), sinks (H)");
    memcpy(out, q.shape, sizeof out);
    out[q.ndim - 1] = shape.heads * tt_attention_value_dim(&shape);
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, q.ndim, out));
    TT_TRY(tt_op_output(graph, node, 1, name, "lse", 2, lse));
out:
    return rc;
}

/*
 * Repeats the gather of keys and values from forward, so that a rank need not keep them until backward. They travel
 * while gradients of weights are computed.
 */
static int gather_again(struct tt_graph *graph, int grad_out, int *value)
{
    int producer = graph->values[*value].producer, after = graph->values[grad_out].producer, rc = 0;
    struct tt_node node;
    char *name = NULL;

    if (producer == TT_NONE || tt_op_row(graph->nodes[producer].op)->exchange != TT_EXCHANGE_GATHER)
        return 0;
    node = graph->nodes[producer];
    node.backward = true;
    node.n_out = 0;
    name = tt_format("%s.again", graph->values[*value].name);
    TT_TRY(tt_graph_try_node(graph, &node, name));
    *value = tt_graph_out(graph, graph->n_nodes - 1);
    if (after != TT_NONE && graph->nodes[after].backward)
        tt_rule_move_last(graph, after + 1);
out:
    tt_free(name);
    return rc;
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[7] = {grad_out[0],    forward.in[0],  forward.in[1], forward.in[2],
                 forward.out[0], forward.out[1], forward.in[3]};
    int grad[3], rc = 0;

    for (int i = 2; i <= 3; i++)
        TT_TRY(gather_again(graph, grad_out[0], &in[i]));
    TT_TRY(tt_rule_node(graph, TT_OP_ATTENTION_BWD, &forward, in, 7, forward.in, 3, grad));
    for (int i = 0; i < 3; i++)
        TT_TRY(tt_rule_add(graph, &forward, i, grad[i], grad_in));
    TT_TRY(sinks_backward(graph, &forward, grad_out[0], grad_in));
out:
    return rc;
}

struct tt_attention_shape tt_attention_shape_of(const struct tt_attr *attr)
{
    return (struct tt_attention_shape){.seq_len = attr->seq_len,
                                       .heads = attr->heads,
                                       .kv_heads = attr->kv_heads,
                                       .head_dim = attr->head_dim,
                                       .value_dim = attr->value_dim,
                                       .scale = (tt_real)attr->scale,
                                       .soft_cap = (tt_real)attr->soft_cap,
                                       .window = attr->sliding_window};
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* For the kernel on AMX tiles (vector/amx_attention.c), whose matrices consist of whole squares of 32. */
static int64_t fwd_tiles_scratch(const struct tt_attention_shape *shape)
{
    int64_t widest = tt_round_up(tt_attention_widest(shape), 32);

    return TT_ATTENTION_ROWS * (3 * widest / 2 + 17) + TT_ATTENTION_TILE_KEYS * (widest + 48) + 16;
}

/* In bfloat16, includes room for rows of q, k, v and o widened to float32. */
int64_t tt_attention_fwd_scratch(const struct tt_attention_shape *shape, bool bf16)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t widest = tt_attention_widest(shape), dim = tt_attention_lines(widest);

    if (!bf16)
        return larger(TT_ATTENTION_ROWS * tile, TT_ATTENTION_PANEL * (2 * widest + TT_ATTENTION_BLOCK + 3));
    return larger(
        larger(TT_ATTENTION_ROWS * tile + (INT64_C(2) * TT_ATTENTION_ROWS + tile) * dim, fwd_tiles_scratch(shape)),
        TT_ATTENTION_PANEL * (3 * dim + INT64_C(2) * TT_ATTENTION_BLOCK) + INT64_C(2) * TT_ATTENTION_BLOCK * dim);
}

/*
 * The forward pass gathers k and v by heads first: every tile of rows reads all earlier keys, and rows of 16 floats at
 * a power-of-two stride would share a few sets of the cache. Scratch: k (B, K, T, E), v (B, K, T, Ev), then the scratch
 * of each worker.
 */
static int64_t heads_bytes(const struct tt_graph *graph, const struct tt_node *node, int input)
{
    return tt_round_up(tt_value_bytes(&graph->values[node->in[input]]), LINE);
}

static int64_t worker_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);

    return tt_attention_lines(tt_attention_fwd_scratch(&shape, tt_op_is_bf16(graph, node))) * (int64_t)sizeof(tt_real);
}

/* Index of the input k; v is the next one. */
static int k_of(const struct tt_node *node)
{
    return node->op == TT_OP_ATTENTION ? 1 : 2;
}

/* A tile is a range of the rows of k and v. */
static void gather_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int first = k_of(call->node);
    const struct tt_value *k = tt_call_in(call, first);
    const struct tt_attention_shape shape = tt_attention_shape_of(&call->node->attr);
    struct pieces pieces = pieces_of(&call->node->attr, tt_value_rows(k));
    struct tt_range part = tt_tile_range(tt_value_rows(k), GATHER_ROWS, tile);
    int64_t element = (int64_t)tt_dtype_size(k->dtype);
    int64_t row_bytes[2] = {shape.head_dim * element, tt_attention_value_dim(&shape) * element};
    char *to[2] = {call->scratch, (char *)call->scratch + heads_bytes(call->graph, call->node, first)};

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        int64_t place = row / (pieces.sequences * pieces.length), sequence = row / pieces.length % pieces.sequences;
        int64_t key = tt_piece_at(&pieces.of, place) * pieces.length + row % pieces.length;

        for (int64_t head = 0; head < shape.kv_heads; head++) {
            int64_t at = row * shape.kv_heads + head;
            int64_t to_row = (sequence * shape.kv_heads + head) * shape.seq_len + key;

            for (int i = 0; i < 2; i++)
                memcpy(to[i] + to_row * row_bytes[i], (const char *)call->in[first + i] + at * row_bytes[i],
                       (size_t)row_bytes[i]);
        }
    }
}

/* Copies k and v to the start of the scratch of a call, by heads: k (B, K, T, E), then v (B, K, T, Ev). */
static void gather_heads(const struct tt_call *call)
{
    int64_t rows = tt_value_rows(tt_call_in(call, k_of(call->node)));

    tt_team_run(call->team, tt_tiles(rows, GATHER_ROWS), gather_tile, (void *)call);
}

/* The place, among this rank's pieces, of the piece whose rows see the i-th most keys. */
static int64_t by_length(const struct pieces *pieces, int64_t i)
{
    if (tt_pieces_of_grain(&pieces->of) == 1)
        return pieces->own - 1 - i;
    return 2 * i < pieces->own ? 2 * i + 1 : 2 * (pieces->own - 1 - i);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_attention_shape shape = tt_attention_shape_of(&call->node->attr);
    struct pieces pieces = pieces_of(&call->node->attr, tt_value_rows(tt_call_in(call, 1)));
    int64_t all = pieces.sequences * shape.heads, blocks = tt_tiles(pieces.length, TT_ATTENTION_ROWS);
    int64_t sequence = tile % all / shape.heads, head = tile % shape.heads;
    /* the rows that see most keys first, so that no thread is left with one at the end */
    int64_t place = by_length(&pieces, tile / all / blocks);
    struct tt_range part = tt_tile_range(pieces.length, TT_ATTENTION_ROWS, blocks - 1 - tile / all % blocks);
    int64_t row = (place * pieces.sequences + sequence) * pieces.length;
    int64_t kv_head = head / (shape.heads / shape.kv_heads);
    int64_t width = tt_attention_value_dim(&shape), at = row * shape.heads + head;
    int64_t gathered =
        (sequence * shape.kv_heads + kv_head) * shape.seq_len * (int64_t)tt_dtype_size(tt_call_in(call, 1)->dtype);
    const char *k = call->scratch, *v = k + heads_bytes(call->graph, call->node, 1);
    const char *workers = v + heads_bytes(call->graph, call->node, 2);
    void *scratch = (char *)call->scratch + (workers - k) + worker * worker_bytes(call->graph, call->node);
    tt_real sink;

    shape.positions = tt_call_in_at(call, 3, row);
    shape.sinks = tt_attention_sinks(call, SINKS, head, 1, &sink);
    shape.begin = tt_piece_at(&pieces.of, pieces.first + place) * pieces.length;
    shape.end = shape.begin + pieces.length;
    TT_RUN_KERNEL(call, attention_fwd, tt_call_out_at(call, 0, at * width), tt_call_out_at(call, 1, at),
                  tt_call_in_at(call, 0, at * shape.head_dim), (const void *)(k + gathered * shape.head_dim),
                  (const void *)(v + gathered * width), &shape, shape.begin + part.begin, part.n, scratch);
}

static void run(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    struct pieces pieces = pieces_of(attr, tt_value_rows(tt_call_in(call, 1)));

    gather_heads(call);
    tt_team_run(call->team, pieces.own * pieces.sequences * attr->heads * tt_tiles(pieces.length, TT_ATTENTION_ROWS),
                run_tile, (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    return heads_bytes(graph, node, 1) + heads_bytes(graph, node, 2) + threads * worker_bytes(graph, node);
}

/* The number of pairs (row, key) in the first `rows` rows of a sequence. */
static double pairs_of_rows(double rows, double window)
{
    return rows <= window ? rows * (rows + 1.0) / 2.0 : window * (window + 1.0) / 2.0 + (rows - window) * window;
}

/* The same for the rows of a piece that begins at `begin`. */
static double pairs_of_piece(const struct tt_attr *attr, double begin, double length)
{
    double window = (double)attr->sliding_window;

    if (!attr->sliding_window)
        return (begin + (length + 1.0) / 2.0) * length;
    return pairs_of_rows(begin + length, window) - pairs_of_rows(begin, window);
}

/*
 * The number of pairs (row, key) that the causal mask leaves, over all heads. A plan does not know where documents
 * begin; they can only make the step shorter than predicted.
 */
static double pairs(const struct tt_graph *graph, const struct tt_node *node)
{
    struct pieces pieces = pieces_of(&node->attr, tt_value_rows(&graph->values[node->in[k_of(node)]]));
    double sum = 0.0;

    for (int64_t i = 0; i < pieces.own; i++)
        sum += pairs_of_piece(&node->attr, (double)(tt_piece_at(&pieces.of, pieces.first + i) * pieces.length),
                              (double)pieces.length);
    return sum * (double)pieces.sequences * node->attr.heads;
}

/* Forward has two products. Backward has five, two of which have the width of the values. */
static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    double keys = 2.0 * (double)shape.head_dim, values = 2.0 * (double)tt_attention_value_dim(&shape);

    ret_cost->flops = (node->op == TT_OP_ATTENTION ? keys + values : 3.0 * keys + 2.0 * values) * pairs(graph, node);
    ret_cost->inner = (double)shape.head_dim;
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row TT_OF_TYPE(tt_op_attention) = {
    .name = "attention",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE},
    .may_lack = 1,
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_ATTENTION,
    .weight = TT_WEIGHT_ATTENTION,
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};

/*
 * ATTENTION_BWD: computes the probabilities again from lse, tile by tile.
 *   in   do, q, k, v, o, lse, positions or absent      out  dq, dk, dv      (shapes as above)
 *
 * A task is a key/value head of a sequence with some of its query heads and a range of its keys. Scratch holds partial
 * sums, which are added in order at the end: dk and dv for the query heads after the first part, and dq for the ranges
 * after the first. Their number depends only on the shape of a grain: small enough to cost little, and large enough to
 * keep 16 threads busy. run_pieces handles sequences in grains.
 */

enum {
    TASKS_WANTED = 32,
    KEYS_MIN = 256, /* keys of a range, on average; with fewer, the sums of dq and the packing of q cost too much */
};

struct split {
    int64_t rows, sequences;
    int64_t parts; /* parts of the query heads of a key/value head */
    int64_t heads; /* heads in each part */
    int64_t ranges;
};

/* The number of ranges of a sequence; tasks: the number of tasks without ranges. */
static int64_t ranges_of(int64_t seq_len, int64_t tasks)
{
    int64_t ranges = 1;

    while (tasks * ranges < TASKS_WANTED && seq_len / (2 * ranges) >= KEYS_MIN)
        ranges *= 2;
    return ranges;
}

static struct split split_of(const struct tt_attr *attr, const struct tt_attention_shape *shape, int64_t rows)
{
    int64_t group = shape->heads / shape->kv_heads;
    struct split split = {.rows = rows, .sequences = rows / shape->seq_len, .parts = 1, .ranges = 1};
    int64_t tasks = tt_grain_or(&attr->rows, rows) / shape->seq_len * tt_grain_or(&attr->out, shape->kv_heads);

    while (split.parts < group && (tasks * split.parts < TASKS_WANTED || group % split.parts != 0))
        split.parts++;
    split.heads = group / split.parts;
    split.ranges = ranges_of(shape->seq_len, tasks * split.parts);
    return split;
}

/* The first key of range i of n. All ranges have equal work, so later ranges are longer: fewer rows see later keys. */
static int64_t range_begin(int64_t seq_len, int64_t i, int64_t n)
{
    double share = 1.0 - sqrt(1.0 - (double)i / (double)n);

    if (i == n)
        return seq_len;
    return (int64_t)(share * (double)seq_len) / TT_ATTENTION_PANEL * TT_ATTENTION_PANEL;
}

/* The number of keys in the longest of n ranges. */
static int64_t longest_range(int64_t seq_len, int64_t n)
{
    int64_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t keys = range_begin(seq_len, i + 1, n) - range_begin(seq_len, i, n);

        most = keys > most ? keys : most;
    }
    return most;
}

/* For the kernel on AMX tiles, as in forward. */
static int64_t bwd_tiles_scratch(const struct tt_attention_shape *shape, int64_t keys)
{
    int64_t widest = tt_round_up(tt_attention_widest(shape), 32), rows = tt_round_up(shape->seq_len, 32);
    int64_t strip = rows < TT_ATTENTION_STRIP ? rows : TT_ATTENTION_STRIP;

    return strip * (3 * widest + 2) + TT_ATTENTION_BLOCK * (2 * widest + INT64_C(2) * TT_ATTENTION_BLOCK) +
           2 * tt_round_up(keys, 32) * widest;
}

/* In bfloat16, includes room for rows of q, do, k and v widened to float32, or for pairs of rows. */
int64_t tt_attention_bwd_scratch(const struct tt_attention_shape *shape, int64_t keys, bool bf16)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t widest = tt_attention_widest(shape), dim = tt_attention_lines(widest);
    int64_t panels = tt_tiles(keys, TT_ATTENTION_PANEL), rows = tt_attention_lines(shape->seq_len);
    int64_t strip = rows < TT_ATTENTION_STRIP ? rows : TT_ATTENTION_STRIP;

    if (!bf16)
        return larger(tile * 2 * TT_ATTENTION_ROWS, strip * (2 * widest + dim + 2) +
                                                        TT_ATTENTION_PANEL * (2 * widest + dim) +
                                                        INT64_C(2) * TT_ATTENTION_BLOCK * TT_ATTENTION_PANEL +
                                                        2 * panels * TT_ATTENTION_PANEL * widest);
    return larger(larger(INT64_C(2) * TT_ATTENTION_ROWS * tile + 2 * (TT_ATTENTION_ROWS + tile) * dim,
                         bwd_tiles_scratch(shape, keys)),
                  strip * (3 * dim + 2) +
                      TT_ATTENTION_PANEL * (4 * dim + INT64_C(4) * TT_ATTENTION_BLOCK + 2 * panels * dim));
}

/*
 * --- sequences in pieces ---
 *
 * Ranks may divide the grains of a sequence among them. A rank then has the queries of some grains, but the keys and
 * values of all grains. The gradients of keys and values are sums over rows, with one term per grain. The terms are
 * added as a tree that other ranks continue, so the bits do not depend on which rank has which grain.
 *
 * A task is a key/value head of a sequence, with all its query heads, and a range of its keys. It computes the terms of
 * one grain after the other into a stack. dq of the ranges is added in order at the end. The number of ranges depends
 * only on the whole sequence, not on this rank's heads.
 */

struct piece_work {
    const struct tt_call *call;
    struct tt_attention_shape shape;
    struct pieces pieces;
    int64_t kv_heads, ranges;
    bool bf16;
    bool dq_is_output; /* range 0 writes dq to the output; otherwise it is first in scratch */
    int64_t dq, term;  /* floats of dq, and of a term of dk and dv */
    int64_t values;    /* offset of dv in a term */
    int64_t widths[2]; /* width of a key and of a value */
    int64_t kernel, worker;
    tt_real *dqs, *workers; /* in scratch */
};

static int grains_own(const struct piece_work *run)
{
    return run->pieces.of.own;
}

static struct piece_work run_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    int64_t keys = tt_value_rows(&graph->values[node->in[2]]), longest, tasks;
    struct piece_work run = {.shape = tt_attention_shape_of(attr),
                             .pieces = pieces_of(attr, keys),
                             .kv_heads = attr->kv_heads,
                             .bf16 = tt_op_is_bf16(graph, node),
                             .dq_is_output = graph->values[node->out[0]].dtype == TT_REAL_TYPE};

    run.shape.kv_heads = 1; /* the rows of a key/value head are contiguous */
    tasks = run.pieces.sequences * tt_grain_or(&attr->out, attr->kv_heads) * attr->pieces.head_ranks;
    run.ranges = ranges_of(attr->seq_len, tasks);
    longest = longest_range(attr->seq_len, run.ranges);
    run.dq = tt_attention_lines(tt_value_elements(&graph->values[node->in[1]]));
    run.widths[0] = attr->head_dim;
    run.widths[1] = tt_attention_value_dim(&run.shape);
    run.values = tt_attention_lines(longest * run.widths[0]);
    run.term = run.values + tt_attention_lines(longest * run.widths[1]);
    run.kernel = tt_attention_lines(tt_attention_bwd_scratch(&run.shape, longest, run.bf16));
    run.worker = run.kernel + (tt_tree_stack_depth(grains_own(&run)) + 1) * run.term;
    return run;
}

static tt_real *piece_dq_of(const struct piece_work *run, int64_t range)
{
    int64_t at = range - (run->dq_is_output ? 1 : 0);

    return at < 0 ? run->call->out[0] : run->dqs + at * run->dq;
}

struct task {
    const struct piece_work *run;
    int64_t sequence, kv_head, range;
    int64_t begin, keys; /* keys of the range */
    tt_real *kernel, *terms;
};

/* dk (k 0) or dv (k 1) at one level of the stack. */
static tt_real *term_of(const struct task *task, int64_t place, int k)
{
    return task->terms + place * task->run->term + k * task->run->values;
}

static void add_terms(const struct task *task, int64_t into, int64_t from)
{
    for (int k = 0; k < 2; k++) {
        tt_real *to = term_of(task, into, k);

        tt_kernels()->add(to, to, term_of(task, from, k), task->keys * task->run->widths[k]);
    }
}

/* Multiplies the rows of this rank's piece at `place` with the keys of the range. */
static void run_piece(const struct task *task, int64_t place, struct tt_attention_shape shape, int64_t to)
{
    const struct piece_work *run = task->run;
    const struct tt_call *call = run->call;
    const struct pieces *pieces = &run->pieces;
    int64_t row = (place * pieces->sequences + task->sequence) * pieces->length;
    int64_t heads = shape.heads / run->kv_heads, head = row * shape.heads + task->kv_head * heads;
    int64_t q_at = head * run->widths[0], o_at = head * run->widths[1];
    int64_t by_heads = (task->sequence * run->kv_heads + task->kv_head) * shape.seq_len *
                       (int64_t)tt_dtype_size(tt_call_in(call, 2)->dtype);
    const char *keys = call->scratch, *values = keys + heads_bytes(call->graph, call->node, 2);
    const void *k = keys + by_heads * run->widths[0], *v = values + by_heads * run->widths[1];
    const void *dout = tt_call_in_at(call, 0, o_at), *q = tt_call_in_at(call, 1, q_at);
    const void *o = tt_call_in_at(call, 4, o_at);
    const tt_real *lse = tt_call_in_at(call, 5, head);
    tt_real *dq = piece_dq_of(run, task->range) + q_at, *dk = term_of(task, to, 0), *dv = term_of(task, to, 1);

    shape.positions = tt_call_in_at(call, 6, row);
    if (run->bf16)
        tt_kernels()->attention_bwd_bf16(&(struct tt_attention_bf16_grads){dq, dk, dv, dout, q, k, v, o, lse}, &shape,
                                         heads, task->begin, task->keys, task->kernel);
    else
        tt_kernels()->attention_bwd(&(struct tt_attention_grads){dq, dk, dv, dout, q, k, v, o, lse}, &shape, heads,
                                    task->begin, task->keys, task->kernel);
}

/* Computes the terms of this rank's grain g, piece by piece. If all rows of a piece come before the keys, the piece has
 * no term. */
static void run_grain(const struct task *task, int64_t g, int64_t to)
{
    const struct piece_work *run = task->run;
    const struct pieces *pieces = &run->pieces;
    int64_t n = tt_pieces_of_grain(&pieces->of), spare = tt_tree_stack_depth(grains_own(run));
    struct tt_attention_shape shape = run->shape;
    bool is_there = false;

    for (int64_t place = g * n; place < (g + 1) * n; place++) {
        shape.begin = tt_piece_at(&pieces->of, pieces->first + place) * pieces->length;
        shape.end = shape.begin + pieces->length;
        if (shape.end <= task->begin)
            continue;
        run_piece(task, place, shape, is_there ? spare : to);
        if (is_there)
            add_terms(task, to, spare);
        is_there = true;
    }
    if (!is_there)
        memset(term_of(task, to, 0), 0, (size_t)run->term * sizeof(tt_real));
}

/* Writes the sums to the rows of the keys, which are in the order of pieces. */
static void store_sums(const struct task *task)
{
    const struct piece_work *run = task->run;
    const struct pieces *pieces = &run->pieces;

    for (int64_t j = 0; j < task->keys; j++) {
        int64_t key = task->begin + j, place = tt_piece_place(&pieces->of, key / pieces->length);
        int64_t row = (place * pieces->sequences + task->sequence) * pieces->length + key % pieces->length;

        for (int k = 0; k < 2; k++) {
            int64_t dim = run->widths[k];
            const tt_real *sum = term_of(task, 0, k) + j * dim;
            void *to = tt_call_out_at(run->call, 1 + k, (row * run->kv_heads + task->kv_head) * dim);

            if (tt_call_out(run->call, 1 + k)->dtype == TT_REAL_TYPE)
                memcpy(to, sum, (size_t)dim * sizeof *sum);
            else
                tt_kernels()->bf16_round(to, sum, dim);
        }
    }
}

static void piece_run_task(void *arg, int64_t tile, int worker)
{
    const struct piece_work *run = arg;
    int64_t groups = run->kv_heads * run->pieces.sequences, range = tile / groups, T = run->shape.seq_len;
    struct task task = {.run = run,
                        .sequence = tile / run->kv_heads % run->pieces.sequences,
                        .kv_head = tile % run->kv_heads,
                        .range = range,
                        .begin = range_begin(T, range, run->ranges),
                        .kernel = run->workers + worker * run->worker};
    int depth = 0;

    task.keys = range_begin(T, range + 1, run->ranges) - task.begin;
    task.terms = task.kernel + run->kernel;
    for (int g = 0; g < grains_own(run); g++) {
        int carries = g + 1 < grains_own(run) ? tt_tree_carries(g) : depth;

        run_grain(&task, g, depth++);
        for (; carries > 0; carries--, depth--)
            add_terms(&task, depth - 2, depth - 1);
    }
    store_sums(&task);
}

/* For each row, adds dq of all the ranges that the row sees. */
static void piece_sum_task(void *arg, int64_t tile, int worker)
{
    const struct piece_work *run = arg;
    const struct pieces *pieces = &run->pieces;
    int64_t rows = pieces->own * pieces->sequences * pieces->length, width = run->shape.heads * run->shape.head_dim;
    struct tt_range part = tt_tile_range(rows, SUM_ROWS, tile);

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        int64_t place = pieces->first + row / (pieces->sequences * pieces->length);
        int64_t at = tt_piece_at(&pieces->of, place) * pieces->length + row % pieces->length;
        tt_real *dq = piece_dq_of(run, 0) + row * width;

        for (int64_t i = 1; i < run->ranges; i++)
            if (at >= range_begin(run->shape.seq_len, i, run->ranges))
                tt_kernels()->add(dq, dq, piece_dq_of(run, i) + row * width, width);
        if (!run->dq_is_output)
            tt_kernels()->bf16_round(tt_call_out_at(run->call, 0, row * width), dq, width);
    }
}

static void run_pieces(const struct tt_call *call)
{
    struct piece_work run = run_of(call->graph, call->node);
    int64_t rows = run.pieces.own * run.pieces.sequences * run.pieces.length;

    run.call = call;
    run.dqs = (tt_real *)((char *)call->scratch + heads_bytes(call->graph, call->node, 2) +
                          heads_bytes(call->graph, call->node, 3));
    run.workers = run.dqs + (run.ranges - (run.dq_is_output ? 1 : 0)) * run.dq;
    gather_heads(call);
    tt_team_run(call->team, run.ranges * run.pieces.sequences * run.kv_heads, piece_run_task, &run);
    if (run.ranges > 1 || !run.dq_is_output)
        tt_team_run(call->team, tt_tiles(rows, SUM_ROWS), piece_sum_task, &run);
}

static int64_t pieces_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct piece_work run = run_of(graph, node);

    return heads_bytes(graph, node, 2) + heads_bytes(graph, node, 3) +
           ((run.ranges - (run.dq_is_output ? 1 : 0)) * run.dq + threads * run.worker) * (int64_t)sizeof(tt_real);
}

/* --- whole sequences --- */

static int bwd_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value q = graph->values[node->in[1]], k = graph->values[node->in[2]],
                          v = graph->values[node->in[3]];
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    int64_t out = shape.heads * tt_attention_value_dim(&shape);
    int rc = 0;

    if (!attention_fits(graph, node, 1, 6) || !tt_op_acc_fits(graph, node, 0, tt_value_rows(&q), out) ||
        !tt_op_acc_fits(graph, node, 4, tt_value_rows(&q), out) ||
        !tt_op_acc_fits(graph, node, 5, tt_value_rows(&q), node->attr.heads))
        return tt_op_mismatch(graph, node,
                              "do, o (N, H*Ev), q (N, H*E), k (B*T, K*E), v (B*T, K*Ev), lse (N, H), positions (N)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, q.ndim, q.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "k", k.ndim, k.shape));
    TT_TRY(tt_op_output(graph, node, 2, name, "v", v.ndim, v.shape));
out:
    return rc;
}

/*
 * Scratch: dq of ranges 1 and up, dk and dv of parts 1 and up, and the scratch of each worker. In bfloat16, range 0 and
 * part 0 are in scratch too, since the kernel's gradients are floats.
 */
struct layout {
    int64_t outputs;    /* 1 if range 0 and part 0 are the node's outputs, otherwise 0 */
    int64_t dq, dk, dv; /* floats of one array */
    int64_t worker;
    int64_t first_worker;
};

static struct layout layout_of(const struct tt_attention_shape *shape, const struct split *split, bool bf16)
{
    struct layout layout = {.outputs = bf16 ? 0 : 1,
                            .dq = tt_attention_lines(split->rows * shape->heads * shape->head_dim),
                            .dk = tt_attention_lines(split->rows * shape->kv_heads * shape->head_dim),
                            .dv = tt_attention_lines(split->rows * shape->kv_heads * tt_attention_value_dim(shape))};
    int64_t keys = longest_range(shape->seq_len, split->ranges);

    layout.worker = tt_attention_lines(tt_attention_bwd_scratch(shape, keys, bf16));
    layout.first_worker =
        (split->ranges - layout.outputs) * layout.dq + (split->parts - layout.outputs) * (layout.dk + layout.dv);
    return layout;
}

struct work {
    const struct tt_call *call;
    struct tt_attention_shape shape;
    struct split split;
    struct layout layout;
};

static tt_real *dq_of(const struct work *run, int64_t range)
{
    int64_t outputs = run->layout.outputs;

    return range < outputs ? run->call->out[0] : (tt_real *)run->call->scratch + (range - outputs) * run->layout.dq;
}

/* k: 1 for dk, 2 for dv */
static tt_real *dk_of(const struct work *run, int k, int64_t part)
{
    int64_t outputs = run->layout.outputs, others = run->split.parts - outputs;

    if (part < outputs)
        return run->call->out[k];
    return (tt_real *)run->call->scratch + (run->split.ranges - outputs) * run->layout.dq +
           (k == 1 ? (part - outputs) * run->layout.dk : others * run->layout.dk + (part - outputs) * run->layout.dv);
}

static void run_task(void *arg, int64_t tile, int worker)
{
    const struct work *run = arg;
    const struct tt_call *call = run->call;
    struct tt_attention_shape of = run->shape, *shape = &of;
    int64_t part = tile % run->split.parts, kv_head = tile / run->split.parts % shape->kv_heads;
    int64_t sequence = tile / (run->split.parts * shape->kv_heads) % run->split.sequences;
    int64_t range = tile / (run->split.parts * shape->kv_heads * run->split.sequences);
    int64_t begin = range_begin(shape->seq_len, range, run->split.ranges);
    int64_t end = range_begin(shape->seq_len, range + 1, run->split.ranges);
    int64_t row = sequence * shape->seq_len;
    int64_t head = (kv_head * run->split.parts + part) * run->split.heads;
    int64_t width = tt_attention_value_dim(shape), query = row * shape->heads + head,
            key = row * shape->kv_heads + kv_head, to = key + begin * shape->kv_heads;
    int64_t q_at = query * shape->head_dim, k_at = key * shape->head_dim, o_at = query * width, v_at = key * width;
    tt_real *dq = dq_of(run, range) + q_at, *dk = dk_of(run, 1, part) + to * shape->head_dim;
    tt_real *dv = dk_of(run, 2, part) + to * width;
    tt_real *scratch = (tt_real *)call->scratch + run->layout.first_worker + worker * run->layout.worker;
    const void *dout = tt_call_in_at(call, 0, o_at), *q = tt_call_in_at(call, 1, q_at);
    const void *k = tt_call_in_at(call, 2, k_at), *v = tt_call_in_at(call, 3, v_at), *o = tt_call_in_at(call, 4, o_at);
    const tt_real *lse = tt_call_in_at(call, 5, row * shape->heads + head);

    of.positions = tt_call_in_at(call, 6, row);
    if (run->layout.outputs)
        tt_kernels()->attention_bwd(&(struct tt_attention_grads){dq, dk, dv, dout, q, k, v, o, lse}, shape,
                                    run->split.heads, begin, end - begin, scratch);
    else
        tt_kernels()->attention_bwd_bf16(&(struct tt_attention_bf16_grads){dq, dk, dv, dout, q, k, v, o, lse}, shape,
                                         run->split.heads, begin, end - begin, scratch);
}

static void sum_task(void *arg, int64_t tile, int worker)
{
    const struct work *run = arg;
    struct tt_range part = tt_tile_range(run->split.rows, SUM_ROWS, tile);
    int64_t q_width = run->shape.heads * run->shape.head_dim;
    int64_t widths[] = {0, run->shape.kv_heads * run->shape.head_dim,
                        run->shape.kv_heads * tt_attention_value_dim(&run->shape)};

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        tt_real *dq = dq_of(run, 0) + row * q_width;

        for (int64_t i = 1; i < run->split.ranges; i++) {
            if (row % run->shape.seq_len >= range_begin(run->shape.seq_len, i, run->split.ranges))
                tt_kernels()->add(dq, dq, dq_of(run, i) + row * q_width, q_width);
        }
        for (int k = 1; k <= 2; k++) {
            int64_t k_width = widths[k];
            tt_real *dk = dk_of(run, k, 0) + row * k_width;

            for (int64_t i = 1; i < run->split.parts; i++)
                tt_kernels()->add(dk, dk, dk_of(run, k, i) + row * k_width, k_width);
            if (!run->layout.outputs)
                tt_kernels()->bf16_round(tt_call_out_at(run->call, k, row * k_width), dk, k_width);
        }
        if (!run->layout.outputs)
            tt_kernels()->bf16_round(tt_call_out_at(run->call, 0, row * q_width), dq, q_width);
    }
}

static void bwd_run(const struct tt_call *call)
{
    struct work run = {.call = call, .shape = tt_attention_shape_of(&call->node->attr)};

    if (call->node->attr.pieces.grains > 1) {
        run_pieces(call);
        return;
    }
    run.split = split_of(&call->node->attr, &run.shape, tt_value_rows(tt_call_in(call, 1)));
    run.layout = layout_of(&run.shape, &run.split, tt_op_is_bf16(call->graph, call->node));
    tt_team_run(call->team, run.split.sequences * run.shape.kv_heads * run.split.parts * run.split.ranges, run_task,
                &run);
    if (run.split.parts > 1 || run.split.ranges > 1 || !run.layout.outputs)
        tt_team_run(call->team, tt_tiles(run.split.rows, SUM_ROWS), sum_task, &run);
}

static int64_t bwd_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    struct split split;
    struct layout layout;

    if (node->attr.pieces.grains > 1)
        return pieces_scratch(graph, node, threads);
    split = split_of(&node->attr, &shape, tt_value_rows(&graph->values[node->in[1]]));
    layout = layout_of(&shape, &split, tt_op_is_bf16(graph, node));
    return (layout.first_worker + threads * layout.worker) * (int64_t)sizeof(tt_real);
}

const struct tt_op_row TT_OF_TYPE(tt_op_attention_bwd) = {
    .name = "attention_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32,
           TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_ATTENTION,
    .infer = bwd_infer,
    .run = bwd_run,
    .cost = cost,
    .scratch_bytes = bwd_scratch,
};
