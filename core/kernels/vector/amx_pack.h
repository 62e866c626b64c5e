/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_AMX_PACK_H
#define TT_CORE_KERNELS_VECTOR_AMX_PACK_H

/**
 * Matrices of bfloat16 as tiles of AMX (amx_tile.h) of 16 lines and 32 elements along k: rows of A, and pairs of
 * columns of B. Lines and elements that do not exist are 0.
 *
 * Packing is plain C with vectors of the compiler, so that tests run it on every processor: over emulated tiles, and
 * over intrinsics whose instructions a signal handler carries out.
 */
#include <stdbool.h>
#include <string.h>

#include "core/kernels/vector/amx_tile.h"
#include "core/math/bf16.h"
#include "core/math/round.h"

/* 64 bits, like the indices that they are multiplied with */
#define LINES ((int64_t)TILE_LINES)
#define STEP  INT64_C(32)    /* elements of k in a tile */
#define TILE  (LINES * STEP) /* elements */
#define SIDE  (2 * LINES)    /* of a square of two by two tiles */

#define INLINE static inline __attribute__((always_inline, unused))

INLINE int64_t up_to(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

typedef uint32_t v_pairs __attribute__((vector_size(64), may_alias));
typedef uint16_t v_halves __attribute__((vector_size(64), may_alias));
typedef float v_floats __attribute__((vector_size(64), may_alias));

#if defined(__clang__)
#define PICK(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

/* Lane l of the two vectors after an exchange of squares of s lanes. */
#define LOWER(l, s) ((l) & (s) ? LINES + (l) - (s) : (l))
#define UPPER(l, s) ((l) & (s) ? LINES + (l) : (l) + (s))
#define LANES(f, s)                                                                                               \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)

/* Lane l, or lane 16 + l, of each of two vectors of halves. */
#define BESIDE(l, s) (s) + (l), 32 + (s) + (l)
/* The upper halves of two vectors of floats. */
#define ODD(l, s) 2 * ((s) + (l)) + 1

/* Swaps the upper right and the lower left one of each four squares of s x s lanes. */
#define EXCHANGE(x, s)                                           \
    _Pragma("GCC unroll 16") for (int i = 0; i < LINES; i++)     \
    {                                                            \
        if (!(i & (s))) {                                        \
            v_pairs a = (x)[i], b = (x)[i + (s)];                \
                                                                 \
            (x)[i] = PICK(v_pairs, a, b, LANES(LOWER, s));       \
            (x)[i + (s)] = PICK(v_pairs, a, b, LANES(UPPER, s)); \
        }                                                        \
    }

/* Transposes the 16 x 16 pairs of a tile. */
INLINE void transpose_square(v_pairs *x)
{
    EXCHANGE(x, 8)
    EXCHANGE(x, 4)
    EXCHANGE(x, 2)
    EXCHANGE(x, 1)
}

static __attribute__((unused)) void transpose_tile(tt_bf16 *tile)
{
    v_pairs x[LINES];

    memcpy(x, tile, sizeof x);
    transpose_square(x);
    memcpy(tile, x, sizeof x);
}

/* A tile of 16 lines of k elements, one after the other. Callers pass `transposed` as a constant. */
INLINE void pack_along(tt_bf16 *tile, const tt_bf16 *from, int64_t stride, int64_t lines, int64_t k, bool transposed)
{
    v_pairs x[LINES];

    if (lines >= LINES && k == STEP / 2) { /* narrow heads */
        _Pragma("GCC unroll 16") for (int64_t i = 0; i < LINES; i++)
        {
            x[i] = (v_pairs){0};
            memcpy(&x[i], from + i * stride, sizeof x[i] / 2);
        }
        if (transposed)
            transpose_square(x);
        _Pragma("GCC unroll 16") for (int64_t i = 0; i < LINES; i++) memcpy(tile + i * STEP, &x[i], sizeof x[i]);
        return;
    }
    if (lines < LINES || k < STEP) {
        memset(tile, 0, sizeof x);
        for (int64_t i = 0; i < up_to(lines, LINES); i++)
            memcpy(tile + i * STEP, from + i * stride, (size_t)up_to(k, STEP) * sizeof *tile);
        if (transposed)
            transpose_tile(tile);
        return;
    }
    _Pragma("GCC unroll 16") for (int64_t i = 0; i < LINES; i++) memcpy(&x[i], from + i * stride, sizeof x[i]);
    if (transposed)
        transpose_square(x);
    _Pragma("GCC unroll 16") for (int64_t i = 0; i < LINES; i++) memcpy(tile + i * STEP, &x[i], sizeof x[i]);
}

/* Two neighbours of k of 32 lines, side by side. */
INLINE void interleave(void *first, void *second, const v_halves *low, const v_halves *high)
{
    v_halves x = PICK(v_halves, *low, *high, LANES(BESIDE, 0)), y = PICK(v_halves, *low, *high, LANES(BESIDE, 16));

    memcpy(first, &x, sizeof x);
    memcpy(second, &y, sizeof y);
}

/* k rows of an element of each line, for a tile and the next 16 lines, which share the cache lines that are read. */
INLINE void pack_across(tt_bf16 *tile, tt_bf16 *next, const tt_bf16 *from, int64_t stride, int64_t lines, int64_t k)
{
    for (int64_t p = 0; p < STEP; p += 2, tile += STEP, next += STEP, from += 2 * stride) {
        v_halves row[2] = {{0}};

        if (lines >= SIDE && k >= STEP) {
            memcpy(&row[0], from, sizeof row[0]);
            memcpy(&row[1], from + stride, sizeof row[1]);
        } else if (lines == LINES && k >= STEP) {
            memcpy(&row[0], from, sizeof row[0] / 2);
            memcpy(&row[1], from + stride, sizeof row[1] / 2);
        } else {
            for (int64_t i = 0; i < 2 && p + i < k; i++)
                memcpy(&row[i], from + i * stride, (size_t)up_to(lines, SIDE) * sizeof *from);
        }
        interleave(tile, next, &row[0], &row[1]);
    }
}

/* One operand of a product: its lines are rows of A or columns of B. */
struct operand {
    const tt_bf16 *from;
    int64_t stride;
    bool along; /* neighbours in memory belong to one line; otherwise, to one step of k */
    bool pairs; /* packed as pairs along k, otherwise line by line */
};

/* Packs [begin, begin + k) of the lines from `line` on: 16 lines at a time, and for these one step of k after the
 * other. */
static __attribute__((unused)) void pack(tt_bf16 *to, const struct operand *x, int64_t line, int64_t lines,
                                         int64_t begin, int64_t k)
{
    int64_t size = tt_round_up(k, STEP) * LINES; /* of 16 lines */

    for (int64_t i = 0; x->along && i < lines; i += LINES) {
        const tt_bf16 *from = x->from + (line + i) * x->stride + begin;

        for (int64_t p = 0; p < k; p += STEP, to += TILE) {
            if (x->pairs)
                pack_along(to, from + p, x->stride, lines - i, k - p, true);
            else
                pack_along(to, from + p, x->stride, lines - i, k - p, false);
        }
    }
    for (int64_t i = 0; !x->along && i < lines; i += SIDE, to += 2 * size) {
        const tt_bf16 *from = x->from + begin * x->stride + line + i;

        for (int64_t p = 0; p < k; p += STEP) {
            tt_bf16 none[TILE], *tile = to + p * LINES, *next = lines - i > LINES ? tile + size : none;

            pack_across(tile, next, from + p * x->stride, x->stride, lines - i, k - p);
            if (!x->pairs)
                transpose_tile(tile);
            if (!x->pairs && lines - i > LINES)
                transpose_tile(next);
        }
    }
}

/* The sums of a square, in tiles 0 to 3: rows, then columns. Callers pass the numbers of tiles of rows and of columns,
 * 1 or 2, as constants. */
INLINE void zero_sums(int rows, int columns)
{
    TILE_ZERO(0);
    if (columns > 1)
        TILE_ZERO(1);
    if (rows > 1)
        TILE_ZERO(2);
    if (rows > 1 && columns > 1)
        TILE_ZERO(3);
}

/* lower, right: the floats from a tile to the next one in each direction; bytes: between rows. */
INLINE void store_sums(float *c, int64_t lower, int64_t right, int64_t bytes, int rows, int columns)
{
    TILE_STORE(0, c, bytes);
    if (columns > 1)
        TILE_STORE(1, c + right, bytes);
    if (rows > 1)
        TILE_STORE(2, c + lower, bytes);
    if (rows > 1 && columns > 1)
        TILE_STORE(3, c + lower + right, bytes);
}

/*
 * One step of k of a square: tiles 0 to 3 += (a over lower) (b beside right). Callers pass the numbers of tiles of rows
 * and of columns, 1 or 2, as constants.
 */
INLINE void multiply_step(const tt_bf16 *a, const tt_bf16 *lower, const tt_bf16 *b, const tt_bf16 *right, int rows,
                          int columns)
{
    TILE_LOAD(6, b);
    if (columns > 1)
        TILE_LOAD(7, right);
    TILE_LOAD(4, a);
    TILE_DOT(0, 4, 6);
    if (columns > 1)
        TILE_DOT(1, 4, 7);
    if (rows > 1) {
        TILE_LOAD(5, lower);
        TILE_DOT(2, 5, 6);
    }
    if (rows > 1 && columns > 1)
        TILE_DOT(3, 5, 7);
}

#endif
