/* SPDX-License-Identifier: MIT
 *
 * EXPERTS: y = x w^T, where each expert's rows have a weight of their own.
 *   in   x (R, K), w (X, M, K), ends (X) I32 (DISPATCH): expert e has rows [ends[e - 1], ends[e])      out  y (R, M)
 *
 * EXPERTS_BWD_X: in  dy (R, M), w, ends, acc (R, K) or none      out  dx = [acc +] dy w, may take acc's memory
 * EXPERTS_BWD_W: in  dy, x, ends, acc (X, M, K) or none          out  dw = [acc +] dy^T x, may take acc's memory
 *   An expert without rows gets acc, or zeros.
 *   attr experts (X)
 *
 * Each expert's rows are one product, cut into tiles by its shape only. The team runs the tiles of all experts in one
 * run, so an expert with many rows does not keep the others waiting. An expert has the same rows of a microbatch on
 * every layout, so its product has the same shape, and the bits do not depend on the layout with any kernel.
 */
#include <string.h>

#include "core/kernels/matmul.h"
#include "core/ops/rule.h"

enum { LINE = 16 /* integers or floats of a cache line */ };

/* R, M, K and X of a node; false if its inputs do not fit. */
struct sizes {
    int64_t rows, m, k, experts;
};

static bool ends_fit(const struct tt_graph *graph, const struct tt_node *node, int64_t experts)
{
    const struct tt_value *ends = &graph->values[node->in[2]];

    return ends->ndim == 1 && ends->shape[0] == experts && node->attr.experts == experts;
}

static bool sizes_of(const struct tt_graph *graph, const struct tt_node *node, struct sizes *ret_sizes)
{
    const struct tt_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
    struct sizes s = {.rows = tt_value_rows(a), .experts = node->attr.experts};

    if (node->op == TT_OP_EXPERTS_BWD_W) {
        s.m = tt_value_width(a);
        s.k = tt_value_width(b);
        *ret_sizes = s;
        return tt_value_rows(b) == s.rows && ends_fit(graph, node, s.experts) &&
               tt_op_acc_fits(graph, node, 3, s.experts * s.m, s.k);
    }
    if (b->ndim != 3)
        return false;
    s.m = b->shape[1];
    s.k = b->shape[2];
    *ret_sizes = s;
    if (node->op == TT_OP_EXPERTS)
        return tt_value_width(a) == s.k && ends_fit(graph, node, b->shape[0]);
    return tt_value_width(a) == s.m && ends_fit(graph, node, b->shape[0]) &&
           tt_op_acc_fits(graph, node, 3, s.rows, s.k);
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    struct sizes s;
    int64_t y[2];

    if (!sizes_of(graph, node, &s))
        return tt_op_mismatch(graph, node, "x (R, K), w (X, M, K), ends (X)");
    y[0] = s.rows;
    y[1] = s.m;
    return tt_op_output(graph, node, 0, name, NULL, 2, y);
}

static int infer_bwd_x(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    struct sizes s;
    int64_t dx[2];

    if (!sizes_of(graph, node, &s))
        return tt_op_mismatch(graph, node, "dy (R, M), w (X, M, K), ends (X), acc (R, K)");
    dx[0] = s.rows;
    dx[1] = s.k;
    return tt_op_output(graph, node, 0, name, NULL, 2, dx);
}

static int infer_bwd_w(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    struct sizes s;
    int64_t dw[3];

    if (!sizes_of(graph, node, &s))
        return tt_op_mismatch(graph, node, "dy (R, M), x (R, K), ends (X), acc (X, M, K)");
    dw[0] = s.experts;
    dw[1] = s.m;
    dw[2] = s.k;
    return tt_op_output(graph, node, 0, name, NULL, 3, dw);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int x = forward.in[0], w = forward.in[1], ends = forward.in[2], rc = 0, grad;
    int in_x[4] = {grad_out[0], w, ends, grad_in[0]}, in_w[4] = {grad_out[0], x, ends, grad_in[1]};

    if (tt_rule_wanted(graph, x)) {
        TT_TRY(tt_rule_node(graph, TT_OP_EXPERTS_BWD_X, &forward, in_x, 4, &x, 1, &grad));
        tt_rule_set(&forward, 0, grad, grad_in);
    }
    if (tt_rule_wanted(graph, w)) {
        TT_TRY(tt_rule_node(graph, TT_OP_EXPERTS_BWD_W, &forward, in_w, 4, &w, 1, &grad));
        tt_rule_set(&forward, 1, grad, grad_in);
    }
out:
    return rc;
}

/* --- products --- */

/* The product of `rows` rows of one expert, without addresses. */
static struct tt_matmul product_of(const struct tt_graph *graph, const struct tt_node *node, const struct sizes *s,
                                   int64_t rows)
{
    struct tt_matmul product;

    switch (node->op) {
    case TT_OP_EXPERTS:
        product =
            (struct tt_matmul){.trans_b = true, .m = rows, .n = s->m, .k = s->k, .lda = s->k, .ldb = s->k, .ldc = s->m};
        break;
    case TT_OP_EXPERTS_BWD_X:
        product = (struct tt_matmul){.m = rows, .n = s->k, .k = s->m, .lda = s->m, .ldb = s->k, .ldc = s->k};
        break;
    default:
        product =
            (struct tt_matmul){.trans_a = true, .m = s->m, .n = s->k, .k = rows, .lda = s->m, .ldb = s->k, .ldc = s->k};
    }
    product.bf16 = tt_op_is_bf16(graph, node);
    product.c_bf16 = product.bf16 && node->op != TT_OP_EXPERTS_BWD_W;
    return product;
}

static int64_t begin_of(const struct tt_call *call, int64_t expert)
{
    return expert ? ((const int32_t *)call->in[2])[expert - 1] : 0;
}

/* The product of an expert, with addresses but for scratch. */
static struct tt_matmul product_at(const struct tt_call *call, int64_t expert)
{
    int64_t begin = begin_of(call, expert), rows = ((const int32_t *)call->in[2])[expert] - begin;
    struct sizes s = {0};
    struct tt_matmul product;
    int64_t weight;

    (void)sizes_of(call->graph, call->node, &s);
    product = product_of(call->graph, call->node, &s, rows);
    weight = expert * s.m * s.k;
    product.a = tt_call_in_at(call, 0, begin * product.lda);
    if (call->node->op == TT_OP_EXPERTS_BWD_W) {
        product.b = tt_call_in_at(call, 1, begin * product.ldb);
        product.acc = tt_call_in_at(call, 3, weight);
        product.c = tt_call_out_at(call, 0, weight);
    } else {
        product.b = tt_call_in_at(call, 1, weight);
        product.acc = call->node->op == TT_OP_EXPERTS ? NULL : tt_call_in_at(call, 3, begin * product.ldc);
        product.c = tt_call_out_at(call, 0, begin * product.ldc);
    }
    return product;
}

/* --- tiles --- */

/* Scratch: for each expert the end of its tiles; then each worker's floats for the largest product. */
static int64_t worker_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    struct sizes s = {0};
    struct tt_matmul most;

    (void)sizes_of(graph, node, &s);
    most = product_of(graph, node, &s, s.rows);
    return tt_round_up(tt_matmul_scratch_floats(&most), LINE);
}

static int64_t ends_of_tiles(const struct tt_node *node)
{
    return tt_round_up(node->attr.experts, LINE);
}

/* What an expert without rows leaves of its gradient. */
static void leave(const struct tt_matmul *product)
{
    size_t bytes = (size_t)(product->m * product->n) * sizeof(float);

    if (!product->acc)
        memset(product->c, 0, bytes);
    else if (product->acc != product->c)
        memcpy(product->c, product->acc, bytes);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const int32_t *tile_ends = call->scratch;
    int64_t expert = 0;
    struct tt_matmul product;

    while (tile >= tile_ends[expert])
        expert++;
    product = product_at(call, expert);
    product.scratch =
        (float *)call->scratch + ends_of_tiles(call->node) + worker * worker_floats(call->graph, call->node);
    if (product.k == 0)
        leave(&product);
    else
        tt_matmul_tile(&product, tile - (expert ? tile_ends[expert - 1] : 0), 0);
}

static void run(const struct tt_call *call)
{
    int32_t *tile_ends = call->scratch, tiles = 0;

    for (int64_t expert = 0; expert < call->node->attr.experts; expert++) {
        struct tt_matmul product = product_at(call, expert);

        tiles += product.m == 0 ? 0 : product.k == 0 ? 1 : (int32_t)tt_matmul_tiles(&product);
        tile_ends[expert] = tiles;
    }
    tt_team_run(call->team, tiles, run_tile, (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    return (ends_of_tiles(node) + threads * worker_floats(graph, node)) * (int64_t)sizeof(float);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct sizes s = {0};

    (void)sizes_of(graph, node, &s);
    ret_cost->flops = 2.0 * (double)s.rows * (double)s.m * (double)s.k;
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row tt_op_experts = {
    .name = "experts",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_GEMM,
    .weight = TT_WEIGHT_MATMUL,
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};

const struct tt_op_row tt_op_experts_bwd_x = {
    .name = "experts_bwd_x",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_GEMM,
    .infer = infer_bwd_x,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {4},
};

const struct tt_op_row tt_op_experts_bwd_w = {
    .name = "experts_bwd_w",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_GEMM,
    .infer = infer_bwd_w,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {4},
};
