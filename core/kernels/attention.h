/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_ATTENTION_H
#define TT_CORE_KERNELS_ATTENTION_H

#include "core/kernels/kernels.h"
#include "core/ops/op.h"

/**
 * Code that the two attention ops share.
 */

/** Do inputs q, q + 1, q + 2 of the node have the shapes of q, k and v, and input `positions`, if any, its own? */
bool tt_attention_fits(const struct tt_graph *graph, const struct tt_node *node, int q, int positions);

/** The attributes of a node in the form for the kernels, without positions. */
struct tt_attention_shape tt_attention_shape_of(const struct tt_attr *attr);

/** The cost of either op. */
void tt_attention_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost);

/** Floats rounded up to whole cache lines. */
static inline int64_t tt_attention_lines(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

#endif
