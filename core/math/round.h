/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_ROUND_H
#define TT_MATH_ROUND_H

#include <stdint.h>

/* Whole numbers rounded up; n is not negative. */

/** n / size, rounded up: the number of parts of `size` in n, the last of which may be shorter. */
static inline int64_t tt_div_up(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/** The smallest multiple of `size` that is at least n. */
static inline int64_t tt_round_up(int64_t n, int64_t size)
{
    return tt_div_up(n, size) * size;
}

/* A run of a team over items [0, n) in tiles of `size`: the tile's range. */
struct tt_range {
    int64_t begin, n;
};

static inline int64_t tt_tiles(int64_t n, int64_t size)
{
    return tt_div_up(n, size);
}

static inline struct tt_range tt_tile_range(int64_t n, int64_t size, int64_t tile)
{
    struct tt_range range = {tile * size, size};

    if (range.begin + range.n > n)
        range.n = n - range.begin;
    return range;
}

#endif
