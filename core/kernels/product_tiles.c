/* SPDX-License-Identifier: MIT
 *
 * Tiles are as large as the balance between 2, 4 or 8 threads allows, because every tile packs its operands again.
 */
#include "core/kernels/product_tiles.h"

#include "core/math/round.h"
#include "core/math/tree.h"

enum {
    TILE_MIN = 384,            /* of the dimension that is cut */
    HALF_MIN = 256,            /* a dimension of this size is cut in two even if the halves are below TILE_MIN */
    SERIAL_FLOPS = 2 * 1000000 /* a smaller product is cheaper than waking the team */
};

/* The number of tiles of one grain. */
static int64_t tiles_of(int64_t m, int64_t n, int64_t k)
{
    int64_t size = m > n ? m : n, tiles = 1;

    if (2.0 * (double)m * (double)n * (double)k < (double)SERIAL_FLOPS)
        return 1;
    while (size / (2 * tiles) >= TILE_MIN)
        tiles *= 2;
    return tiles == 1 && size >= HALF_MIN ? 2 : tiles;
}

/* A dimension in grains; the last one may be shorter. */
struct grains {
    int64_t n, size, last;
};

static struct grains grains_of(int64_t extent, int64_t size)
{
    struct grains grains = {1, extent, extent};

    if (!size || size >= extent)
        return grains;
    grains.n = tt_div_up(extent, size);
    grains.size = size;
    grains.last = extent - (grains.n - 1) * size;
    return grains;
}

/* The number of tiles of grain (i, j), and its place in c. */
static int64_t tiles_of_grain(const struct tt_product_size *size, int64_t i, int64_t j, struct tt_rectangle *ret_at)
{
    struct grains m = grains_of(size->m, size->m_grain), n = grains_of(size->n, size->n_grain);
    struct grains k = grains_of(size->k, size->k_grain);

    *ret_at =
        (struct tt_rectangle){i * m.size, i == m.n - 1 ? m.last : m.size, j * n.size, j == n.n - 1 ? n.last : n.size};
    return tiles_of(ret_at->rows, ret_at->columns, k.size);
}

int64_t tt_product_tiles(const struct tt_product_size *size)
{
    struct grains m = grains_of(size->m, size->m_grain), n = grains_of(size->n, size->n_grain);
    struct tt_rectangle at;
    int64_t tiles = 0;

    for (int64_t i = 0; i < m.n; i++)
        for (int64_t j = 0; j < n.n; j++)
            tiles += tiles_of_grain(size, i, j, &at);
    return tiles;
}

/* Cuts the grain along its longer side. */
static struct tt_rectangle tile_of(const struct tt_rectangle *grain, int64_t tile, int64_t tiles)
{
    struct tt_rectangle at = *grain;
    bool rows = grain->rows >= grain->columns;
    int64_t size = rows ? grain->rows : grain->columns;
    int64_t begin = size * tile / tiles, end = size * (tile + 1) / tiles;

    if (rows) {
        at.row += begin;
        at.rows = end - begin;
    } else {
        at.column += begin;
        at.columns = end - begin;
    }
    return at;
}

struct tt_rectangle tt_product_tile(const struct tt_product_size *size, int64_t tile)
{
    struct grains m = grains_of(size->m, size->m_grain), n = grains_of(size->n, size->n_grain);
    struct tt_rectangle at = {0};

    for (int64_t i = 0; i < m.n; i++) {
        for (int64_t j = 0; j < n.n; j++) {
            int64_t tiles = tiles_of_grain(size, i, j, &at);

            if (tile < tiles)
                return tile_of(&at, tile, tiles);
            tile -= tiles;
        }
    }
    return at;
}

int64_t tt_product_partial_arrays(const struct tt_product_size *size, bool own_lowest)
{
    int depth = tt_tree_stack_depth(grains_of(size->k, size->k_grain).n);

    return size->k_grain ? (own_lowest ? depth - 1 : depth) : 0;
}

/* Entry `depth` of the stack of sums. */
static float *entry(const struct tt_product_size *size, const struct tt_product_sums *sums, int64_t first, int depth)
{
    int in_partial = sums->lowest ? depth - 1 : depth;

    return (in_partial < 0 ? sums->lowest : sums->partial + in_partial * size->m * sums->stride) + first;
}

static void add_rectangle(const struct tt_rectangle *at, int64_t stride, float *to, const float *from)
{
    for (int64_t i = 0; i < at->rows; i++)
        tt_tree_add(to + i * stride, to + i * stride, from + i * stride, at->columns);
}

float *tt_product_add_grains(const struct tt_product_size *size, const struct tt_rectangle *at,
                             const struct tt_product_sums *sums, tt_product_fn fn, const void *product)
{
    struct grains k = grains_of(size->k, size->k_grain);
    int64_t first = at->row * sums->stride + at->column;
    int depth = 0;

    for (int64_t i = 0; i < k.n; i++) {
        int carries = i + 1 < k.n ? tt_tree_carries(i) : depth;

        fn(product, at, i * k.size, i + 1 < k.n ? k.size : k.last, entry(size, sums, first, depth++));
        for (; carries > 0; carries--, depth--)
            add_rectangle(at, sums->stride, entry(size, sums, first, depth - 2), entry(size, sums, first, depth - 1));
    }
    return entry(size, sums, first, 0);
}
