/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_ATTENTION_ATTENTION_H
#define TT_OPS_ATTENTION_ATTENTION_H

#include "core/kernels/kernels.h"
#include "core/ops/op.h"

/**
 * Code that the two attention ops share.
 */

/** Do inputs q, q + 1, q + 2 of the node have the shapes of q, k and v, and input `positions`, if any, its own? */
bool tt_attention_fits(const struct tt_graph *graph, const struct tt_node *node, int q, int positions);

/** The attributes of a node in the form for the kernels, without positions. */
struct tt_attention_shape tt_attention_shape_of(const struct tt_attr *attr);

/* The pieces of the sequences of a node, for which `keys` rows of keys are there. */
struct tt_attention_pieces {
    struct tt_pieces of;
    int64_t sequences;
    int64_t length;     /* of a piece */
    int64_t first, own; /* the places of the queries' pieces */
};

struct tt_attention_pieces tt_attention_pieces_of(const struct tt_attr *attr, int64_t keys);

/** Copies inputs k and k + 1 of a call to the start of its scratch, by heads: k (B, K, T, E), then v (B, K, T, Ev). */
void tt_attention_by_heads(const struct tt_call *call, int k);

/** The bytes of one of them: those of the input, as whole cache lines. */
int64_t tt_attention_heads_bytes(const struct tt_graph *graph, const struct tt_node *node, int input);

/** The cost of either op. */
void tt_attention_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost);

/** Floats rounded up to whole cache lines. */
static inline int64_t tt_attention_lines(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

/** The wider one of the two widths of a head, for which there is room in scratch. */
static inline int64_t tt_attention_widest(const struct tt_attention_shape *shape)
{
    int64_t width = tt_attention_value_dim(shape);

    return shape->head_dim > width ? shape->head_dim : width;
}

#endif
