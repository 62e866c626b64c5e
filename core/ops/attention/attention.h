/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_ATTENTION_ATTENTION_H
#define TT_OPS_ATTENTION_ATTENTION_H

#include "core/kernels/kernels.h"
#include "core/ops/op.h"

/** Code shared by the attention of training and of generation. */

/** The attributes of a node as the kernels take them, without positions. */
struct tt_attention_shape tt_attention_shape_of(const struct tt_attr *attr);

/**
 * The sinks of heads [first, first + n) as floats, from an input of the call: in place, or widened into `to`, which
 * must have room for n floats. NULL if the input is absent.
 */
const tt_real *tt_attention_sinks(const struct tt_call *call, int input, int64_t first, int64_t n, tt_real *to);

/** Floats rounded up to whole cache lines. */
static inline int64_t tt_attention_lines(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

/** The larger of the two widths of a head, for which scratch has room. */
static inline int64_t tt_attention_widest(const struct tt_attention_shape *shape)
{
    int64_t width = tt_attention_value_dim(shape);

    return shape->head_dim > width ? shape->head_dim : width;
}

#endif
