/* SPDX-License-Identifier: MIT
 *
 * ATTENTION: o = softmax(q k^T / sqrt(E)) v, causal inside each sequence of T rows, for every query head; query head h
 * reads key/value head h / (H / K).
 *   in   q (N, H*E), k (N, K*E), v (N, K*E)      out  o (N, H*E), lse (N, H): log of the sum of exp of each row
 *   attr seq_len, heads, kv_heads, head_dim
 *
 * ATTENTION_BWD: makes the probabilities again from lse, tile by tile.
 *   in   do, q, k, v, o, lse      out  dq, dk, dv
 *
 * A forward tile is TT_ATTENTION_ROWS rows of a head; a backward tile is a key/value head of a sequence with its query
 * heads, so that every element of dk and dv is summed by one thread in one order.
 */
#include <math.h>

#include "core/ops/kernels.h"
#include "core/ops/rule.h"

enum { CACHE_LINE = 64 };

/* A pair (row i, key j) of one head in double; rows of q and k start at the head's first column. */
static double score(const float *q, const float *k, int64_t head_dim)
{
    double sum = 0.0;

    for (int64_t e = 0; e < head_dim; e++)
        sum += (double)q[e] * (double)k[e];
    return sum / sqrt((double)head_dim);
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void tt_attention_fwd_ref(float *o, float *lse, const float *q, const float *k, const float *v,
                          const struct tt_attention_shape *shape, int64_t first_row, int64_t rows, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim, k_stride = shape->kv_heads * dim;

    (void)scratch;
    for (int64_t i = first_row; i < first_row + rows; i++) {
        double largest = -INFINITY, sum = 0.0;

        for (int64_t j = 0; j <= i; j++)
            largest = fmax(largest, score(q + i * q_stride, k + j * k_stride, dim));
        for (int64_t j = 0; j <= i; j++)
            sum += exp(score(q + i * q_stride, k + j * k_stride, dim) - largest);
        lse[i * shape->heads] = (float)(largest + log(sum));
        for (int64_t e = 0; e < dim; e++) {
            double out = 0.0;

            for (int64_t j = 0; j <= i; j++)
                out += exp(score(q + i * q_stride, k + j * k_stride, dim) - largest) * (double)v[j * k_stride + e];
            o[i * q_stride + e] = (float)(out / sum);
        }
    }
}

/* The probability p of (row i, key j) for query head `head` of the group and the gradient ds of its score. */
static double pair(const struct tt_attention_grads *group, const struct tt_attention_shape *shape, int64_t head,
                   int64_t i, int64_t j, double *ret_ds)
{
    int64_t dim = shape->head_dim, at = i * shape->heads * dim + head * dim, key = j * shape->kv_heads * dim;
    double p = exp(score(group->q + at, group->k + key, dim) - (double)group->lse[i * shape->heads + head]), dot = 0.0;

    for (int64_t e = 0; e < dim; e++)
        dot += (double)group->dout[at + e] * ((double)group->v[key + e] - (double)group->o[at + e]);
    *ret_ds = p * dot / sqrt((double)dim);
    return p;
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void tt_attention_bwd_ref(const struct tt_attention_grads *group, const struct tt_attention_shape *shape,
                          float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim, k_stride = shape->kv_heads * dim;
    int64_t n_heads = shape->heads / shape->kv_heads;
    double ds;

    (void)scratch;
    for (int64_t i = 0; i < shape->seq_len; i++) {
        for (int64_t c = 0; c < n_heads * dim; c++) {
            double sum = 0.0;

            for (int64_t j = 0; j <= i; j++) {
                (void)pair(group, shape, c / dim, i, j, &ds);
                sum += ds * (double)group->k[j * k_stride + c % dim];
            }
            group->dq[i * q_stride + c] = (float)sum;
        }
    }
    for (int64_t j = 0; j < shape->seq_len; j++) {
        for (int64_t e = 0; e < dim; e++) {
            double dk = 0.0, dv = 0.0;

            for (int64_t head = 0; head < n_heads; head++) {
                for (int64_t i = j; i < shape->seq_len; i++) {
                    dv += pair(group, shape, head, i, j, &ds) * (double)group->dout[i * q_stride + head * dim + e];
                    dk += ds * (double)group->q[i * q_stride + head * dim + e];
                }
            }
            group->dk[j * k_stride + e] = (float)dk;
            group->dv[j * k_stride + e] = (float)dv;
        }
    }
}

static bool shapes_fit(const struct tt_graph *graph, const struct tt_node *node, int q)
{
    const struct tt_attr *attr = &node->attr;
    int64_t rows = tt_value_rows(&graph->values[node->in[q]]);

    return attr->seq_len > 0 && attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0 && rows % attr->seq_len == 0 &&
           tt_op_acc_fits(graph, node, q, rows, (int64_t)attr->heads * attr->head_dim) &&
           tt_op_acc_fits(graph, node, q + 1, rows, (int64_t)attr->kv_heads * attr->head_dim) &&
           tt_op_acc_fits(graph, node, q + 2, rows, (int64_t)attr->kv_heads * attr->head_dim);
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value q = graph->values[node->in[0]];
    int64_t lse[2] = {tt_value_rows(&q), node->attr.heads};
    int rc = 0;

    if (node->n_in != 3 || !shapes_fit(graph, node, 0))
        return tt_op_mismatch(graph, node, "q (B*T, H*E), k and v (B*T, K*E), H a multiple of K");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, q.ndim, q.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "lse", 2, lse));
out:
    return rc;
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[6] = {grad_out[0], forward.in[0], forward.in[1], forward.in[2], forward.out[0], forward.out[1]};
    int grad[3], rc = 0;

    TT_TRY(tt_rule_node(graph, TT_OP_ATTENTION_BWD, &forward, in, 6, forward.in, 3, grad));
    for (int i = 0; i < 3; i++)
        TT_TRY(tt_rule_add(graph, &forward, i, grad[i], grad_in));
out:
    return rc;
}

static struct tt_attention_shape shape_of(const struct tt_attr *attr)
{
    return (struct tt_attention_shape){attr->seq_len, attr->heads, attr->kv_heads, attr->head_dim};
}

/* Floats of one worker's scratch, whole cache lines. */
static int64_t worker_floats(int64_t floats)
{
    int64_t line = CACHE_LINE / (int64_t)sizeof(float);

    return tt_tiles(floats, line) * line;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_attention_shape shape = shape_of(&call->node->attr);
    int64_t sequences = tt_value_rows(tt_call_in(call, 0)) / shape.seq_len, all = sequences * shape.heads;
    int64_t blocks = tt_tiles(shape.seq_len, TT_ATTENTION_ROWS);
    int64_t sequence = tile % all / shape.heads, head = tile % shape.heads;
    /* the longest rows first, so that no thread ends on a long one */
    struct tt_range part = tt_tile_range(shape.seq_len, TT_ATTENTION_ROWS, blocks - 1 - tile / all);
    int64_t row = sequence * shape.seq_len, kv_head = head / (shape.heads / shape.kv_heads);
    int64_t q_at = (row * shape.heads + head) * shape.head_dim;
    int64_t k_at = (row * shape.kv_heads + kv_head) * shape.head_dim;

    tt_kernels()->attention_fwd(
        (float *)call->out[0] + q_at, (float *)call->out[1] + row * shape.heads + head,
        (const float *)call->in[0] + q_at, (const float *)call->in[1] + k_at, (const float *)call->in[2] + k_at, &shape,
        part.begin, part.n, (float *)call->scratch + worker * worker_floats(tt_attention_fwd_scratch(shape.seq_len)));
}

static void run(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    int64_t sequences = tt_value_rows(tt_call_in(call, 0)) / attr->seq_len;

    tt_team_run(call->team, sequences * attr->heads * tt_tiles(attr->seq_len, TT_ATTENTION_ROWS), run_tile,
                (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    (void)graph;
    return threads * worker_floats(tt_attention_fwd_scratch(node->attr.seq_len)) * (int64_t)sizeof(float);
}

/* Pairs (row, key) that the mask leaves, times the floats of a head, over all heads. */
static double pair_elements(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    double rows = (double)tt_value_rows(&graph->values[node->in[0]]);

    return rows * ((double)attr->seq_len + 1.0) / 2.0 * attr->heads * attr->head_dim;
}

/* Two products forward, five backward. */
static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = (node->op == TT_OP_ATTENTION ? 4.0 : 10.0) * pair_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value q = graph->values[node->in[1]], k = graph->values[node->in[2]];
    int rc = 0;

    if (node->n_in != 6 || !shapes_fit(graph, node, 1) ||
        !tt_op_acc_fits(graph, node, 0, tt_value_rows(&q), tt_value_width(&q)) ||
        !tt_op_acc_fits(graph, node, 4, tt_value_rows(&q), tt_value_width(&q)) ||
        !tt_op_acc_fits(graph, node, 5, tt_value_rows(&q), node->attr.heads))
        return tt_op_mismatch(graph, node, "do, q (B*T, H*E), k, v (B*T, K*E), o (B*T, H*E), lse (B*T, H)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, q.ndim, q.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "k", k.ndim, k.shape));
    TT_TRY(tt_op_output(graph, node, 2, name, "v", k.ndim, k.shape));
out:
    return rc;
}

static void bwd_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_attention_shape shape = shape_of(&call->node->attr);
    int64_t row = tile / shape.kv_heads * shape.seq_len, kv_head = tile % shape.kv_heads;
    int64_t head = kv_head * (shape.heads / shape.kv_heads);
    int64_t q_at = (row * shape.heads + head) * shape.head_dim;
    int64_t k_at = (row * shape.kv_heads + kv_head) * shape.head_dim;
    struct tt_attention_grads group = {
        .dq = (float *)call->out[0] + q_at,
        .dk = (float *)call->out[1] + k_at,
        .dv = (float *)call->out[2] + k_at,
        .dout = (const float *)call->in[0] + q_at,
        .q = (const float *)call->in[1] + q_at,
        .k = (const float *)call->in[2] + k_at,
        .v = (const float *)call->in[3] + k_at,
        .o = (const float *)call->in[4] + q_at,
        .lse = (const float *)call->in[5] + row * shape.heads + head,
    };

    tt_kernels()->attention_bwd(
        &group, &shape, (float *)call->scratch + worker * worker_floats(tt_attention_bwd_scratch(shape.seq_len)));
}

static void run_bwd(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;

    tt_team_run(call->team, tt_value_rows(tt_call_in(call, 1)) / attr->seq_len * attr->kv_heads, bwd_tile,
                (void *)call);
}

static int64_t scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    (void)graph;
    return threads * worker_floats(tt_attention_bwd_scratch(node->attr.seq_len)) * (int64_t)sizeof(float);
}

const struct tt_op_row tt_op_attention = {
    .name = "attention",
    .part = TT_PART_ATTENTION,
    .weight = TT_WEIGHT_ATTENTION,
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};

const struct tt_op_row tt_op_attention_bwd = {
    .name = "attention_bwd",
    .part = TT_PART_ATTENTION,
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost,
    .scratch_bytes = scratch_bwd,
};
