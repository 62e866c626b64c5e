/* SPDX-License-Identifier: MIT
 *
 * LINEAR: y = x w^T.
 *   in   x (N, K), w (M, K)      out  y (N, M)
 *
 * LINEAR_BWD_X: in  dy (N, M), w, acc (N, K) or none      out  dx = [acc +] dy w, may take acc's memory
 * LINEAR_BWD_W: in  dy, x, acc (M, K) or none             out  dw = [acc +] dy^T x, may take acc's memory
 *   attr rows (N), out (M), in (K); partial: y, or dx, is a term of a sum over ranks, in F32
 *
 * LINEARS_BWD_X: the gradient of an x that several products read, whose outputs are in the same number of grains.
 *   in   dy (N, M), w (M, K), up to three more such pairs, or none      out  dx = the sum of dy w
 *   The pairs are added inside each grain of M, then the grains as a tree. attr as of the first pair.
 */
#include <stddef.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/ops/rule.h"

enum { LINE = 16 /* floats of a cache line */, PAIRS = 4 };

static bool extents_fit(const struct tt_node *node, int64_t n, int64_t m, int64_t k)
{
    const struct tt_attr *attr = &node->attr;

    return tt_grain_fits(&attr->rows, n) && tt_grain_fits(&attr->out, m) && tt_grain_fits(&attr->in, k);
}

/* The two matrices of in[0] and in[1]; a is any shape with N rows, b has two dimensions. */
static bool matrices(const struct tt_graph *graph, const struct tt_node *node, int64_t *ret_a, int64_t *ret_b)
{
    const struct tt_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];

    ret_a[0] = tt_value_rows(a);
    ret_a[1] = tt_value_width(a);
    ret_b[0] = tt_value_rows(b);
    ret_b[1] = tt_value_width(b);
    return a->ndim >= 2 && b->ndim >= 2;
}

static int linear_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t x[2], w[2], y[2];

    if (!matrices(graph, node, x, w) || x[1] != w[1] || !extents_fit(node, x[0], w[0], x[1]))
        return tt_op_mismatch(graph, node, "x (N, K), w (M, K)");
    y[0] = x[0];
    y[1] = w[0];
    return tt_op_output(graph, node, 0, name, NULL, 2, y);
}

static int infer_bwd_x(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t dy[2], w[2], dx[2];

    if (!matrices(graph, node, dy, w) || dy[1] != w[0] || !extents_fit(node, dy[0], w[0], w[1]) ||
        !tt_op_acc_fits(graph, node, 2, dy[0], w[1]))
        return tt_op_mismatch(graph, node, "dy (N, M), w (M, K), acc (N, K)");
    dx[0] = dy[0];
    dx[1] = w[1];
    return tt_op_output(graph, node, 0, name, NULL, 2, dx);
}

static int infer_bwd_w(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t dy[2], x[2], dw[2];

    if (!matrices(graph, node, dy, x) || dy[0] != x[0] || !extents_fit(node, x[0], dy[1], x[1]) ||
        !tt_op_acc_fits(graph, node, 2, dy[1], x[1]))
        return tt_op_mismatch(graph, node, "dy (N, M), x (N, K), acc (M, K)");
    dw[0] = dy[1];
    dw[1] = x[1];
    return tt_op_output(graph, node, 0, name, NULL, 2, dw);
}

/* The inputs of pair i of a LINEARS_BWD_X: dy, w. */
static const int *pair_of(const struct tt_node *node, int i)
{
    return &node->in[(ptrdiff_t)2 * i];
}

/* The number of pairs. */
static int pairs_of(const struct tt_node *node)
{
    int n = 1;

    while (n < PAIRS && *pair_of(node, n) != TT_NONE)
        n++;
    return n;
}

static int infer_all_bwd_x(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t dy[2], w[2], dx[2];

    if (!matrices(graph, node, dy, w))
        return tt_op_mismatch(graph, node, "dy (N, M), w (M, K)");
    dx[0] = dy[0];
    dx[1] = w[1];
    for (int i = 0; i < pairs_of(node); i++) {
        struct tt_node pair = {.n_in = 2, .in = {pair_of(node, i)[0], pair_of(node, i)[1]}, .attr = node->attr};

        if (!matrices(graph, &pair, dy, w) || dy[1] != w[0] || dy[0] != dx[0] || w[1] != dx[1] ||
            (i == 0 && !extents_fit(node, dy[0], w[0], w[1])))
            return tt_op_mismatch(graph, node, "pairs of dy (N, M), w (M, K)");
    }
    return tt_op_output(graph, node, 0, name, NULL, 2, dx);
}

/*
 * The gradient of x, if its outputs are in grains and x has one already: another product in the node that made it. A
 * node of its own, with the earlier gradient to add to, would add inside a rank first, so the bits would depend on the
 * number of ranks.
 */
static int add_pair(struct tt_graph *graph, const struct tt_node *forward, int dy, int grad)
{
    int id = graph->values[grad].producer, n;
    struct tt_node *node = id == TT_NONE ? NULL : &graph->nodes[id];
    bool single = node && node->op == TT_OP_LINEAR_BWD_X && node->in[2] == TT_NONE;

    if (!node || (!single && node->op != TT_OP_LINEARS_BWD_X) || node->attr.out.grains != forward->attr.out.grains)
        return tt_fail(TT_EINTERNAL, "the gradient of '%s' is not a sum of products in the same grains",
                       graph->values[forward->in[0]].name);
    if (graph->values[dy].producer >= id)
        return tt_fail(TT_EINTERNAL, "'%s' is made after the other products of its sum", graph->values[dy].name);
    n = single ? 1 : pairs_of(node);
    if (n == PAIRS)
        return tt_fail(TT_EINTERNAL, "'%s' has more than %d products", graph->values[forward->in[0]].name, PAIRS);
    node->op = TT_OP_LINEARS_BWD_X;
    for (int i = single ? 2 : 2 * n; i < 2 * PAIRS; i++)
        node->in[i] = TT_NONE;
    node->n_in = 2 * PAIRS;
    memcpy(&node->in[(ptrdiff_t)2 * n], (int[2]){dy, forward->in[1]}, 2 * sizeof(int));
    return tt_op_infer(graph, node, "");
}

static int backward_x(struct tt_graph *graph, const struct tt_node *forward, int dy, int *grad_in)
{
    int in[3] = {dy, forward->in[1], grad_in[0]}, rc = 0, grad;

    if (tt_grain_size(&forward->attr.out) && grad_in[0] != TT_NONE)
        return add_pair(graph, forward, dy, grad_in[0]);
    TT_TRY(tt_rule_node(graph, TT_OP_LINEAR_BWD_X, forward, in, 3, forward->in, 1, &grad));
    tt_rule_set(forward, 0, grad, grad_in);
out:
    return rc;
}

static int linear_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int x = forward.in[0], w = forward.in[1], rc = 0, grad;
    int in_w[3] = {grad_out[0], x, grad_in[1]};

    if (tt_rule_wanted(graph, x))
        TT_TRY(backward_x(graph, &forward, grad_out[0], grad_in));
    if (tt_rule_wanted(graph, w)) {
        TT_TRY(tt_rule_node(graph, TT_OP_LINEAR_BWD_W, &forward, in_w, 3, &w, 1, &grad));
        tt_rule_set(&forward, 1, grad, grad_in);
    }
out:
    return rc;
}

/* The product of a node, without addresses. */
static struct tt_matmul linear_product_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
    const struct tt_attr *attr = &node->attr;
    int64_t n = tt_value_rows(a), m = node->op == TT_OP_LINEAR ? tt_value_rows(b) : tt_value_width(a);
    int64_t k = tt_value_width(b);
    int64_t rows = tt_grain_size(&attr->rows), out = tt_grain_size(&attr->out), in = tt_grain_size(&attr->in);
    struct tt_matmul product;

    switch (node->op) {
    case TT_OP_LINEAR:
        product = (struct tt_matmul){.trans_b = true,
                                     .m = n,
                                     .n = m,
                                     .k = k,
                                     .lda = k,
                                     .ldb = k,
                                     .ldc = m,
                                     .m_grain = rows,
                                     .n_grain = out,
                                     .k_grain = in};
        break;
    case TT_OP_LINEAR_BWD_X:
    case TT_OP_LINEARS_BWD_X:
        product = (struct tt_matmul){
            .m = n, .n = k, .k = m, .lda = m, .ldb = k, .ldc = k, .m_grain = rows, .n_grain = in, .k_grain = out};
        break;
    default:
        product = (struct tt_matmul){.trans_a = true,
                                     .m = m,
                                     .n = k,
                                     .k = n,
                                     .lda = m,
                                     .ldb = k,
                                     .ldc = k,
                                     .m_grain = out,
                                     .n_grain = in,
                                     .k_grain = rows};
    }
    product.bf16 = tt_op_is_bf16(graph, node);
    product.c_bf16 = product.bf16 && node->op != TT_OP_LINEAR_BWD_W && !attr->partial;
    return product;
}

/* The product of pair i > 0 of a LINEARS_BWD_X. Its outputs have as many grains as those of the first. */
static struct tt_matmul product_of_pair(const struct tt_graph *graph, const struct tt_node *node, int i)
{
    struct tt_node pair = {.op = TT_OP_LINEAR_BWD_X, .n_in = 2, .attr = node->attr};
    int64_t first = tt_value_width(&graph->values[node->in[0]]), width;
    struct tt_matmul product;

    memcpy(pair.in, pair_of(node, i), 2 * sizeof(int));
    width = tt_value_width(&graph->values[pair.in[0]]);
    product = linear_product_of(graph, &pair);
    product.k_grain = product.k_grain * width / first;
    return product;
}

/* Scratch: the partial sums, then each worker's own. */
static int64_t partial_floats(const struct tt_node *node, const struct tt_matmul *product)
{
    return tt_round_up(tt_matmul_partial_floats(product, node->op != TT_OP_LINEAR && node->in[2] != TT_NONE), LINE);
}

static void run_product(const struct tt_call *call)
{
    struct tt_matmul product = linear_product_of(call->graph, call->node);

    product.a = call->in[0];
    product.b = call->in[1];
    product.acc = call->node->op == TT_OP_LINEAR ? NULL : call->in[2];
    product.c = call->out[0];
    product.partial = call->scratch;
    product.scratch = (float *)call->scratch + partial_floats(call->node, &product);
    tt_matmul(call->team, &product);
}

/* All pairs, without addresses; more has room for those after the first. */
static struct tt_matmul products_of(const struct tt_graph *graph, const struct tt_node *node, struct tt_matmul *more)
{
    struct tt_matmul product = linear_product_of(graph, node);

    product.more = more;
    product.n_more = pairs_of(node) - 1;
    for (int i = 0; i < product.n_more; i++)
        more[i] = product_of_pair(graph, node, i + 1);
    return product;
}

static void run_products(const struct tt_call *call)
{
    struct tt_matmul more[PAIRS - 1], product = products_of(call->graph, call->node, more);

    for (int i = 0; i < product.n_more; i++) {
        more[i].a = call->in[2 * i + 2];
        more[i].b = call->in[2 * i + 3];
    }
    product.a = call->in[0];
    product.b = call->in[1];
    product.c = call->out[0];
    product.partial = call->scratch;
    product.scratch = (float *)call->scratch + tt_round_up(tt_matmul_partial_floats(&product, false), LINE);
    tt_matmul(call->team, &product);
}

static int64_t scratch_products(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul more[PAIRS - 1], product = products_of(graph, node, more);

    return (tt_round_up(tt_matmul_partial_floats(&product, false), LINE) +
            threads * tt_matmul_scratch_floats(&product)) *
           (int64_t)sizeof(float);
}

static void linear_run(const struct tt_call *call)
{
    const struct tt_value *x = tt_call_in(call, 0), *w = tt_call_in(call, 1);
    const struct tt_extent *rows = &call->node->attr.rows;

    /* a token of generation: reading w limits the speed, and a matrix product would copy it first */
    if (tt_value_rows(x) == 1 && rows->whole <= 1)
        tt_gemv(call->team, &(struct tt_gemv){.bf16 = tt_op_is_bf16(call->graph, call->node),
                                              .y_bf16 = tt_op_is_bf16(call->graph, call->node),
                                              .w = call->in[1],
                                              .x = call->in[0],
                                              .y = call->out[0],
                                              .rows = tt_value_rows(w),
                                              .width = tt_value_width(x)});
    else
        run_product(call);
}

static int64_t linear_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul product = linear_product_of(graph, node);

    return (partial_floats(node, &product) + threads * tt_matmul_scratch_floats(&product)) * (int64_t)sizeof(float);
}

/* All three are 2 N M K: the elements of the output times twice the dimension that is summed over. */
static void linear_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *a = &graph->values[node->in[0]];

    ret_cost->flops = 2.0 * tt_op_elements(graph, node) *
                      (double)(node->op == TT_OP_LINEAR_BWD_W ? tt_value_rows(a) : tt_value_width(a));
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->inner = ret_cost->flops / (2.0 * tt_op_elements(graph, node));
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

static void cost_products(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    linear_cost(graph, node, ret_cost);
    for (int i = 1; i < pairs_of(node); i++)
        ret_cost->flops +=
            2.0 * tt_op_elements(graph, node) * (double)tt_value_width(&graph->values[*pair_of(node, i)]);
}

const struct tt_op_row tt_op_linear = {
    .name = "linear",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .weight = TT_WEIGHT_MATMUL,
    .infer = linear_infer,
    .backward = linear_backward,
    .run = linear_run,
    .cost = linear_cost,
    .scratch_bytes = linear_scratch,
};

const struct tt_op_row tt_op_linear_bwd_x = {
    .name = "linear_bwd_x",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .infer = infer_bwd_x,
    .run = run_product,
    .cost = linear_cost,
    .scratch_bytes = linear_scratch,
    .alias = {3},
};

const struct tt_op_row tt_op_linears_bwd_x = {
    .name = "linears_bwd_x",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .infer = infer_all_bwd_x,
    .run = run_products,
    .cost = cost_products,
    .scratch_bytes = scratch_products,
};

const struct tt_op_row tt_op_linear_bwd_w = {
    .name = "linear_bwd_w",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .infer = infer_bwd_w,
    .run = run_product,
    .cost = linear_cost,
    .scratch_bytes = linear_scratch,
    .alias = {3},
};

/*
 * HEAD_LINEAR: every head's product with its own rows of a weight, for generation with a cache of latents.
 *   in   x (N, H*prefix), w (H*E, R)      out  y (N, H*R): of head h, x times the first `prefix` of its E rows of w
 *   inverse: x (N, H*R)                   out  y (N, H*(E - prefix)): x times the transpose of the other rows
 *   attr heads, head_dim (E), prefix, inverse
 */

/* The widths of a head's x and y. */
struct widths {
    int64_t x, y;
};

static struct widths widths_of(const struct tt_attr *attr, int64_t rank)
{
    struct widths w = {attr->prefix, rank};

    return attr->inverse ? (struct widths){rank, attr->head_dim - attr->prefix} : w;
}

static int head_linear_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    const struct tt_attr *attr = &node->attr;
    struct widths widths = widths_of(attr, tt_value_width(w));
    int64_t out[2] = {tt_value_rows(x), attr->heads * widths.y};

    if (attr->prefix < 1 || attr->prefix >= attr->head_dim || tt_value_width(x) != attr->heads * widths.x ||
        tt_value_rows(w) != (int64_t)attr->heads * attr->head_dim)
        return tt_op_mismatch(graph, node, "x (N, H*prefix) or (N, H*R), w (H*E, R)");
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

/* The product of the first head, without addresses. */
static struct tt_matmul head_linear_product_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    int64_t rank = tt_value_width(&graph->values[node->in[1]]);
    struct widths widths = widths_of(attr, rank);
    bool bf16 = tt_op_is_bf16(graph, node);

    return (struct tt_matmul){.bf16 = bf16,
                              .c_bf16 = bf16,
                              .trans_b = attr->inverse,
                              .m = tt_value_rows(&graph->values[node->in[0]]),
                              .n = widths.y,
                              .k = widths.x,
                              .lda = attr->heads * widths.x,
                              .ldb = rank,
                              .ldc = attr->heads * widths.y};
}

static void head_linear_run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_attr *attr = &call->node->attr;
    struct tt_matmul product = head_linear_product_of(call->graph, call->node);
    int64_t tiles = tt_matmul_tiles(&product), head = tile / tiles;
    int64_t row = head * attr->head_dim + (attr->inverse ? attr->prefix : 0);

    product.a = tt_call_in_at(call, 0, head * product.k);
    product.b = tt_call_in_at(call, 1, row * product.ldb);
    product.c = tt_call_out_at(call, 0, head * product.n);
    product.scratch = call->scratch;
    tt_matmul_tile(&product, tile % tiles, worker);
}

static void head_linear_run(const struct tt_call *call)
{
    struct tt_matmul product = head_linear_product_of(call->graph, call->node);

    tt_team_run(call->team, call->node->attr.heads * tt_matmul_tiles(&product), head_linear_run_tile, (void *)call);
}

static int64_t head_linear_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul product = head_linear_product_of(graph, node);

    return threads * tt_matmul_scratch_floats(&product) * (int64_t)sizeof(float);
}

static void head_linear_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul product = head_linear_product_of(graph, node);

    ret_cost->flops = 2.0 * node->attr.heads * (double)product.m * (double)product.n * (double)product.k;
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = product.bf16;
}

const struct tt_op_row tt_op_head_linear = {
    .name = "head_linear",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .weight = TT_WEIGHT_MATMUL,
    .part = TT_PART_GEMM,
    .infer = head_linear_infer,
    .run = head_linear_run,
    .cost = head_linear_cost,
    .scratch_bytes = head_linear_scratch,
};

/*
 * BIAS: y = x + b in every row.
 *   in   x (N, D), b (D)      out  y (N, D), may take x's memory
 *
 * BIAS_BWD: the gradient of b. The gradient of x is dy itself.
 *   in   dy (N, D), acc (D) or none      out  db (D) = [acc +] the sum of dy's rows, may take acc's memory
 *   Summed over blocks of SUM_ROWS rows, then over the blocks (tt_row_blocks_sum). attr rows (N).
 */

enum { TILE_ROWS = 64, SUM_ROWS = 64 };

static int bias_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, 1, tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x (N, D), b (D)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static int bias_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int in[2] = {grad_out[0], grad_in[1]}, grad, rc = 0;

    TT_TRY(tt_rule_add(graph, &forward, 0, grad_out[0], grad_in));
    if (!tt_rule_wanted(graph, forward.in[1]))
        return 0;
    TT_TRY(tt_rule_node(graph, TT_OP_BIAS_BWD, &forward, in, 2, &forward.in[1], 1, &grad));
    tt_rule_set(&forward, 1, grad, grad_in);
out:
    return rc;
}

static void bias_run_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *x = tt_call_in(call, 0);
    int64_t width = tt_value_width(x);

    for (int64_t r = part.begin; r < part.begin + part.n; r++)
        TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width), call->in[1],
                      width);
}

static void bias_run(const struct tt_call *call)
{
    tt_op_run_tiles(call, tt_value_rows(tt_call_in(call, 0)), TILE_ROWS, bias_run_tile);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dy = &graph->values[node->in[0]];
    int64_t width = tt_value_width(dy);

    if (!tt_op_acc_fits(graph, node, 1, 1, width) || !tt_grain_fits(&node->attr.rows, tt_value_rows(dy)))
        return tt_op_mismatch(graph, node, "dy (N, D), acc (D)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &width);
}

static struct tt_row_blocks blocks_of(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_row_blocks_of(&node->attr.rows, tt_value_rows(&graph->values[node->in[0]]), 1, SUM_ROWS);
}

static void block_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t width = tt_value_width(tt_call_in(call, 0));
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    struct tt_range part = tt_row_block(&blocks, tile);

    (void)worker;
    TT_RUN_KERNEL(call, sum_rows, (float *)call->scratch + tile * width, NULL,
                  tt_call_in_at(call, 0, part.begin * width), part.n, width, width);
}

static void sum_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t width = tt_value_width(tt_call_in(call, 0));
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);
    const float *acc = call->in[1];

    tt_row_blocks_sum(&blocks, (float *)call->out[0] + part.begin, acc ? acc + part.begin : NULL,
                      (const float *)call->scratch + part.begin, width, part.n);
}

static void run_bwd(const struct tt_call *call)
{
    struct tt_row_blocks blocks = blocks_of(call->graph, call->node);

    tt_team_run(call->team, tt_row_blocks_count(&blocks), block_tile, (void *)call);
    tt_op_run_tiles(call, tt_value_width(tt_call_in(call, 0)), TT_SUM_COLUMNS, sum_tile);
}

static int64_t scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_row_blocks blocks = blocks_of(graph, node);

    (void)threads;
    return tt_row_blocks_count(&blocks) * tt_value_width(&graph->values[node->in[0]]) * (int64_t)sizeof(float);
}

const struct tt_op_row tt_op_bias = {
    .name = "bias",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .infer = bias_infer,
    .backward = bias_backward,
    .run = bias_run,
    .flops = 1.0,
    .alias = {1},
};

const struct tt_op_row tt_op_bias_bwd = {
    .name = "bias_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .infer = infer_bwd,
    .run = run_bwd,
    .flops = 1.0,
    .scratch_bytes = scratch_bwd,
    .alias = {2},
};
