/* SPDX-License-Identifier: MIT
 *
 * SPLIT: the first `prefix` elements of every head, and the others.
 *   in   x (N, H*E)                      out  first (N, H*prefix), second (N, H*R), R = E - prefix
 * JOIN: heads of two parts.
 *   in   first (N, H*prefix) or absent, second (N, H*R) or absent: zeros      out  y (N, H*E)
 *   attr heads, head_dim (E), prefix, shared, out (H)
 *
 * shared: the second part is (N, R), one for all heads. JOIN copies it to every head. SPLIT adds the second parts of
 * all heads in float32: in order inside each grain of heads, then the grains as a tree. So each op is the backward of
 * the other, and ranks that share the heads have terms of the sum, which may be tt_value.partial.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, LINE = 16 /* floats of a cache line */ };

/* Widths of rows. */
struct widths {
    int64_t heads, whole, first, second; /* of a head */
    int64_t seconds;                     /* heads of the second part */
    int64_t grains, grain;               /* of heads, and the heads of each */
};

static struct widths widths_of(const struct tt_attr *attr)
{
    int64_t grain = tt_grain_or(&attr->out, attr->heads);

    return (struct widths){.heads = attr->heads,
                           .whole = attr->head_dim,
                           .first = attr->prefix,
                           .second = attr->head_dim - attr->prefix,
                           .seconds = attr->shared ? 1 : attr->heads,
                           .grains = grain ? attr->heads / grain : 0,
                           .grain = grain};
}

static bool is_possible(const struct tt_attr *attr, const struct widths *w)
{
    return w->heads > 0 && w->first > 0 && w->second > 0 && tt_grain_fits(&attr->out, w->heads);
}

/* --- split --- */

static int infer_split(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    const struct widths w = widths_of(&node->attr);
    int64_t first[2] = {tt_value_rows(&x), w.heads * w.first}, second[2] = {tt_value_rows(&x), w.seconds * w.second};
    int rc = 0;

    if (!is_possible(&node->attr, &w) || tt_value_width(&x) != w.heads * w.whole)
        return tt_op_mismatch(graph, node, "x (N, H*E), a prefix within E");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, 2, first));
    TT_TRY(tt_op_output(graph, node, 1, name, "rest", 2, second));
out:
    return rc;
}

/* The sum of the second parts of some heads, for one row. */
static void sum_heads(const struct tt_call *call, const struct widths *w, const char *from, int64_t heads, tt_real *to)
{
    if (tt_op_is_bf16(call->graph, call->node))
        tt_kernels()->sum_rows_bf16(to, NULL, (const tt_bf16 *)from, heads, w->whole, w->second);
    else
        tt_kernels()->sum_rows(to, NULL, (const tt_real *)from, heads, w->whole, w->second);
}

/* Whether the sum needs no separate buffer: it adds floats, in order. */
static bool is_in_place(const struct tt_graph *graph, const struct tt_node *node, const struct widths *w)
{
    return w->grains == 1 && graph->values[node->out[1]].dtype == TT_REAL_TYPE;
}

/* Of one partial sum. */
static int64_t sum_floats(const struct widths *w)
{
    return tt_round_up(w->second, LINE);
}

static int64_t worker_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct widths w = widths_of(&node->attr);

    if (!node->attr.shared || is_in_place(graph, node, &w))
        return 0;
    return tt_tree_stack_depth(w.grains) * sum_floats(&w);
}

/* The sum of the second parts of all heads, for one row. scratch: a stack of partial sums. */
static void add_heads(const struct tt_call *call, const struct widths *w, const char *from, void *to, tt_real *scratch)
{
    int64_t grain_bytes = w->grain * w->whole * (int64_t)tt_dtype_size(tt_call_in(call, 0)->dtype), n = sum_floats(w);
    int depth = 0;

    if (is_in_place(call->graph, call->node, w)) {
        sum_heads(call, w, from, w->heads, to);
        return;
    }
    for (int64_t g = 0; g < w->grains; g++) {
        int carries = g + 1 < w->grains ? tt_tree_carries(g) : depth;

        sum_heads(call, w, from + g * grain_bytes, w->grain, scratch + depth++ * n);
        for (; carries > 0; carries--, depth--)
            tt_kernels()->add(scratch + (depth - 2) * n, scratch + (depth - 2) * n, scratch + (depth - 1) * n,
                              w->second);
    }
    if (tt_call_out(call, 1)->dtype == TT_REAL_TYPE)
        memcpy(to, scratch, (size_t)w->second * sizeof *scratch);
    else
        tt_kernels()->bf16_round(to, scratch, w->second);
}

static void split_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct widths w = widths_of(&call->node->attr);
    struct tt_range part = tt_tile_range(tt_value_rows(tt_call_in(call, 0)), TILE_ROWS, tile);
    size_t size = tt_dtype_size(tt_call_in(call, 0)->dtype);
    tt_real *scratch = (tt_real *)call->scratch + worker * worker_floats(call->graph, call->node);

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        for (int64_t h = 0; h < w.heads; h++) {
            const char *from = tt_call_in_at(call, 0, (r * w.heads + h) * w.whole);

            memcpy(tt_call_out_at(call, 0, (r * w.heads + h) * w.first), from, (size_t)w.first * size);
            if (w.seconds == w.heads)
                memcpy(tt_call_out_at(call, 1, (r * w.heads + h) * w.second), from + (size_t)w.first * size,
                       (size_t)w.second * size);
        }
        if (w.seconds != w.heads)
            add_heads(call, &w, tt_call_in_at(call, 0, r * w.heads * w.whole + w.first),
                      tt_call_out_at(call, 1, r * w.second), scratch);
    }
}

static void run_split(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 0)), TILE_ROWS), split_tile, (void *)call);
}

static int64_t scratch_split(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    return threads * worker_floats(graph, node) * (int64_t)sizeof(tt_real);
}

/* --- join --- */

static int infer_join(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct widths w = widths_of(&node->attr);
    int present = node->in[0] != TT_NONE ? 0 : 1;
    int64_t out[2] = {0, w.heads * w.whole};

    if (!is_possible(&node->attr, &w) || node->in[present] == TT_NONE)
        return tt_op_mismatch(graph, node, "one part of heads at least, a prefix within E");
    out[0] = tt_value_rows(&graph->values[node->in[present]]);
    if (!tt_op_acc_fits(graph, node, 0, out[0], w.heads * w.first) ||
        !tt_op_acc_fits(graph, node, 1, out[0], w.seconds * w.second))
        return tt_op_mismatch(graph, node, "first (N, H*prefix), second (N, H*(E-prefix)), or (N, E-prefix) if shared");
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

static void copy_or_clear(void *to, const void *from, size_t bytes)
{
    if (from)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

static void join_tile(const struct tt_call *call, struct tt_range part)
{
    const struct widths w = widths_of(&call->node->attr);
    size_t size = tt_dtype_size(tt_call_out(call, 0)->dtype);

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        for (int64_t h = 0; h < w.heads; h++) {
            char *to = tt_call_out_at(call, 0, (r * w.heads + h) * w.whole);
            int64_t second = r * w.seconds + (w.seconds == w.heads ? h : 0);

            copy_or_clear(to, tt_call_in_at(call, 0, (r * w.heads + h) * w.first), (size_t)w.first * size);
            copy_or_clear(to + (size_t)w.first * size, tt_call_in_at(call, 1, second * w.second),
                          (size_t)w.second * size);
        }
    }
}

const struct tt_op_row TT_OF_TYPE(tt_op_split) = {
    .name = "split",
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .cuts = TT_CUT_OUT,
    .infer = infer_split,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_JOIN, 0, 1, {TT_DY0, TT_DY1}}},
    .run = run_split,
    .scratch_bytes = scratch_split,
};

const struct tt_op_row TT_OF_TYPE(tt_op_join) = {
    .name = "join",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_OUT,
    .infer = infer_join,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_SPLIT, 0, 2, {TT_DY0}}},
    .run = tt_op_run_rows,
    .tile = join_tile,
    .tile_rows = TILE_ROWS,
};

/*
 * ROPE: rotates the pairs of every head by angles that grow with the token's position (Su et al. 2021).
 *   in   x (N, H*E), table (T, R/2, 2) of cos and sin, positions (N) or absent
 *   out  of x's shape, may take x's memory
 *   attr heads, head_dim (E), prefix, rotated (R; 0: E - prefix; the R elements of a head after `prefix` are rotated,
 *        the others stay), seq_len (without positions row n is at position n % seq_len; with from_position at
 *        scalars->position + n), inverse, rotate_half, peers: x is this rank's part of the rows; positions are of all
 *        rows
 *
 * The backward of a rotation is the rotation back: the same op with inverse flipped.
 */

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    const struct tt_attr *attr = &node->attr;
    int rotated = attr->rotated ? attr->rotated : attr->head_dim - attr->prefix,
        parts = attr->peers.n > 1 ? attr->peers.n : 1;

    if (rotated < 1 || rotated % 2 != 0 || attr->prefix < 0 || attr->prefix + rotated > attr->head_dim ||
        attr->seq_len < 1 || tt_value_width(&x) != (int64_t)attr->heads * attr->head_dim ||
        tt_value_elements(&graph->values[node->in[1]]) < attr->seq_len * rotated ||
        !tt_op_positions_fit(graph, node, 2, tt_value_rows(&x) * parts))
        return tt_op_mismatch(graph, node, "x (N, H*E), table (T, R/2, 2), positions (N)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    struct tt_node back = graph->nodes[node];

    back.attr.inverse = !back.attr.inverse;
    return tt_rule_gradient(graph, &back, TT_OF_TYPE(tt_op_rope).gradients, grad_out, grad_in);
}

static void run_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_attr *attr = &call->node->attr;
    struct tt_rope_shape shape = {.seq_len = attr->seq_len,
                                  .heads = attr->heads,
                                  .head_dim = attr->head_dim,
                                  .inverse = attr->inverse,
                                  .rotate_half = attr->rotate_half,
                                  .positions = call->in[2],
                                  .unrotated = attr->prefix,
                                  .rotated = attr->rotated};
    int64_t rows = tt_value_rows(tt_call_in(call, 0));
    int64_t at = part.begin * shape.heads * shape.head_dim;
    int64_t first = part.begin + attr->peers.index * rows + (attr->from_position ? call->scalars->position : 0);

    TT_RUN_KERNEL(call, rope, tt_call_out_at(call, 0, at), tt_call_in_at(call, 0, at), call->in[1], &shape, first,
                  part.n);
}

const struct tt_op_row TT_OF_TYPE(tt_op_rope) = {
    .name = "rope",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .infer = infer,
    .backward = backward,
    .gradients = {{TT_OP_ROPE, 0, 1, {TT_DY0, TT_X1, TT_X2}}},
    .run = tt_op_run_rows,
    .tile = run_tile,
    .tile_rows = TILE_ROWS,
    .flops = 3.0,
    .alias = {1},
};
