/* SPDX-License-Identifier: MIT
 *
 * Grains and the sums over them.
 */
#include "core/ops/grains.h"

#include "core/kernels/kernels.h"
#include "core/math/tree.h"

enum { MOST_DEPTH = 8 }; /* of the stack of partial sums: enough for TT_MOST_GRAINS */

int64_t tt_grain_size(const struct tt_extent *extent)
{
    return extent->grains > 1 ? tt_tiles(extent->whole, extent->grains) : 0;
}

int64_t tt_grain_or(const struct tt_extent *extent, int64_t local)
{
    int64_t size = tt_grain_size(extent);

    return size ? size : local;
}

bool tt_grain_fits(const struct tt_extent *extent, int64_t local)
{
    int64_t size = tt_grain_size(extent);

    if (!size)
        return extent->whole == 0 || extent->whole == local;
    return extent->grains <= TT_MOST_GRAINS && local <= extent->whole &&
           (local % size == 0 || local % size == extent->whole % size);
}

/* Tokens of every peer but the last, which may have fewer. */
static int64_t tokens_of_peer(const struct tt_attr *attr)
{
    return tt_grain_size(&attr->out) * (attr->out.grains / attr->peers.n);
}

struct tt_range tt_vocabulary_of(const struct tt_attr *attr, int64_t local)
{
    if (attr->peers.n <= 1)
        return (struct tt_range){0, local};
    return (struct tt_range){attr->peers.index * tokens_of_peer(attr), local};
}

int tt_vocabulary_owner(const struct tt_attr *attr, int64_t token)
{
    return attr->peers.n <= 1 ? 0 : (int)(token / tokens_of_peer(attr));
}

struct tt_row_blocks tt_row_blocks_of(const struct tt_extent *extent, int64_t rows, int64_t groups, int64_t most)
{
    int64_t grain = tt_grain_or(extent, rows) * groups;

    return (struct tt_row_blocks){.grains = rows * groups / grain,
                                  .per_grain = tt_tiles(grain, most),
                                  .grain_step = grain,
                                  .block_step = most,
                                  .most = most,
                                  .grain_rows = grain};
}

struct tt_row_blocks tt_group_blocks_of(const struct tt_extent *extent, int64_t rows, int64_t groups)
{
    int64_t grain = tt_grain_or(extent, groups);

    return (struct tt_row_blocks){.grains = groups / grain,
                                  .per_grain = rows,
                                  .grain_step = grain,
                                  .block_step = groups,
                                  .most = grain,
                                  .grain_rows = rows * grain};
}

struct tt_range tt_row_block(const struct tt_row_blocks *blocks, int64_t i)
{
    int64_t in_grain = i % blocks->per_grain, left = blocks->grain_rows - in_grain * blocks->most;

    return (struct tt_range){i / blocks->per_grain * blocks->grain_step + in_grain * blocks->block_step,
                             left < blocks->most ? left : blocks->most};
}

void tt_row_blocks_sum(const struct tt_row_blocks *blocks, float *y, const float *acc, const float *x, int64_t stride,
                       int64_t columns)
{
    float sums[MOST_DEPTH][TT_SUM_COLUMNS];
    int depth = 0;

    if (blocks->grains == 1) {
        tt_kernels()->sum_rows(y, acc, x, blocks->per_grain, stride, columns);
        return;
    }
    for (int64_t g = 0; g < blocks->grains; g++) {
        int carries = g + 1 < blocks->grains ? tt_tree_carries(g) : depth;

        tt_kernels()->sum_rows(sums[depth++], NULL, x + g * blocks->per_grain * stride, blocks->per_grain, stride,
                               columns);
        for (; carries > 0; carries--, depth--)
            tt_kernels()->add(sums[depth - 2], sums[depth - 2], sums[depth - 1], columns);
    }
    for (int64_t i = 0; i < columns; i++)
        y[i] = acc ? acc[i] + sums[0][i] : sums[0][i];
}
