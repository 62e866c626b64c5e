/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_TOKEN_PARTS_H
#define TT_GRAPH_TOKEN_PARTS_H

#include "core/graph/graph.h"

/**
 * The parts of the tokens of experts (struct tt_token_parts). The rows of a rank are block `block` of `blocks`, and all
 * blocks together are `grains` grains.
 */

static inline int tt_parts_grains(const struct tt_token_parts *parts)
{
    return parts->grains > 1 ? parts->grains : 1;
}

static inline int tt_parts_blocks(const struct tt_token_parts *parts)
{
    return parts->blocks > 1 ? parts->blocks : 1;
}

/** Tokens of a grain, if this rank has `rows` of the tokens. */
static inline int64_t tt_parts_grain_rows(const struct tt_token_parts *parts, int64_t rows)
{
    return rows * tt_parts_blocks(parts) / tt_parts_grains(parts);
}

/** Whether grains have whole numbers of tokens. */
static inline bool tt_parts_fit(const struct tt_token_parts *parts, int64_t rows)
{
    return rows * tt_parts_blocks(parts) % tt_parts_grains(parts) == 0 && parts->block < tt_parts_blocks(parts);
}

/** The grain of the token in a row of this rank. */
static inline int64_t tt_parts_grain_of(const struct tt_token_parts *parts, int64_t rows, int64_t row)
{
    return (parts->block * rows + row) / tt_parts_grain_rows(parts, rows);
}

#endif
