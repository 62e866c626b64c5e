/* SPDX-License-Identifier: MIT
 *
 * CACHED_ATTENTION: attention of the newest tokens of a sequence over all tokens so far, for generation. Earlier runs
 * kept the keys and values of earlier tokens; this one adds its own and then attends to both.
 *   in   q (T, H*E), k (T, K*E), v (T, K*Ev), k_cache (S*K, C, E), v_cache (S*K, C, Ev) of S sequences,
 *        sinks (H) or absent, positions (S) or absent      out  o (T, H*Ev)
 *   attr heads, kv_heads, head_dim (E), value_dim (Ev; 0: E), scale (0: 1 / sqrt(E)), soft_cap, seq_len (C),
 *        sliding_window
 * v and v_cache may be absent: the values are the first Ev elements of the keys (a latent that all heads share).
 *
 * Rows 0..scalars->rows - 1 are of sequence scalars->sequence, at positions from scalars->position on; the other rows
 * of the fixed shape give 0. With positions, T = S and row s is the token of sequence s at that position. A single row
 * of a sequence is divided among key/value heads (attention_row), so each cached row is read once. Several rows are
 * computed as causal attention in training (attention_fwd). The caches are the only inputs that a node writes.
 */
#include <string.h>

#include "core/ops/attention/attention.h"
#include "core/ops/rule.h"

enum {
    SINKS = 5 /* index of the input */,
    POSITIONS = 6 /* the same */,
    LATENT_HEADS = 4 /* heads of a tile, if all heads share the keys: enough to reuse each key for several heads */
};

/* In bfloat16, includes room for the heads' rows of q and o, and for a row of k or v, as floats. */
int64_t tt_attention_row_scratch(const struct tt_attention_shape *shape, int64_t keys, bool bf16)
{
    int64_t floats = shape->heads / shape->kv_heads * keys;

    return bf16 ? floats + (2 * shape->heads / shape->kv_heads + 1) * tt_attention_widest(shape) : floats;
}

/* The sequences of the caches. */
static int64_t sequences_of(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t rows = node->attr.kv_heads * node->attr.seq_len;

    return rows > 0 && node->in[3] != TT_NONE ? tt_value_rows(&graph->values[node->in[3]]) / rows : 1;
}

static bool shapes_fit(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    int64_t sequences = sequences_of(graph, node), cached = sequences * attr->kv_heads * attr->seq_len;
    int64_t rows = tt_value_rows(&graph->values[node->in[0]]), q = (int64_t)attr->heads * attr->head_dim;
    int64_t kv = (int64_t)attr->kv_heads * attr->head_dim, width = attr->value_dim ? attr->value_dim : attr->head_dim;

    if (node->in[2] == TT_NONE && (node->in[4] != TT_NONE || width > attr->head_dim))
        return false;
    return attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0 &&
           (node->in[POSITIONS] != TT_NONE || rows <= attr->seq_len) && tt_op_acc_fits(graph, node, 0, rows, q) &&
           tt_op_acc_fits(graph, node, 1, rows, kv) && tt_op_acc_fits(graph, node, 2, rows, attr->kv_heads * width) &&
           tt_op_acc_fits(graph, node, 3, cached, attr->head_dim) && tt_op_acc_fits(graph, node, 4, cached, width) &&
           tt_op_acc_fits(graph, node, SINKS, 1, attr->heads) &&
           (node->in[POSITIONS] == TT_NONE || (rows == sequences && tt_op_positions_fit(graph, node, POSITIONS, rows)));
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value q = graph->values[node->in[0]];
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    int64_t out[2] = {tt_value_rows(&q), shape.heads * tt_attention_value_dim(&shape)};

    if (!shapes_fit(graph, node))
        return tt_op_mismatch(graph, node,
                              "q (T, H*E), k (T, K*E), v (T, K*Ev), caches (S*K, C, E) and (S*K, C, Ev), T <= C, H a "
                              "multiple of K, sinks (H), positions (S)");
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

/* Whether there is one row of each sequence. */
static bool is_single(const struct tt_graph *graph, const struct tt_node *node)
{
    return node->in[POSITIONS] != TT_NONE || tt_value_rows(&graph->values[node->in[0]]) == 1;
}

/* Floats of one worker's scratch for the kernel, whole cache lines. */
static int64_t kernel_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    bool bf16 = tt_op_is_bf16(graph, node);

    return tt_attention_lines(is_single(graph, node) ? tt_attention_row_scratch(&shape, shape.seq_len, bf16)
                                                     : tt_attention_fwd_scratch(&shape, bf16));
}

/* The same, plus the sinks of a tile's heads. */
static int64_t worker_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    return kernel_floats(graph, node) + (node->in[SINKS] == TT_NONE ? 0 : tt_attention_lines(node->attr.heads));
}

/* A worker's scratch. */
static tt_real *scratch_of(const struct tt_call *call, int worker)
{
    return (tt_real *)call->scratch + worker * worker_floats(call->graph, call->node);
}

/* The sinks of a tile's heads; widened sinks follow the kernel's scratch. */
static const tt_real *sinks_of(const struct tt_call *call, int64_t first, int64_t n, int worker)
{
    return tt_attention_sinks(call, SINKS, first, n, scratch_of(call, worker) + kernel_floats(call->graph, call->node));
}

/* The shape for the kernels. Without v, a row of values is the beginning of the row of k. */
static struct tt_attention_shape shape_of(const struct tt_call *call)
{
    struct tt_attention_shape shape = tt_attention_shape_of(&call->node->attr);

    if (!call->in[2])
        shape.value_stride = shape.head_dim;
    return shape;
}

/* The cached values of all key/value heads, beginning at a row of each head's cache. */
static const void *values_at(const struct tt_call *call, const struct tt_attention_shape *shape, int64_t row)
{
    return tt_call_in_at(call, call->in[2] ? 4 : 3, row * tt_attention_value_stride(shape));
}

static int64_t element_bytes(const struct tt_call *call)
{
    return (int64_t)tt_dtype_size(tt_call_in(call, 0)->dtype);
}

/* The place of a row of q: its sequence and its position there. */
struct place {
    int64_t sequence, position;
};

static struct place place_of(const struct tt_call *call, int64_t row)
{
    const int32_t *positions = call->in[POSITIONS];

    if (positions)
        return (struct place){row, positions[row]};
    return (struct place){call->scalars->sequence, call->scalars->position + row};
}

/* The new rows of k and v, gathered by heads. */
static void append(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    const struct tt_attention_shape shape = tt_attention_shape_of(attr);
    int64_t rows = call->in[POSITIONS] ? tt_value_rows(tt_call_in(call, 0)) : call->scalars->rows;

    for (int i = 1; i <= 2 && call->in[i]; i++) {
        int64_t bytes = (i == 1 ? shape.head_dim : tt_attention_value_dim(&shape)) * element_bytes(call);
        const char *from = call->in[i];

        for (int64_t row = 0; row < rows; row++) {
            struct place place = place_of(call, row);
            int64_t at = place.sequence * attr->kv_heads * attr->seq_len + place.position;

            for (int64_t head = 0; head < attr->kv_heads; head++, from += bytes)
                memcpy((char *)call->in[i + 2] + (at + head * attr->seq_len) * bytes, from, (size_t)bytes);
        }
    }
}

/* The number of heads in a tile of a single row: all heads that share keys, but only a few if all heads share a
 * latent. */
static int64_t heads_of_tile(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;

    return call->in[2] ? attr->heads / attr->kv_heads : LATENT_HEADS;
}

static void row_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_attention_shape shape = shape_of(call), of_tile = shape;
    int64_t tiles = tt_tiles(shape.heads, heads_of_tile(call)), row = tile / tiles;
    struct tt_range heads = tt_tile_range(shape.heads, heads_of_tile(call), tile % tiles);
    struct place place = place_of(call, row);
    int64_t kv_head = heads.begin / (shape.heads / shape.kv_heads), keys = place.position + 1;
    int64_t first = shape.window > 0 && keys > shape.window ? keys - shape.window : 0;
    int64_t at = (place.sequence * shape.kv_heads + kv_head) * shape.seq_len + first;
    int64_t head = row * shape.heads + heads.begin;

    of_tile.heads = heads.n;
    of_tile.kv_heads = 1;
    of_tile.sinks = sinks_of(call, heads.begin, heads.n, worker);
    TT_RUN_KERNEL(call, attention_row, tt_call_out_at(call, 0, head * tt_attention_value_dim(&shape)),
                  tt_call_in_at(call, 0, head * shape.head_dim), tt_call_in_at(call, 3, at * shape.head_dim),
                  values_at(call, &shape, at), &of_tile, keys - first, scratch_of(call, worker));
}

/* p - bytes: the address that the sequence's first row would have if all rows existed. A number, since C forbids such a
 * pointer. */
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
    int64_t rows_missing = position * shape.heads - head;
    int64_t cached = (call->scalars->sequence * shape.kv_heads + kv_head) * shape.seq_len;
    int64_t missing = rows_missing * shape.head_dim * element_bytes(call);
    int64_t o_missing = rows_missing * tt_attention_value_dim(&shape) * element_bytes(call);
    tt_real *lse = (tt_real *)call->scratch + tt_team_threads(call->team) * worker_floats(call->graph, call->node);

    shape.sinks = sinks_of(call, head, 1, worker);
    TT_RUN_KERNEL(call, attention_fwd, (void *)before(call->out[0], o_missing),
                  (tt_real *)before(lse, rows_missing * (int64_t)sizeof *lse),
                  (const void *)before(call->in[0], missing), tt_call_in_at(call, 3, cached * shape.head_dim),
                  values_at(call, &shape, cached), &shape, position + part.begin, part.n, scratch_of(call, worker));
}

static void run(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    int64_t rows = call->scalars->rows, width = tt_value_width(tt_call_out(call, 0));
    int64_t spare = tt_value_rows(tt_call_in(call, 0)) - rows;

    append(call);
    if (is_single(call->graph, call->node)) {
        tt_team_run(call->team, (rows + spare) * tt_tiles(attr->heads, heads_of_tile(call)), row_tile, (void *)call);
        return;
    }
    tt_team_run(call->team, tt_tiles(rows, TT_ATTENTION_ROWS) * attr->heads, rows_tile, (void *)call);
    memset(tt_call_out_at(call, 0, rows * width), 0, (size_t)(spare * width * element_bytes(call)));
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    int64_t rows = tt_value_rows(&graph->values[node->in[0]]),
            lse = is_single(graph, node) ? 0 : rows * node->attr.heads;

    return (threads * worker_floats(graph, node) + lse) * (int64_t)sizeof(tt_real);
}

/* The cost with a full cache. */
static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    double rows = (double)tt_value_rows(&graph->values[node->in[0]]);

    ret_cost->flops = 2.0 * rows * (double)(shape.heads * (shape.head_dim + tt_attention_value_dim(&shape))) *
                      (double)node->attr.seq_len;
}

const struct tt_op_row TT_OF_TYPE(tt_op_cached_attention) = {
    .name = "cached_attention",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_IDS},
    .may_lack = 2,
    .out = {TT_TYPE_COMPUTE},
    .weight = TT_WEIGHT_ATTENTION,
    .infer = infer,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};
