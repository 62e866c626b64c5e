/* SPDX-License-Identifier: MIT
 *
 * Matrix products of bfloat16 by AMX (method: Goto & van de Geijn 2008).
 *
 * Blocks of A and B are packed as tiles of 16 lines and STEP elements along k: rows of A, and pairs of columns of B
 * (amx_tile.h); lines and elements that do not exist are 0. The block of A stays in the second cache. B is packed two
 * tiles of columns at a time, just before they are multiplied by all rows of the block, and stays in the first cache.
 * Four tiles hold a square of 32 x 32 sums over a block of k; the sums over blocks of k are added in order. So the bits
 * of an element depend on k only. They differ from the bits of the other kernels: a tile sums in an order of its own.
 *
 * Nobody has run this on a processor with AMX yet. Tests run it over emulated tiles, and over intrinsics whose
 * instructions a signal handler carries out. The sizes of the blocks follow from the sizes of the caches; they have not
 * been measured.
 *
 * Packing and storing are plain C with vectors of the compiler, so that tests run them on every processor.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/kernels/vector/amx_tile.h"
#include "core/kernels/vector_math.h"
#include "core/math/round.h"

/* 64 bits, like the indices that they are multiplied with */
#define LINES  ((int64_t)TILE_LINES)
#define STEP   INT64_C(32)    /* elements of k in a tile */
#define TILE   (LINES * STEP) /* elements */
#define SIDE   (2 * LINES)    /* of a square of sums */
#define DEPTH  INT64_C(512)   /* 32 KiB of B */
#define STRIDE ((int64_t)sizeof(float) * SIDE)
_Static_assert(DEPTH <= TT_BGEMM_DEPTH && DEPTH % STEP == 0 && TT_BGEMM_PANEL >= SIDE, "scratch");

#define INLINE static inline __attribute__((always_inline))

static int64_t up_to(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* --- packing --- */

typedef uint32_t pairs __attribute__((vector_size(64), may_alias));

#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (pairs){__VA_ARGS__})
#endif

/* Lane l of the two vectors after an exchange of squares of s lanes. */
#define LOWER(l, s) ((l) & (s) ? LINES + (l) - (s) : (l))
#define UPPER(l, s) ((l) & (s) ? LINES + (l) : (l) + (s))
#define LANES(f, s)                                                                                               \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)

/* Swaps the upper right and the lower left one of each four squares of s x s lanes. */
#define EXCHANGE(x, s)                                       \
    _Pragma("GCC unroll 16") for (int i = 0; i < LINES; i++) \
    {                                                        \
        if (!(i & (s))) {                                    \
            pairs a = (x)[i], b = (x)[i + (s)];              \
                                                             \
            (x)[i] = PICK(a, b, LANES(LOWER, s));            \
            (x)[i + (s)] = PICK(a, b, LANES(UPPER, s));      \
        }                                                    \
    }

/* Transposes the 16 x 16 pairs of a tile. */
static void transpose_tile(tt_bf16 *tile)
{
    pairs x[LINES];

    memcpy(x, tile, sizeof x);
    EXCHANGE(x, 8)
    EXCHANGE(x, 4)
    EXCHANGE(x, 2)
    EXCHANGE(x, 1)
    memcpy(tile, x, sizeof x);
}

/* Lines of k elements: one after the other. */
INLINE void copy_along(tt_bf16 *tile, const tt_bf16 *from, int64_t stride, int64_t lines, int64_t k)
{
    for (int64_t i = 0; i < LINES; i++, tile += STEP, from += stride) {
        if (i < lines && k >= STEP) {
            memcpy(tile, from, TILE_BYTES);
        } else {
            memset(tile, 0, TILE_BYTES);
            if (i < lines)
                memcpy(tile, from, (size_t)k * sizeof *tile);
        }
    }
}

/* k rows of an element of each line: two neighbours side by side. */
INLINE void copy_across(tt_bf16 *tile, const tt_bf16 *from, int64_t stride, int64_t lines, int64_t k)
{
    static const tt_bf16 zeros[TILE_LINES];

    for (int64_t p = 0; p < STEP; p += 2, tile += STEP, from += 2 * stride) {
        const tt_bf16 *low = p < k ? from : zeros, *high = p + 1 < k ? from + stride : zeros;
        tt_bf16 rest[2][TILE_LINES] = {{0}};

        if (lines < LINES) {
            memcpy(rest[0], low, (size_t)lines * sizeof *low);
            memcpy(rest[1], high, (size_t)lines * sizeof *high);
            low = rest[0];
            high = rest[1];
        }
        for (int64_t i = 0; i < LINES; i++) {
            tile[2 * i] = low[i];
            tile[2 * i + 1] = high[i];
        }
    }
}

/* One operand of a product: its lines are rows of A or columns of B. */
struct operand {
    const tt_bf16 *from;
    int64_t stride;
    bool along; /* the elements of a line are neighbours, otherwise those of a step of k */
    bool pairs; /* packed as pairs along k, otherwise line by line */
};

static struct operand operand_a(const struct tt_matmul *gemm)
{
    return (struct operand){gemm->a, gemm->lda, !gemm->trans_a, false};
}

static struct operand operand_b(const struct tt_matmul *gemm)
{
    return (struct operand){gemm->b, gemm->ldb, gemm->trans_b, true};
}

/* Packs [begin, begin + k) of the lines from `line` on: 16 lines after the other, steps of k within. */
static void pack(tt_bf16 *to, const struct operand *x, int64_t line, int64_t lines, int64_t begin, int64_t k)
{
    for (int64_t i = 0; i < lines; i += LINES) {
        for (int64_t p = 0; p < k; p += STEP, to += TILE) {
            if (x->along)
                copy_along(to, x->from + (line + i) * x->stride + begin + p, x->stride, lines - i, k - p);
            else
                copy_across(to, x->from + (begin + p) * x->stride + line + i, x->stride, lines - i, k - p);
            if (x->along == x->pairs)
                transpose_tile(to);
        }
    }
}

/* --- the product --- */

/*
 * sum (32, 32) = a b over `steps` steps of k. Callers pass the numbers of tiles of rows and of columns, 1 or 2, as
 * constants; what they leave out of `sum` is not written.
 */
INLINE void multiply_tiles(const tt_bf16 *a, const tt_bf16 *b, int64_t steps, int rows, int columns, float *sum)
{
    const tt_bf16 *lower = a + steps * TILE, *right = b + steps * TILE;

    TILE_ZERO(0);
    if (columns > 1)
        TILE_ZERO(1);
    if (rows > 1)
        TILE_ZERO(2);
    if (rows > 1 && columns > 1)
        TILE_ZERO(3);
    for (int64_t at = 0; at < steps * TILE; at += TILE) {
        TILE_LOAD(4, a + at);
        TILE_LOAD(6, b + at);
        TILE_DOT(0, 4, 6);
        if (columns > 1) {
            TILE_LOAD(7, right + at);
            TILE_DOT(1, 4, 7);
        }
        if (rows > 1) {
            TILE_LOAD(5, lower + at);
            TILE_DOT(2, 5, 6);
        }
        if (rows > 1 && columns > 1)
            TILE_DOT(3, 5, 7);
    }
    TILE_STORE(0, sum, STRIDE);
    if (columns > 1)
        TILE_STORE(1, sum + LINES, STRIDE);
    if (rows > 1)
        TILE_STORE(2, sum + LINES * SIDE, STRIDE);
    if (rows > 1 && columns > 1)
        TILE_STORE(3, sum + LINES * SIDE + LINES, STRIDE);
}

static void multiply_square(const tt_bf16 *a, const tt_bf16 *b, int64_t steps, int64_t rows, int64_t columns,
                            float *sum)
{
    if (rows > LINES && columns > LINES)
        multiply_tiles(a, b, steps, 2, 2, sum);
    else if (rows > LINES)
        multiply_tiles(a, b, steps, 2, 1, sum);
    else if (columns > LINES)
        multiply_tiles(a, b, steps, 1, 2, sum);
    else
        multiply_tiles(a, b, steps, 1, 1, sum);
}

/* A block of c at (row, column), and of k. */
struct block {
    const struct tt_matmul *gemm;
    int64_t row, rows, column, columns, begin, k;
    tt_bf16 *a, *b; /* packed */
    float *sums;    /* (rows, columns) over the blocks of k so far, for a c of bfloat16 */
};

static void add_floats(float *to, const float *a, const float *b, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        to[i] = a[i] + b[i];
}

/* n sums of a row of a c of bfloat16, rounded in the last block of k. */
static void store_halves(const struct block *block, float *sum, int64_t n, float *before, int64_t at)
{
    const struct tt_matmul *gemm = block->gemm;
    const tt_bf16 *acc = gemm->acc ? (const tt_bf16 *)gemm->acc + at : NULL;
    tt_bf16 *c = (tt_bf16 *)gemm->c + at;

    if (block->begin > 0)
        add_floats(sum, before, sum, n);
    if (block->begin + block->k < gemm->k) {
        memcpy(before, sum, (size_t)n * sizeof *sum);
        return;
    }
    for (int64_t i = 0; acc && i < n; i++)
        sum[i] += tt_bf16_to_float(acc[i]);
    for (int64_t i = 0; i < n; i++)
        c[i] = tt_bf16_from_float(sum[i]);
}

/* The sums of n columns of a row of the block. */
static void store_row(const struct block *block, int64_t row, int64_t column, int64_t n, float *sum)
{
    const struct tt_matmul *gemm = block->gemm;
    int64_t at = (block->row + row) * gemm->ldc + block->column + column;
    float *c = (float *)gemm->c + at;

    if (gemm->c_bf16)
        store_halves(block, sum, n, block->sums + row * block->columns + column, at);
    else if (block->begin > 0)
        add_floats(c, c, sum, n);
    else if (gemm->acc)
        add_floats(c, (const float *)gemm->acc + at, sum, n);
    else
        memcpy(c, sum, (size_t)n * sizeof *sum);
}

static void multiply_block(const struct block *block)
{
    struct operand a = operand_a(block->gemm), b = operand_b(block->gemm);
    int64_t steps = tt_div_up(block->k, STEP);
    float sum[SIDE * SIDE] __attribute__((aligned(64)));

    pack(block->a, &a, block->row, block->rows, block->begin, block->k);
    for (int64_t column = 0; column < block->columns; column += SIDE) {
        int64_t columns = up_to(block->columns - column, SIDE);

        pack(block->b, &b, block->column + column, columns, block->begin, block->k);
        for (int64_t row = 0; row < block->rows; row += SIDE) {
            int64_t rows = up_to(block->rows - row, SIDE);

            multiply_square(block->a + row * steps * STEP, block->b, steps, rows, columns, sum);
            for (int64_t i = 0; i < rows; i++)
                store_row(block, row + i, column, columns, sum + i * SIDE);
        }
    }
}

/* The scratch holds whole tiles (tt_bgemm_scratch). */
static void bgemm(const struct tt_matmul *gemm)
{
    struct block block = {.gemm = gemm};

    tile_configure();
    for (; block.column < gemm->n; block.column += TT_BGEMM_COLUMNS) {
        block.columns = up_to(gemm->n - block.column, TT_BGEMM_COLUMNS);
        for (block.row = 0; block.row < gemm->m; block.row += TT_BGEMM_ROWS) {
            int64_t depth = tt_round_up(up_to(gemm->k, DEPTH), STEP);

            block.rows = up_to(gemm->m - block.row, TT_BGEMM_ROWS);
            block.a = (tt_bf16 *)(((uintptr_t)gemm->scratch + 63) / 64 * 64);
            block.b = block.a + tt_round_up(block.rows, LINES) * depth;
            block.sums = (float *)(void *)(block.b + SIDE * depth);
            for (block.begin = 0; block.begin < gemm->k; block.begin += DEPTH) {
                block.k = up_to(gemm->k - block.begin, DEPTH);
                multiply_block(&block);
            }
        }
    }
    tile_release();
}

/* Tests compile this file under other names. */
#if !defined(TT_AMX_TABLE)
#define TT_AMX_TABLE tt_kernels_amx
#endif

const struct tt_kernels TT_AMX_TABLE = {.name = "amx", .bgemm = bgemm};
