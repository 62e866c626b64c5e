/* SPDX-License-Identifier: MIT
 *
 * SPLIT: the first `prefix` elements of every head, and the others.
 *   in   x (N, H*E)                      out  first (N, H*prefix), second (N, H*R), R = E - prefix
 * JOIN: heads of two parts.
 *   in   first (N, H*prefix) or absent, second (N, H*R) or absent: zeros      out  y (N, H*E)
 *   attr heads, head_dim (E), prefix, shared
 *
 * shared: the second part is (N, R), one for all heads. JOIN copies it to every head, and SPLIT adds those of the heads
 * in order, in float32. So each op is the backward of the other.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, LINE = 16 /* floats of a cache line */ };

/* Widths of rows. */
struct widths {
    int64_t heads, whole, first, second; /* of a head */
    int64_t seconds;                     /* heads of the second part */
};

static struct widths widths_of(const struct tt_attr *attr)
{
    return (struct widths){.heads = attr->heads,
                           .whole = attr->head_dim,
                           .first = attr->prefix,
                           .second = attr->head_dim - attr->prefix,
                           .seconds = attr->shared ? 1 : attr->heads};
}

static bool is_possible(const struct widths *w)
{
    return w->heads > 0 && w->first > 0 && w->second > 0;
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 0.0;
    ret_cost->bytes = tt_op_bytes(graph, node);
}

/* --- split --- */

static int infer_split(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    const struct widths w = widths_of(&node->attr);
    int64_t first[2] = {tt_value_rows(&x), w.heads * w.first}, second[2] = {tt_value_rows(&x), w.seconds * w.second};
    int rc = 0;

    if (!is_possible(&w) || tt_value_width(&x) != w.heads * w.whole)
        return tt_op_mismatch(graph, node, "x (N, H*E), a prefix within E");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, 2, first));
    TT_TRY(tt_op_output(graph, node, 1, name, "rest", 2, second));
out:
    return rc;
}

static int backward_split(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[2] = {grad_out[0], grad_out[1]}, rc = 0, grad;

    TT_TRY(tt_rule_node(graph, TT_OP_JOIN, &forward, in, 2, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

/* The sum of the heads' second parts of one row. */
static void add_heads(const struct tt_call *call, const struct widths *w, const void *from, void *to, float *scratch)
{
    if (tt_op_is_bf16(call->graph, call->node)) {
        tt_kernels()->sum_rows_bf16(scratch, NULL, from, w->heads, w->whole, w->second);
        tt_kernels()->bf16_round(to, scratch, w->second);
    } else {
        tt_kernels()->sum_rows(to, NULL, from, w->heads, w->whole, w->second);
    }
}

static int64_t worker_floats(const struct tt_node *node)
{
    return tt_round_up(node->attr.head_dim, LINE);
}

static void split_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct widths w = widths_of(&call->node->attr);
    struct tt_range part = tt_tile_range(tt_value_rows(tt_call_in(call, 0)), TILE_ROWS, tile);
    size_t size = tt_dtype_size(tt_call_in(call, 0)->dtype);
    float *scratch = (float *)call->scratch + worker * worker_floats(call->node);

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
    return tt_op_is_bf16(graph, node) ? threads * worker_floats(node) * (int64_t)sizeof(float) : 0;
}

/* --- join --- */

static int infer_join(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct widths w = widths_of(&node->attr);
    int present = node->in[0] != TT_NONE ? 0 : 1;
    int64_t out[2] = {0, w.heads * w.whole};

    if (!is_possible(&w) || node->in[present] == TT_NONE)
        return tt_op_mismatch(graph, node, "one part of heads at least, a prefix within E");
    out[0] = tt_value_rows(&graph->values[node->in[present]]);
    if (!tt_op_acc_fits(graph, node, 0, out[0], w.heads * w.first) ||
        !tt_op_acc_fits(graph, node, 1, out[0], w.seconds * w.second))
        return tt_op_mismatch(graph, node, "first (N, H*prefix), second (N, H*(E-prefix)), or (N, E-prefix) if shared");
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

static int backward_join(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int rc = 0, grad[2];

    TT_TRY(tt_rule_node(graph, TT_OP_SPLIT, &forward, grad_out, 1, forward.in, 2, grad));
    for (int i = 0; i < 2; i++)
        TT_TRY(tt_rule_add(graph, &forward, i, grad[i], grad_in));
out:
    return rc;
}

static void copy_or_clear(void *to, const void *from, size_t bytes)
{
    if (from)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

static void join_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct widths w = widths_of(&call->node->attr);
    struct tt_range part = tt_tile_range(tt_value_rows(tt_call_out(call, 0)), TILE_ROWS, tile);
    size_t size = tt_dtype_size(tt_call_out(call, 0)->dtype);

    (void)worker;
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

static void run_join(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_out(call, 0)), TILE_ROWS), join_tile, (void *)call);
}

const struct tt_op_row tt_op_split = {
    .name = "split",
    .in = {TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_split,
    .backward = backward_split,
    .run = run_split,
    .cost = cost,
    .scratch_bytes = scratch_split,
};

const struct tt_op_row tt_op_join = {
    .name = "join",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_join,
    .backward = backward_join,
    .run = run_join,
    .cost = cost,
};
