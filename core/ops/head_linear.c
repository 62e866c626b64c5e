/* SPDX-License-Identifier: MIT
 *
 * HEAD_LINEAR: every head's product with its own rows of a weight, for generation with a cache of latents.
 *   in   x (N, H*prefix), w (H*E, R)      out  y (N, H*R): of head h, x times the first `prefix` of its E rows of w
 *   inverse: x (N, H*R)                   out  y (N, H*(E - prefix)): x times the transpose of the other rows
 *   attr heads, head_dim (E), prefix, inverse
 */
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/ops/rule.h"

/* The widths of a head's x and y. */
struct widths {
    int64_t x, y;
};

static struct widths widths_of(const struct tt_attr *attr, int64_t rank)
{
    struct widths w = {attr->prefix, rank};

    return attr->inverse ? (struct widths){rank, attr->head_dim - attr->prefix} : w;
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
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
static struct tt_matmul product_of(const struct tt_graph *graph, const struct tt_node *node)
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

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_attr *attr = &call->node->attr;
    struct tt_matmul product = product_of(call->graph, call->node);
    int64_t tiles = tt_matmul_tiles(&product), head = tile / tiles;
    int64_t row = head * attr->head_dim + (attr->inverse ? attr->prefix : 0);

    product.a = tt_call_in_at(call, 0, head * product.k);
    product.b = tt_call_in_at(call, 1, row * product.ldb);
    product.c = tt_call_out_at(call, 0, head * product.n);
    product.scratch = call->scratch;
    tt_matmul_tile(&product, tile % tiles, worker);
}

static void run(const struct tt_call *call)
{
    struct tt_matmul product = product_of(call->graph, call->node);

    tt_team_run(call->team, call->node->attr.heads * tt_matmul_tiles(&product), run_tile, (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul product = product_of(graph, node);

    return threads * tt_matmul_scratch_floats(&product) * (int64_t)sizeof(float);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul product = product_of(graph, node);

    ret_cost->flops = 2.0 * node->attr.heads * (double)product.m * (double)product.n * (double)product.k;
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = product.bf16;
}

const struct tt_op_row tt_op_head_linear = {
    .name = "head_linear",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .weight = TT_WEIGHT_MATMUL,
    .part = TT_PART_GEMM,
    .infer = infer,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};
