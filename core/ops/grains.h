/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_GRAINS_H
#define TT_OPS_GRAINS_H

#include "core/ops/rule.h"

/**
 * Grains: the parts into which ranks may cut a dimension (tt_extent in core/graph/graph.h). Ops derive tiles, ranges
 * and slices from a grain of the whole dimension, and add the results of grains as a tree (core/math/tree.h). So a rank
 * that has some of the grains runs the same calls on them as a rank that has all.
 */

/** The size of a grain; 0 if the dimension is not cut. The last grain may be shorter. */
int64_t tt_grain_size(const struct tt_extent *extent);

/** Is `local` the whole of the dimension, or a number of its grains? */
bool tt_grain_fits(const struct tt_extent *extent, int64_t local);

/** The extent from which tiles are derived: tt_grain_size, or the local extent if that is 0. */
int64_t tt_grain_or(const struct tt_extent *extent, int64_t local);

/**
 * The tokens whose rows of the vocabulary this rank has: `local` rows of attr->out, those of its place among
 * attr->peers. Without peers these are all.
 */
struct tt_range tt_vocabulary_of(const struct tt_attr *attr, int64_t local);

/** The place of the peer that has a token's row. */
int tt_vocabulary_owner(const struct tt_attr *attr, int64_t token);

/**
 * Rows in blocks, for sums over rows: each block is one call of a kernel, the blocks of a grain are added in order, and
 * the grains as a tree. Block i has the rows [tt_row_block(…)].
 */
struct tt_row_blocks {
    int64_t grains, per_grain; /* the number of blocks is their product */
    int64_t grain_step;        /* rows from one grain to the next */
    int64_t block_step;        /* rows from one block of a grain to the next */
    int64_t most;              /* rows of every block except the last of a grain */
    int64_t grain_rows;        /* of a grain whose blocks are consecutive */
};

/**
 * Blocks of at most `most` rows of the local `rows`, where the dimension has `groups` rows for each of the extent's.
 */
struct tt_row_blocks tt_row_blocks_of(const struct tt_extent *extent, int64_t rows, int64_t groups, int64_t most);

/** The same if grains are groups of the `groups` rows that each of the `rows` has: a block is one grain of a row. */
struct tt_row_blocks tt_group_blocks_of(const struct tt_extent *extent, int64_t rows, int64_t groups);

struct tt_range tt_row_block(const struct tt_row_blocks *blocks, int64_t i);

/** The number of all blocks. */
static inline int64_t tt_row_blocks_count(const struct tt_row_blocks *blocks)
{
    return blocks->grains * blocks->per_grain;
}

enum { TT_SUM_COLUMNS = 64 }; /* of a tile */

/**
 * y[0, columns) = [acc +] the sum of the blocks' results: x + i * stride for block i. At most TT_SUM_COLUMNS columns.
 * acc is added to the whole sum.
 */
void tt_row_blocks_sum(const struct tt_row_blocks *blocks, float *y, const float *acc, const float *x, int64_t stride,
                       int64_t columns);

#endif
