/* SPDX-License-Identifier: MIT
 *
 * LINEAR: y = x w^T.
 *   in   x (N, K), w (M, K)      out  y (N, M)
 *
 * LINEAR_BWD_X: in  dy (N, M), w, acc (N, K) or none      out  dx = [acc +] dy w, may take acc's memory
 * LINEAR_BWD_W: in  dy, x, acc (M, K) or none             out  dw = [acc +] dy^T x, may take acc's memory
 *   attr rows (N), out (M), in (K); partial: y, or dx, is a term of a sum over ranks, in F32
 *
 * LINEARS_BWD_X: the gradient of an x that several LINEAR nodes read, if their outputs have the same number of grains.
 *   in   dy (N, M), w (M, K), up to three more such pairs, or none      out  dx = the sum of dy w
 *   The pairs are added inside each grain of M, then the grains as a tree. attr as of the first pair.
 */
#include <stddef.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/ops/rule.h"

enum { LINE = 16 /* floats of a cache line */, PAIRS = 4 };

/* The number of products in a node: the pairs of a LINEARS_BWD_X. */
static int pairs_of(const struct tt_node *node)
{
    int n = 1;

    while (node->op == TT_OP_LINEARS_BWD_X && n < PAIRS && node->in[(ptrdiff_t)2 * n] != TT_NONE)
        n++;
    return n;
}

/* Product i as a node by itself. */
static struct tt_node pair_of(const struct tt_node *node, int i)
{
    struct tt_node pair = *node;

    if (node->op == TT_OP_LINEARS_BWD_X)
        pair.op = TT_OP_LINEAR_BWD_X;
    memcpy(pair.in, &node->in[(ptrdiff_t)2 * i], 2 * sizeof *pair.in);
    return pair;
}

/* Whether input 2, if present, is added to output 0. */
static bool has_acc(const struct tt_node *node)
{
    return node->op == TT_OP_LINEAR_BWD_X || node->op == TT_OP_LINEAR_BWD_W;
}

/* The only product of a node, without addresses. */
static struct tt_matmul linear_product_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
    const struct tt_attr *attr = &node->attr;
    int64_t n = tt_value_rows(a), m = node->op == TT_OP_LINEAR ? tt_value_rows(b) : tt_value_width(a);
    int64_t k = tt_value_width(b);
    int64_t rows = tt_grain_size(&attr->rows), out = tt_grain_size(&attr->out), in = tt_grain_size(&attr->in);
    struct tt_matmul product = {
        .m = n, .n = k, .k = m, .lda = m, .ldb = k, .ldc = k, .m_grain = rows, .n_grain = in, .k_grain = out};

    if (node->op == TT_OP_LINEAR)
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
    else if (node->op == TT_OP_LINEAR_BWD_W)
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
    product.b_packing = b->packing;
    product.b_width = k;
    product.bf16 = tt_op_is_bf16(graph, node);
    product.c_bf16 = product.bf16 && node->op != TT_OP_LINEAR_BWD_W && !attr->partial;
    return product;
}

/* Whether the first two inputs are matrices that fit the product; the first may have any number of dimensions. */
static bool operands_fit(const struct tt_graph *graph, const struct tt_node *node, const struct tt_matmul *product)
{
    const struct tt_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
    bool forward = node->op == TT_OP_LINEAR;

    return a->ndim >= 2 && b->ndim >= 2 && product->k == (forward ? tt_value_width(a) : tt_value_rows(b)) &&
           tt_grain_fits(&node->attr.rows, tt_value_rows(a)) &&
           tt_grain_fits(&node->attr.out, forward ? tt_value_rows(b) : tt_value_width(a)) &&
           tt_grain_fits(&node->attr.in, tt_value_width(b));
}

static int linear_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    static const char *const wanted[TT_OPS] = {
        [TT_OP_LINEAR] = "x (N, K), w (M, K)",
        [TT_OP_LINEAR_BWD_X] = "dy (N, M), w (M, K), acc (N, K)",
        [TT_OP_LINEAR_BWD_W] = "dy (N, M), x (N, K), acc (M, K)",
        [TT_OP_LINEARS_BWD_X] = "pairs of dy (N, M), w (M, K)",
    };
    int64_t out[2] = {0};

    for (int i = 0; i < pairs_of(node); i++) {
        struct tt_node pair = pair_of(node, i);
        struct tt_matmul product = linear_product_of(graph, &pair);

        if (i > 0)
            pair.attr.out = (struct tt_extent){0}; /* the first pair's width, which may differ */
        if (!operands_fit(graph, &pair, &product) || (i > 0 && (product.m != out[0] || product.n != out[1])))
            return tt_op_mismatch(graph, node, wanted[node->op]);
        out[0] = product.m;
        out[1] = product.n;
    }
    if (has_acc(node) && !tt_op_acc_fits(graph, node, 2, out[0], out[1]))
        return tt_op_mismatch(graph, node, wanted[node->op]);
    return tt_op_output(graph, node, 0, name, NULL, 2, out);
}

/*
 * The node that made a gradient of x as a sum of products in so many grains, perhaps behind an ADD to the gradients
 * before; or NULL. It comes after dy: an earlier one belongs to a later block, whose gradient reaches x by a residual.
 */
static struct tt_node *products_behind(const struct tt_graph *graph, int grad, int dy, int grains)
{
    for (int id = graph->values[grad].producer; id != TT_NONE; id = graph->values[grad].producer) {
        struct tt_node *node = &graph->nodes[id];
        bool single = node->op == TT_OP_LINEAR_BWD_X && node->in[2] == TT_NONE;

        if (single || node->op == TT_OP_LINEARS_BWD_X)
            return node->attr.out.grains == grains && graph->values[dy].producer < id ? node : NULL;
        if (node->op != TT_OP_ADD || !node->backward)
            break;
        grad = node->in[1];
    }
    return NULL;
}

/*
 * If the outputs are in grains and products with x already have a gradient, adds a product to the node that made it. A
 * separate node that added to the earlier gradient would first add inside a rank, so the bits would depend on the
 * number of ranks.
 */
static int add_pair(struct tt_graph *graph, const struct tt_node *forward, int dy, struct tt_node *node)
{
    int n = node->op == TT_OP_LINEAR_BWD_X ? 1 : pairs_of(node);

    if (n == PAIRS)
        return tt_fail(TT_EINTERNAL, "'%s' has more than %d products", graph->values[forward->in[0]].name, PAIRS);
    for (int i = node->op == TT_OP_LINEAR_BWD_X ? 2 : 2 * n; i < 2 * PAIRS; i++)
        node->in[i] = TT_NONE;
    node->op = TT_OP_LINEARS_BWD_X;
    node->n_in = 2 * PAIRS;
    memcpy(&node->in[(ptrdiff_t)2 * n], (int[2]){dy, forward->in[1]}, 2 * sizeof(int));
    return tt_op_infer(graph, node, "");
}

/*
 * Adds a sum of products to the gradient of x that others who read x made (a residual, or products that ranks do not
 * divide), as it is where ranks divide the products: there they reduce their sum before they add it.
 */
static int add_apart(struct tt_graph *graph, const struct tt_node *forward, const int *grad_out, int *grad_in)
{
    struct tt_node plain = *forward;
    int before = grad_in[0], rc = 0;

    plain.attr = (struct tt_attr){0};
    tt_rule_set(forward, 0, TT_NONE, grad_in);
    TT_TRY(tt_rule_gradient(graph, forward, &TT_OF_TYPE(tt_op_linear).gradients[0], grad_out, grad_in));
    if (grad_in[0] != TT_NONE) {
        int products = grad_in[0];

        tt_rule_set(forward, 0, before, grad_in);
        TT_TRY(tt_rule_add(graph, &plain, 0, products, grad_in));
    } else {
        tt_rule_set(forward, 0, before, grad_in);
    }
out:
    return rc;
}

static int linear_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    struct tt_node *sum;
    int rc = 0;

    if (!tt_grain_size(&forward.attr.out) || grad_in[0] == TT_NONE)
        return tt_rule_backward(graph, node, grad_out, grad_in);
    sum = products_behind(graph, grad_in[0], grad_out[0], forward.attr.out.grains);
    if (sum)
        TT_TRY(add_pair(graph, &forward, grad_out[0], sum));
    else
        TT_TRY(add_apart(graph, &forward, grad_out, grad_in));
    TT_TRY(tt_rule_gradient(graph, &forward, &TT_OF_TYPE(tt_op_linear).gradients[1], grad_out, grad_in));
out:
    return rc;
}

/* All products, without addresses; `more` must have room for all but the first. */
static struct tt_matmul products_of(const struct tt_graph *graph, const struct tt_node *node, struct tt_matmul *more)
{
    struct tt_node first = pair_of(node, 0);
    struct tt_matmul product = linear_product_of(graph, &first);

    product.more = more;
    product.n_more = pairs_of(node) - 1;
    for (int i = 0; i < product.n_more; i++) {
        struct tt_node pair = pair_of(node, i + 1);

        more[i] = linear_product_of(graph, &pair);
        more[i].k_grain = product.k_grain * more[i].k / product.k; /* as in the first product */
    }
    return product;
}

/* Scratch: the partial sums, then the scratch of each worker. */
static int64_t partial_floats(const struct tt_node *node, const struct tt_matmul *product)
{
    return tt_round_up(tt_matmul_partial_floats(product, has_acc(node) && node->in[2] != TT_NONE), LINE);
}

static void linear_run(const struct tt_call *call)
{
    struct tt_matmul more[PAIRS - 1], product = products_of(call->graph, call->node, more);

    for (int i = 0; i < product.n_more; i++) {
        more[i].a = call->in[2 * i + 2];
        more[i].b = call->in[2 * i + 3];
    }
    product.a = call->in[0];
    product.b = call->in[1];
    product.acc = has_acc(call->node) ? call->in[2] : NULL;
    product.c = call->out[0];
    product.partial = call->scratch;
    product.scratch = (tt_real *)call->scratch + partial_floats(call->node, &product);
    /* one token, or one of each sequence: reading w limits the speed, and a matrix product would first copy w */
    if (call->node->op == TT_OP_LINEAR && call->node->attr.rows.whole <= 1 &&
        (product.m == 1 || tt_graph_is_of_sequences(call->graph)))
        tt_gemv(call->team, &(struct tt_gemv){.bf16 = product.bf16,
                                              .y_bf16 = product.bf16,
                                              .packing = product.b_packing,
                                              .w = product.b,
                                              .x = product.a,
                                              .y = product.c,
                                              .rows = product.n,
                                              .width = product.k,
                                              .vectors = product.m});
    else
        tt_matmul(call->team, &product);
}

static int64_t linear_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul more[PAIRS - 1], product = products_of(graph, node, more);

    return (partial_floats(node, &product) + threads * tt_matmul_scratch_floats(&product)) * (int64_t)sizeof(tt_real);
}

static void linear_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul more[PAIRS - 1], product = products_of(graph, node, more);
    int64_t inner = product.k;

    for (int i = 0; i < product.n_more; i++)
        inner += more[i].k;
    ret_cost->flops = 2.0 * tt_op_elements(graph, node) * (double)inner;
    ret_cost->inner = (double)product.k;
    ret_cost->bf16 = product.bf16;
}

const struct tt_op_row TT_OF_TYPE(tt_op_linear) = {
    .name = "linear",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .weight = TT_WEIGHT_MATMUL,
    .unpacks = 1U << 1,
    .infer = linear_infer,
    .backward = linear_backward,
    .gradients = {{TT_OP_LINEAR_BWD_X, 0, 1, {TT_DY0, TT_X1, TT_DX0}},
                  {TT_OP_LINEAR_BWD_W, 1, 1, {TT_DY0, TT_X0, TT_DX1}}},
    .run = linear_run,
    .cost = linear_cost,
    .scratch_bytes = linear_scratch,
};

const struct tt_op_row TT_OF_TYPE(tt_op_linear_bwd_x) = {
    .name = "linear_bwd_x",
    .unpacks = 1U << 1,
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .infer = linear_infer,
    .run = linear_run,
    .cost = linear_cost,
    .scratch_bytes = linear_scratch,
    .alias = {3},
};

const struct tt_op_row TT_OF_TYPE(tt_op_linears_bwd_x) = {
    .name = "linears_bwd_x",
    .unpacks = 1U << 1 | 1U << 3 | 1U << 5 | 1U << 7,
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .infer = linear_infer,
    .run = linear_run,
    .cost = linear_cost,
    .scratch_bytes = linear_scratch,
};

const struct tt_op_row TT_OF_TYPE(tt_op_linear_bwd_w) = {
    .name = "linear_bwd_w",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ANY,
    .part = TT_PART_GEMM,
    .infer = linear_infer,
    .run = linear_run,
    .cost = linear_cost,
    .scratch_bytes = linear_scratch,
    .alias = {3},
};

/*
 * HEAD_LINEAR: multiplies every head with its own rows of a weight, for generation with a cache of latents.
 *   in   x (N, H*prefix), w (H*E, R)      out  y (N, H*R): for head h, x times the first `prefix` of its E rows of w
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

/* The products of a head: one, or if each row is of another sequence one for each row, with the bits of a row alone. */
static int64_t head_linear_parts(const struct tt_call *call, struct tt_matmul *ret_product)
{
    int64_t parts = 1;

    *ret_product = head_linear_product_of(call->graph, call->node);
    if (tt_graph_is_of_sequences(call->graph)) {
        parts = ret_product->m;
        ret_product->m = 1;
    }
    return parts;
}

static void head_linear_run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_attr *attr = &call->node->attr;
    struct tt_matmul product;
    int64_t parts = head_linear_parts(call, &product), tiles = tt_matmul_tiles(&product);
    int64_t head = tile / (tiles * parts), part = tile / tiles % parts;
    int64_t row = head * attr->head_dim + (attr->inverse ? attr->prefix : 0);

    product.a = tt_call_in_at(call, 0, part * product.lda + head * product.k);
    product.b = tt_call_in_at(call, 1, row * product.ldb);
    product.c = tt_call_out_at(call, 0, part * product.ldc + head * product.n);
    product.scratch = call->scratch;
    tt_matmul_tile(&product, tile % tiles, worker);
}

static void head_linear_run(const struct tt_call *call)
{
    struct tt_matmul product;
    int64_t parts = head_linear_parts(call, &product);

    tt_team_run(call->team, call->node->attr.heads * parts * tt_matmul_tiles(&product), head_linear_run_tile,
                (void *)call);
}

static int64_t head_linear_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul product = head_linear_product_of(graph, node);

    return threads * tt_matmul_scratch_floats(&product) * (int64_t)sizeof(tt_real);
}

static void head_linear_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul product = head_linear_product_of(graph, node);

    ret_cost->flops = 2.0 * node->attr.heads * (double)product.m * (double)product.n * (double)product.k;
    ret_cost->bf16 = product.bf16;
}

const struct tt_op_row TT_OF_TYPE(tt_op_head_linear) = {
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
 * LOGITS: the scores from which generation chooses the next token, that is, the output projection of the last row that
 * is a token, or of every row if each is of another sequence.
 *   in   x (N, D), w (V, D)      out  logits (1, V) of row scalars->rows - 1, or (N, V)      attr  soft_cap (0: none)
 *
 * No backward: training has HEAD_LOSS.
 */

enum { CAPPED = 4096 /* number of logits in a tile */ };

static int infer_logits(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int64_t shape[2] = {tt_graph_is_of_sequences(graph) ? tt_value_rows(&x) : 1, tt_value_rows(&w)};

    if (w.ndim != 2 || tt_value_width(&x) != tt_value_width(&w))
        return tt_op_mismatch(graph, node, "x (N, D), w (V, D)");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static void cap_logits(const struct tt_call *call, struct tt_range part)
{
    tt_real *logits = tt_call_out_at(call, 0, part.begin);

    tt_kernels()->soft_cap(logits, logits, part.n, (tt_real)call->node->attr.soft_cap);
}

static void run_logits(const struct tt_call *call)
{
    const struct tt_value *w = tt_call_in(call, 1);
    int64_t width = tt_value_width(w), vectors = tt_value_rows(tt_call_out(call, 0));
    int64_t last = tt_graph_is_of_sequences(call->graph) ? 0 : call->scalars->rows - 1;

    tt_gemv(call->team, &(struct tt_gemv){.bf16 = tt_op_is_bf16(call->graph, call->node),
                                          .packing = w->packing,
                                          .w = call->in[1],
                                          .x = tt_call_in_at(call, 0, last * width),
                                          .y = call->out[0],
                                          .rows = tt_value_rows(w),
                                          .width = width,
                                          .vectors = vectors});
    if (call->node->attr.soft_cap > 0.0F)
        tt_op_run_tiles(call, vectors * tt_value_rows(w), CAPPED, cap_logits);
}

static void cost_logits(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *w = &graph->values[node->in[1]];

    ret_cost->flops = 2.0 * (double)tt_value_elements(w) * (double)tt_value_rows(&graph->values[node->out[0]]);
    ret_cost->bytes = (double)tt_value_bytes(w);
}

const struct tt_op_row TT_OF_TYPE(tt_op_logits) = {
    .name = "logits",
    .unpacks = 1U << 1,
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_F32},
    .weight = TT_WEIGHT_MATMUL,
    .infer = infer_logits,
    .run = run_logits,
    .cost = cost_logits,
};

/*
 * BIAS: y = x + b in every row.
 *   in   x (N, D), b (D)      out  y (N, D), may take x's memory
 *
 * BIAS_BWD: the gradient of b. The gradient of x is dy itself.
 *   in   dy (N, D), acc (D) or none      out  db (D) = [acc +] the sum of dy's rows, may take acc's memory
 *   Summed over blocks of SUM_ROWS rows, then over the blocks (struct tt_row_sums). attr rows (N).
 */

enum { TILE_ROWS = 64, SUM_ROWS = 64 };

static int bias_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, 1, tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x (N, D), b (D)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static void bias_run_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *x = tt_call_in(call, 0);
    int64_t width = tt_value_width(x);

    for (int64_t r = part.begin; r < part.begin + part.n; r++)
        TT_RUN_KERNEL(call, add, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width), call->in[1],
                      width);
}

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *dy = &graph->values[node->in[0]];
    int64_t width = tt_value_width(dy);

    if (!tt_op_acc_fits(graph, node, 1, 1, width) || !tt_grain_fits(&node->attr.rows, tt_value_rows(dy)))
        return tt_op_mismatch(graph, node, "dy (N, D), acc (D)");
    return tt_op_output(graph, node, 0, name, NULL, 1, &width);
}

static void bias_block(const struct tt_call *call, struct tt_range rows, tt_real *to)
{
    int64_t width = tt_value_width(tt_call_in(call, 0));

    TT_RUN_KERNEL(call, sum_rows, to, NULL, tt_call_in_at(call, 0, rows.begin * width), rows.n, width, width);
}

static struct tt_row_sums bias_sums(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *dy = &graph->values[node->in[0]];

    return (struct tt_row_sums){.blocks = tt_row_blocks_of(&node->attr.rows, tt_value_rows(dy), 1, SUM_ROWS),
                                .columns = tt_value_width(dy),
                                .n = 1,
                                .acc = 1,
                                .block = bias_block};
}

const struct tt_op_row TT_OF_TYPE(tt_op_bias) = {
    .name = "bias",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .infer = bias_infer,
    .backward = tt_rule_backward,
    .passes = 1,
    .gradients = {{TT_OP_BIAS_BWD, 1, 1, {TT_DY0, TT_DX1}}},
    .run = tt_op_run_rows,
    .tile = bias_run_tile,
    .tile_rows = TILE_ROWS,
    .flops = 1.0,
    .alias = {1},
};

const struct tt_op_row TT_OF_TYPE(tt_op_bias_bwd) = {
    .name = "bias_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .infer = infer_bwd,
    .run = tt_op_run_sums,
    .sums = bias_sums,
    .flops = 1.0,
    .scratch_bytes = tt_op_sums_scratch,
    .alias = {2},
};
