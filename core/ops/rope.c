/* SPDX-License-Identifier: MIT
 *
 * ROPE: rotates the pairs of every head by angles that grow with the token's position (Su et al. 2021).
 *   in   x (N, H*E), table (T, R/2, 2) of cos and sin, positions (N) or absent
 *   out  of x's shape, may take x's memory
 *   attr heads, head_dim (E), prefix (the last R = E - prefix elements of a head are rotated), seq_len (without
 *        positions row n is at position n % seq_len; with from_position at scalars->position + n), inverse,
 *        rotate_half, peers: x is the part of this rank's place; positions are those of all rows
 *
 * The backward of a rotation is the rotation back: the same op with inverse flipped.
 */
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64 };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];
    const struct tt_attr *attr = &node->attr;
    int rotated = attr->head_dim - attr->prefix, parts = attr->peers.n > 1 ? attr->peers.n : 1;

    if (rotated < 1 || rotated % 2 != 0 || attr->prefix < 0 || attr->seq_len < 1 ||
        tt_value_width(&x) != (int64_t)attr->heads * attr->head_dim ||
        tt_value_elements(&graph->values[node->in[1]]) < attr->seq_len * rotated ||
        !tt_op_positions_fit(graph, node, 2, tt_value_rows(&x) * parts))
        return tt_op_mismatch(graph, node, "x (N, H*E), table (T, R/2, 2), positions (N)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    struct tt_node back = forward;
    int in[3] = {grad_out[0], forward.in[1], forward.in[2]}, rc = 0, grad;

    back.attr.inverse = !forward.attr.inverse;
    TT_TRY(tt_rule_node(graph, TT_OP_ROPE, &back, in, 3, forward.in, 1, &grad));
    TT_TRY(tt_rule_add(graph, &forward, 0, grad, grad_in));
out:
    return rc;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_attr *attr = &call->node->attr;
    struct tt_rope_shape shape = {.seq_len = attr->seq_len,
                                  .heads = attr->heads,
                                  .head_dim = attr->head_dim,
                                  .inverse = attr->inverse,
                                  .rotate_half = attr->rotate_half,
                                  .positions = call->in[2],
                                  .unrotated = attr->prefix};
    int64_t rows = tt_value_rows(tt_call_in(call, 0));
    struct tt_range part = tt_tile_range(rows, TILE_ROWS, tile);
    int64_t at = part.begin * shape.heads * shape.head_dim;
    int64_t first = part.begin + attr->peers.index * rows + (attr->from_position ? call->scalars->position : 0);

    (void)worker;
    TT_RUN_KERNEL(call, rope, tt_call_out_at(call, 0, at), tt_call_in_at(call, 0, at), call->in[1], &shape, first,
                  part.n);
}

static void run(const struct tt_call *call)
{
    tt_team_run(call->team, tt_tiles(tt_value_rows(tt_call_in(call, 0)), TILE_ROWS), run_tile, (void *)call);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 3.0 * tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_rope = {
    .name = "rope",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ANY,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .alias = {1},
};
