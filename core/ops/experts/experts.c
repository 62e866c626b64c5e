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
 * Each expert's rows are one product (experts.h). The team runs the tiles of all experts in one run, so an expert with
 * many rows does not keep the others waiting. An expert has the same rows of a microbatch on every layout, so its
 * product has the same shape, and the bits do not depend on the layout with any kernel.
 */
#include "core/ops/experts/experts.h"

#include "core/ops/rule.h"

enum { LINE = 64 /* bytes of a cache line */ };

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

/* The products of a node, without rows and addresses. */
static struct tt_experts_products products_of(const struct tt_graph *graph, const struct tt_node *node)
{
    struct tt_experts_products products = {.op = node->op, .bf16 = tt_op_is_bf16(graph, node), .n = node->attr.experts};
    struct sizes s = {0};

    (void)sizes_of(graph, node, &s);
    products.m = s.m;
    products.k = s.k;
    products.scratch_floats = tt_experts_scratch_floats(&products, s.rows);
    return products;
}

static struct tt_expert_rows rows_of(const struct tt_call *call, const struct tt_experts_products *p, int64_t expert)
{
    const int32_t *ends = call->in[2];
    int64_t begin = expert ? ends[expert - 1] : 0, weight = expert * p->m * p->k;
    struct tt_expert_rows of = {.rows = ends[expert] - begin};

    switch (p->op) {
    case TT_OP_EXPERTS:
        of.in[0] = tt_call_in_at(call, 0, begin * p->k);
        of.in[1] = tt_call_in_at(call, 1, weight);
        of.out = tt_call_out_at(call, 0, begin * p->m);
        break;
    case TT_OP_EXPERTS_BWD_X:
        of.in[0] = tt_call_in_at(call, 0, begin * p->m);
        of.in[1] = tt_call_in_at(call, 1, weight);
        of.acc = tt_call_in_at(call, 3, begin * p->k);
        of.out = tt_call_out_at(call, 0, begin * p->k);
        break;
    default:
        of.in[0] = tt_call_in_at(call, 0, begin * p->m);
        of.in[1] = tt_call_in_at(call, 1, begin * p->k);
        of.acc = tt_call_in_at(call, 3, weight);
        of.out = tt_call_out_at(call, 0, weight);
    }
    return of;
}

/* Scratch: the rows of each expert, then each worker's floats. */
static int64_t rows_bytes(const struct tt_node *node)
{
    return tt_round_up(node->attr.experts * (int64_t)sizeof(struct tt_expert_rows), LINE);
}

static void run(const struct tt_call *call)
{
    struct tt_experts_products products = products_of(call->graph, call->node);

    products.of = call->scratch;
    products.scratch = (float *)(void *)((char *)call->scratch + rows_bytes(call->node));
    for (int64_t expert = 0; expert < products.n; expert++)
        products.of[expert] = rows_of(call, &products, expert);
    tt_experts_run(call->team, &products);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_experts_products products = products_of(graph, node);

    return rows_bytes(node) + threads * products.scratch_floats * (int64_t)sizeof(float);
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
