/* SPDX-License-Identifier: MIT
 *
 * ATTENTION: o = softmax(scale q k^T) v, causal inside each sequence of T rows, for every query head; query head h
 * reads key/value head h / (H / K). With positions, causal inside each document of a sequence.
 *   in   q (N, H*E), k (M, K*E), v (M, K*Ev), positions (N) or absent, sinks (H) or absent
 *   out  o (N, H*Ev), lse (N, H): log of the sum of exp of each row, with that of the head's sink
 *   attr seq_len, heads, kv_heads, head_dim (E), value_dim (Ev; 0: E), scale (0: 1 / sqrt(E)), sliding_window
 *        (0: none); rows (N), in grains of whole sequences; out (K); pieces: q has the rows of some grains of every
 *        sequence, k and v those of all, in the order of core/graph/pieces.h. Without grains N is M.
 *
 * A sink is a score that takes its share of a row's softmax and has no value (Xiao et al. 2023). With it in lse,
 * backward needs no more of it; its own gradient is SINKS_BWD's.
 *
 * A tile is TT_ATTENTION_ROWS rows of a piece of a head. The backward op is backward.c.
 */
#include "core/ops/attention/attention.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { GATHER_ROWS = 128, LINE = 64, SINKS = 4 /* the input */ };

/*
 * SINKS_BWD: the gradient of the sinks of ATTENTION. A sink has the share exp(sink - lse) of a row's softmax and no
 * value, so its score has the gradient -share * dot(do, o), and the gradient of a head's sink is the sum over rows.
 *   in   do, o (N, H*Ev), lse (N, H), sinks (H), acc (H) or none
 *   out  dsinks (H) = [acc +] the sum, may take acc's memory
 *   Summed over blocks of SUM_ROWS rows, then over the blocks (struct tt_row_sums). attr heads, rows (N).
 */

enum { SUM_ROWS = 64 };
enum { DO, O, LSE, BWD_SINKS, ACC }; /* inputs */

/*
 * The sinks of heads [first, first + n) as floats, from an input of the call: in place, or widened to `to`, which has
 * room for them. NULL if the input is absent.
 */
static const float *widened_sinks(const struct tt_call *call, int input, int64_t first, int64_t n, float *to)
{
    if (!call->in[input])
        return NULL;
    if (tt_call_in(call, input)->dtype == TT_F32)
        return tt_call_in_at(call, input, first);
    tt_kernels()->bf16_widen(to, tt_call_in_at(call, input, first), n);
    return to;
}

/* Adds the gradient of the sinks of an ATTENTION to the graph if it has sinks that are trained. */
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

static void sinks_block(const struct tt_call *call, struct tt_range rows, float *to)
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

const struct tt_op_row tt_op_sinks_bwd = {
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

struct tt_attention_pieces tt_attention_pieces_of(const struct tt_attr *attr, int64_t keys)
{
    return (struct tt_attention_pieces){.of = attr->pieces,
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

bool tt_attention_fits(const struct tt_graph *graph, const struct tt_node *node, int q, int positions)
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

    if (!tt_attention_fits(graph, node, 0, 3) || !tt_op_acc_fits(graph, node, SINKS, 1, node->attr.heads))
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
 * Keys and values that were gathered are gathered again, so that a rank need not keep them from forward to backward.
 * They travel while the gradients of weights are computed.
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
                                       .scale = attr->scale,
                                       .window = attr->sliding_window};
}

static int64_t fwd_floats(const struct tt_attention_shape *shape)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t portable = TT_ATTENTION_ROWS * tile;
    int64_t vectors = TT_ATTENTION_PANEL * (2 * tt_attention_widest(shape) + TT_ATTENTION_BLOCK + 3);

    return portable > vectors ? portable : vectors;
}

/* With room for widened rows of q, k, v and o. */
static int64_t fwd_bf16_floats(const struct tt_attention_shape *shape)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t dim = tt_attention_lines(tt_attention_widest(shape));
    int64_t portable = TT_ATTENTION_ROWS * tile + (INT64_C(2) * TT_ATTENTION_ROWS + tile) * dim;
    int64_t vectors =
        TT_ATTENTION_PANEL * (3 * dim + INT64_C(2) * TT_ATTENTION_BLOCK) + INT64_C(2) * TT_ATTENTION_BLOCK * dim;

    return portable > vectors ? portable : vectors;
}

int64_t tt_attention_fwd_scratch(const struct tt_attention_shape *shape, bool bf16)
{
    return bf16 ? fwd_bf16_floats(shape) : fwd_floats(shape);
}

/*
 * The forward pass gathers k and v by heads first: every tile of rows reads all earlier keys, and rows of 16 floats
 * whose distance is a power of two share few sets of a cache. Scratch: k (B, K, T, E), v (B, K, T, Ev), then each
 * worker's own.
 */
int64_t tt_attention_heads_bytes(const struct tt_graph *graph, const struct tt_node *node, int input)
{
    return tt_round_up(tt_value_bytes(&graph->values[node->in[input]]), LINE);
}

static int64_t worker_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);

    return tt_attention_lines(tt_attention_fwd_scratch(&shape, tt_op_is_bf16(graph, node))) * (int64_t)sizeof(float);
}

/* A tile is a range of the rows of k and v. `k`: the input that k is, v is the next. */
struct by_heads {
    const struct tt_call *call;
    int k;
};

static void gather_tile(void *arg, int64_t tile, int worker)
{
    const struct by_heads *by = arg;
    const struct tt_call *call = by->call;
    const struct tt_value *k = tt_call_in(call, by->k);
    const struct tt_attention_shape shape = tt_attention_shape_of(&call->node->attr);
    struct tt_attention_pieces pieces = tt_attention_pieces_of(&call->node->attr, tt_value_rows(k));
    struct tt_range part = tt_tile_range(tt_value_rows(k), GATHER_ROWS, tile);
    int64_t element = (int64_t)tt_dtype_size(k->dtype);
    int64_t row_bytes[2] = {shape.head_dim * element, tt_attention_value_dim(&shape) * element};
    char *to[2] = {call->scratch, (char *)call->scratch + tt_attention_heads_bytes(call->graph, call->node, by->k)};

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        int64_t place = row / (pieces.sequences * pieces.length), sequence = row / pieces.length % pieces.sequences;
        int64_t key = tt_piece_at(&pieces.of, place) * pieces.length + row % pieces.length;

        for (int64_t head = 0; head < shape.kv_heads; head++) {
            int64_t at = row * shape.kv_heads + head;
            int64_t to_row = (sequence * shape.kv_heads + head) * shape.seq_len + key;

            for (int i = 0; i < 2; i++)
                memcpy(to[i] + to_row * row_bytes[i], (const char *)call->in[by->k + i] + at * row_bytes[i],
                       (size_t)row_bytes[i]);
        }
    }
}

void tt_attention_by_heads(const struct tt_call *call, int k)
{
    struct by_heads by = {call, k};

    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, k)), GATHER_ROWS), gather_tile, &by);
}

/* The i-th own piece, as a place among the own ones, in the order in which their rows become shorter. */
static int64_t by_length(const struct tt_attention_pieces *pieces, int64_t i)
{
    if (tt_pieces_of_grain(&pieces->of) == 1)
        return pieces->own - 1 - i;
    return 2 * i < pieces->own ? 2 * i + 1 : 2 * (pieces->own - 1 - i);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_attention_shape shape = tt_attention_shape_of(&call->node->attr);
    struct tt_attention_pieces pieces = tt_attention_pieces_of(&call->node->attr, tt_value_rows(tt_call_in(call, 1)));
    int64_t all = pieces.sequences * shape.heads, blocks = tt_tiles(pieces.length, TT_ATTENTION_ROWS);
    int64_t sequence = tile % all / shape.heads, head = tile % shape.heads;
    /* the longest rows first, so that no thread is left with a long one */
    int64_t place = by_length(&pieces, tile / all / blocks);
    struct tt_range part = tt_tile_range(pieces.length, TT_ATTENTION_ROWS, blocks - 1 - tile / all % blocks);
    int64_t row = (place * pieces.sequences + sequence) * pieces.length;
    int64_t kv_head = head / (shape.heads / shape.kv_heads);
    int64_t width = tt_attention_value_dim(&shape), at = row * shape.heads + head;
    int64_t gathered =
        (sequence * shape.kv_heads + kv_head) * shape.seq_len * (int64_t)tt_dtype_size(tt_call_in(call, 1)->dtype);
    const char *k = call->scratch, *v = k + tt_attention_heads_bytes(call->graph, call->node, 1);
    const char *workers = v + tt_attention_heads_bytes(call->graph, call->node, 2);
    void *scratch = (char *)call->scratch + (workers - k) + worker * worker_bytes(call->graph, call->node);
    float sink;

    shape.positions = tt_call_in_at(call, 3, row);
    shape.sinks = widened_sinks(call, SINKS, head, 1, &sink);
    shape.begin = tt_piece_at(&pieces.of, pieces.first + place) * pieces.length;
    shape.end = shape.begin + pieces.length;
    TT_RUN_KERNEL(call, attention_fwd, tt_call_out_at(call, 0, at * width), tt_call_out_at(call, 1, at),
                  tt_call_in_at(call, 0, at * shape.head_dim), (const void *)(k + gathered * shape.head_dim),
                  (const void *)(v + gathered * width), &shape, shape.begin + part.begin, part.n, scratch);
}

static void run(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    struct tt_attention_pieces pieces = tt_attention_pieces_of(attr, tt_value_rows(tt_call_in(call, 1)));

    tt_attention_by_heads(call, 1);
    tt_team_run(call->team, pieces.own * pieces.sequences * attr->heads * tt_tiles(pieces.length, TT_ATTENTION_ROWS),
                run_tile, (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    return tt_attention_heads_bytes(graph, node, 1) + tt_attention_heads_bytes(graph, node, 2) +
           threads * worker_bytes(graph, node);
}

/* Pairs (row, key) of the first `rows` rows of a sequence. */
static double pairs_of_rows(double rows, double window)
{
    return rows <= window ? rows * (rows + 1.0) / 2.0 : window * (window + 1.0) / 2.0 + (rows - window) * window;
}

/* The same of the rows of a piece that begins at `begin`. */
static double pairs_of_piece(const struct tt_attr *attr, double begin, double length)
{
    double window = (double)attr->sliding_window;

    if (!attr->sliding_window)
        return (begin + (length + 1.0) / 2.0) * length;
    return pairs_of_rows(begin + length, window) - pairs_of_rows(begin, window);
}

/*
 * The number of pairs (row, key) that the causal mask leaves, over all heads. Where documents begin is not known when a
 * step is planned, so that they make it only shorter than predicted.
 */
static double pairs(const struct tt_graph *graph, const struct tt_node *node)
{
    int k = node->op == TT_OP_ATTENTION ? 1 : 2;
    struct tt_attention_pieces pieces = tt_attention_pieces_of(&node->attr, tt_value_rows(&graph->values[node->in[k]]));
    double sum = 0.0;

    for (int64_t i = 0; i < pieces.own; i++)
        sum += pairs_of_piece(&node->attr, (double)(tt_piece_at(&pieces.of, pieces.first + i) * pieces.length),
                              (double)pieces.length);
    return sum * (double)pieces.sequences * node->attr.heads;
}

/* Two products in forward; five in backward, two of which are as wide as values. */
void tt_attention_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    double keys = 2.0 * (double)shape.head_dim, values = 2.0 * (double)tt_attention_value_dim(&shape);

    ret_cost->flops = (node->op == TT_OP_ATTENTION ? keys + values : 3.0 * keys + 2.0 * values) * pairs(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->inner = (double)shape.head_dim;
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row tt_op_attention = {
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
    .cost = tt_attention_cost,
    .scratch_bytes = scratch,
};

/*
 * CACHED_ATTENTION: attention of the newest tokens of one sequence over all tokens so far, for generation. Earlier runs
 * kept the keys and values of earlier tokens; this one adds its own and then attends to both.
 *   in   q (T, H*E), k (T, K*E), v (T, K*Ev), k_cache (K, C, E), v_cache (K, C, Ev),
 *        sinks (H) or absent      out  o (T, H*Ev)
 *   attr heads, kv_heads, head_dim (E), value_dim (Ev; 0: E), scale (0: 1 / sqrt(E)), seq_len (C), sliding_window
 * v and v_cache may be absent: the values are the first Ev elements of the keys (a latent that all heads share).
 *
 * Rows 0..scalars->rows - 1 are at positions from scalars->position on; the other rows of the fixed shape give 0. A
 * single row is divided among key/value heads (attention_row), so each cached row is read once. Several rows are
 * computed as causal attention in training (attention_fwd). The caches are the only inputs that a node writes.
 */

enum { CACHED_SINKS = 5 /* the input */ };
enum { LATENT_HEADS = 4 /* of a tile, where all heads share the keys: enough to read these once for several */ };

/* In bfloat16 with room for the heads' rows of q and o and a row of k or v as floats. */
int64_t tt_attention_row_scratch(const struct tt_attention_shape *shape, int64_t keys, bool bf16)
{
    int64_t floats = shape->heads / shape->kv_heads * keys;

    return bf16 ? floats + (2 * shape->heads / shape->kv_heads + 1) * tt_attention_widest(shape) : floats;
}

static bool shapes_fit(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    int64_t rows = tt_value_rows(&graph->values[node->in[0]]), q = (int64_t)attr->heads * attr->head_dim;
    int64_t kv = (int64_t)attr->kv_heads * attr->head_dim, width = attr->value_dim ? attr->value_dim : attr->head_dim;

    if (node->in[2] == TT_NONE && (node->in[4] != TT_NONE || width > attr->head_dim))
        return false;
    return attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0 && rows <= attr->seq_len &&
           tt_op_acc_fits(graph, node, 0, rows, q) && tt_op_acc_fits(graph, node, 1, rows, kv) &&
           tt_op_acc_fits(graph, node, 2, rows, attr->kv_heads * width) &&
           tt_op_acc_fits(graph, node, 3, attr->kv_heads * attr->seq_len, attr->head_dim) &&
           tt_op_acc_fits(graph, node, 4, attr->kv_heads * attr->seq_len, width) &&
           tt_op_acc_fits(graph, node, CACHED_SINKS, 1, attr->heads);
}

static int cached_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value q = graph->values[node->in[0]];
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    int64_t out[2] = {tt_value_rows(&q), shape.heads * tt_attention_value_dim(&shape)};

    if (!shapes_fit(graph, node))
        return tt_op_mismatch(graph, node,
                              "q (T, H*E), k (T, K*E), v (T, K*Ev), caches (K, C, E) and (K, C, Ev), T <= C, H a "
                              "multiple of K, sinks (H)");
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

static bool is_single(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_value_rows(&graph->values[node->in[0]]) == 1;
}

/* Floats of one worker's scratch for the kernel, whole cache lines. */
static int64_t kernel_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    bool bf16 = tt_op_is_bf16(graph, node);

    return tt_attention_lines(is_single(graph, node) ? tt_attention_row_scratch(&shape, shape.seq_len, bf16)
                                                     : tt_attention_fwd_scratch(&shape, bf16));
}

/* The same with the sinks of a tile's heads. */
static int64_t worker_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    return kernel_floats(graph, node) + (node->in[CACHED_SINKS] == TT_NONE ? 0 : tt_attention_lines(node->attr.heads));
}

/* A worker's scratch. */
static float *scratch_of(const struct tt_call *call, int worker)
{
    return (float *)call->scratch + worker * worker_floats(call->graph, call->node);
}

/* The sinks of the heads of a tile; widened, they lie behind the scratch of the kernel. */
static const float *sinks_of(const struct tt_call *call, int64_t first, int64_t n, int worker)
{
    return widened_sinks(call, CACHED_SINKS, first, n,
                         scratch_of(call, worker) + kernel_floats(call->graph, call->node));
}

/* The shape for the kernels. Where there is no v, its rows are the first columns of those of k. */
static struct tt_attention_shape shape_of(const struct tt_call *call)
{
    struct tt_attention_shape shape = tt_attention_shape_of(&call->node->attr);

    if (!call->in[2])
        shape.value_stride = shape.head_dim;
    return shape;
}

/* The cached values from a row of the caches of all key/value heads on. */
static const void *values_at(const struct tt_call *call, const struct tt_attention_shape *shape, int64_t row)
{
    return tt_call_in_at(call, call->in[2] ? 4 : 3, row * tt_attention_value_stride(shape));
}

static int64_t element_bytes(const struct tt_call *call)
{
    return (int64_t)tt_dtype_size(tt_call_in(call, 0)->dtype);
}

/* The new rows of k and v, gathered by heads. */
static void append(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    const struct tt_attention_shape shape = tt_attention_shape_of(attr);

    for (int i = 1; i <= 2 && call->in[i]; i++) {
        int64_t bytes = (i == 1 ? shape.head_dim : tt_attention_value_dim(&shape)) * element_bytes(call);
        const char *from = call->in[i];
        char *to = (char *)call->in[i + 2] + call->scalars->position * bytes;

        for (int64_t row = 0; row < call->scalars->rows; row++) {
            for (int64_t head = 0; head < attr->kv_heads; head++, from += bytes)
                memcpy(to + (head * attr->seq_len + row) * bytes, from, (size_t)bytes);
        }
    }
}

/* Number of heads in a tile of a single row: all that share keys. A latent is shared by all heads: then only a few. */
static int64_t heads_of_tile(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;

    return call->in[2] ? attr->heads / attr->kv_heads : LATENT_HEADS;
}

static void row_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_attention_shape shape = shape_of(call), of_tile = shape;
    struct tt_range heads = tt_tile_range(shape.heads, heads_of_tile(call), tile);
    int64_t kv_head = heads.begin / (shape.heads / shape.kv_heads), keys = call->scalars->position + 1;
    int64_t first = shape.window > 0 && keys > shape.window ? keys - shape.window : 0;
    int64_t at = kv_head * shape.seq_len + first;

    of_tile.heads = heads.n;
    of_tile.kv_heads = 1;
    of_tile.sinks = sinks_of(call, heads.begin, heads.n, worker);
    TT_RUN_KERNEL(call, attention_row, tt_call_out_at(call, 0, heads.begin * tt_attention_value_dim(&shape)),
                  tt_call_in_at(call, 0, heads.begin * shape.head_dim), tt_call_in_at(call, 3, at * shape.head_dim),
                  values_at(call, &shape, at), &of_tile, keys - first, scratch_of(call, worker));
}

/* p - bytes: the address of the sequence's first row if all rows existed. A number, since C forbids such a pointer. */
static uintptr_t before(const void *p, int64_t bytes)
{
    return (uintptr_t)p - (uintptr_t)bytes;
}

/* The kernel counts rows of q and o from the beginning of the sequence, but only the newest rows exist. */
static void rows_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_attention_shape shape = shape_of(call);
    int64_t blocks = tt_tiles(call->scalars->rows, TT_ATTENTION_ROWS), position = call->scalars->position;
    int64_t head = tile % shape.heads, kv_head = head / (shape.heads / shape.kv_heads);
    /* the longest rows first, so that no thread is left with a long one */
    struct tt_range part = tt_tile_range(call->scalars->rows, TT_ATTENTION_ROWS, blocks - 1 - tile / shape.heads);
    int64_t rows_missing = position * shape.heads - head, k_at = kv_head * shape.seq_len * shape.head_dim;
    int64_t missing = rows_missing * shape.head_dim * element_bytes(call);
    int64_t o_missing = rows_missing * tt_attention_value_dim(&shape) * element_bytes(call);
    float *lse = (float *)call->scratch + tt_team_threads(call->team) * worker_floats(call->graph, call->node);

    shape.sinks = sinks_of(call, head, 1, worker);
    TT_RUN_KERNEL(call, attention_fwd, (void *)before(call->out[0], o_missing),
                  (float *)before(lse, rows_missing * (int64_t)sizeof *lse), (const void *)before(call->in[0], missing),
                  tt_call_in_at(call, 3, k_at), values_at(call, &shape, kv_head * shape.seq_len), &shape,
                  position + part.begin, part.n, scratch_of(call, worker));
}

static void cached_run(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    int64_t rows = call->scalars->rows, width = tt_value_width(tt_call_out(call, 0));
    int64_t spare = tt_value_rows(tt_call_in(call, 0)) - rows;

    append(call);
    if (is_single(call->graph, call->node)) {
        tt_team_run(call->team, tt_tiles(attr->heads, heads_of_tile(call)), row_tile, (void *)call);
        return;
    }
    tt_team_run(call->team, tt_tiles(rows, TT_ATTENTION_ROWS) * attr->heads, rows_tile, (void *)call);
    memset(tt_call_out_at(call, 0, rows * width), 0, (size_t)(spare * width * element_bytes(call)));
}

static int64_t cached_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    int64_t rows = tt_value_rows(&graph->values[node->in[0]]), lse = rows == 1 ? 0 : rows * node->attr.heads;

    return (threads * worker_floats(graph, node) + lse) * (int64_t)sizeof(float);
}

/* The cost with a full cache. */
static void cached_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    double rows = (double)tt_value_rows(&graph->values[node->in[0]]);

    ret_cost->flops = 2.0 * rows * (double)(shape.heads * (shape.head_dim + tt_attention_value_dim(&shape))) *
                      (double)node->attr.seq_len;
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_cached_attention = {
    .name = "cached_attention",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .may_lack = 1,
    .out = {TT_TYPE_COMPUTE},
    .weight = TT_WEIGHT_ATTENTION,
    .infer = cached_infer,
    .run = cached_run,
    .cost = cached_cost,
    .scratch_bytes = cached_scratch,
};
