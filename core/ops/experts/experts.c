/* SPDX-License-Identifier: MIT
 *
 * EXPERTS: y = x w^T, where each expert's rows have a weight of their own.
 *   in   x (R, K), w (X, M, K), ends (X G) I32 (DISPATCH)      out  y (R, M)
 *   Grain g of the rows of expert e has rows [ends[i - 1], ends[i]), i = e G + g.
 *
 * EXPERTS_BWD_X: in  dy (R, M), w, ends, acc (R, K) or none      out  dx = [acc +] dy w, may take acc's memory
 * EXPERTS_BWD_W: in  dy, x, ends, acc (X, M, K) or none          out  dw = [acc +] dy^T x, may take acc's memory
 *   An expert without rows gets acc, or zeros. The gradients of grains are added in the order of core/math/tree.h.
 *   attr experts (X), parts (G)
 *
 * Each expert's rows of a grain are one product (pairs.h). The team runs the tiles of all experts in one run, so an
 * expert with many rows does not keep the others waiting. An expert has the same rows of a grain on every layout, so
 * its product has the same shape, and the bits do not depend on the layout with any kernel.
 */
#include "core/graph/pieces.h"
#include "core/ops/experts/pairs.h"
#include "core/ops/rule.h"

enum { LINE = 64 /* bytes of a cache line */ };

/* R, M, K and X of a node; false if its inputs do not fit. */
struct sizes {
    int64_t rows, m, k, experts;
};

static bool ends_fit(const struct tt_graph *graph, const struct tt_node *node, int64_t experts)
{
    const struct tt_value *ends = &graph->values[node->in[2]];

    return ends->ndim == 1 && ends->shape[0] == experts * tt_parts_grains(&node->attr.parts) &&
           node->attr.experts == experts;
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

/* The products of a node, without addresses. */
static struct tt_pair_products products_of(const struct tt_graph *graph, const struct tt_node *node)
{
    struct sizes s = {0};

    (void)sizes_of(graph, node, &s);
    return (struct tt_pair_products){
        .op = node->op, .bf16 = tt_op_is_bf16(graph, node), .m = s.m, .k = s.k, .rows = s.rows};
}

/* Scratch: the sums over grains, then that of the products. */
static int64_t sums_bytes(const struct tt_node *node, const struct tt_pair_products *products, int threads)
{
    bool adds = node->op == TT_OP_EXPERTS_BWD_W;
    int64_t floats = adds ? tt_pairs_sums_floats(&node->attr, products, threads) : 0;

    return tt_round_up(floats * (int64_t)sizeof(float), LINE);
}

static void run(const struct tt_call *call)
{
    struct tt_pair_products products = products_of(call->graph, call->node);
    struct tt_pairs_work work = {
        .call = call, .pairs = tt_pairs_of(call, 2), .most = products.rows, .bf16 = products.bf16};
    const void *acc = products.op == TT_OP_EXPERTS ? NULL : call->in[3];

    products.scratch = work.scratch =
        (char *)call->scratch + sums_bytes(call->node, &products, tt_team_threads(call->team));
    if (products.op != TT_OP_EXPERTS_BWD_W) {
        tt_pairs_multiply(&work, products.op, products.m, products.k, call->in[0], call->in[1], acc, call->out[0]);
        return;
    }
    products.in[0] = call->in[0];
    products.in[1] = call->in[1];
    products.acc = acc;
    products.out = call->out[0];
    tt_pairs_gradients(call, &work.pairs, &products, call->scratch);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_pair_products products = products_of(graph, node);

    return sums_bytes(node, &products, threads) + tt_pairs_scratch(&products, tt_pairs_count(&node->attr), threads);
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
