/* SPDX-License-Identifier: MIT
 *
 * Matrix products of bfloat16 by AMX (method: Goto & van de Geijn 2008).
 *
 * Blocks of A and B are packed as tiles of 16 lines and STEP elements along k: rows of A, and pairs of columns of B
 * (amx_tile.h); lines and elements that do not exist are 0. The block of A stays in the second cache. B is packed two
 * tiles of columns at a time, just before they are multiplied by all rows of the block, and stays in the first cache.
 * Four tiles hold a square of 32 x 32 sums over a block of k; the sums over blocks of k are added in order. So the bits
 * of an element depend on k only. They differ from the bits of the other kernels, because a tile sums in its own order.
 *
 * Meanwhile the processor fetches the data to be packed next from memory, and the rows of c that are stored next.
 *
 * On an Intel Xeon of family 6, model 207, products have the bits of the emulated tiles, and run at a fourth to two
 * fifths of the rate at which tiles can be loaded and multiplied: packing and storing take the rest. There it is faster
 * to fetch a little at every step than more at every fourth, and to store whole squares directly where nothing is added
 * or rounded. Fetching tiles of A into the first cache gains nothing.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/kernels/vector/amx_pack.h"
#include "core/kernels/vector/fetch.h"
#include "core/math/round.h"

#define DEPTH INT64_C(768) /* 48 KiB of B */
_Static_assert(DEPTH <= TT_BGEMM_DEPTH && DEPTH % STEP == 0 && TT_BGEMM_PANEL >= SIDE, "scratch");

/* --- operands --- */

static struct operand operand_a(const struct tt_matmul *gemm)
{
    return (struct operand){gemm->a, gemm->lda, !gemm->trans_a, false};
}

/* The lines of A that pack will read, in `turns` turns. */
static struct fetch fetch_a(const struct tt_matmul *gemm, int64_t line, int64_t lines, int64_t begin, int64_t k,
                            int64_t turns)
{
    struct operand x = operand_a(gemm);
    int64_t size = (int64_t)sizeof(tt_bf16);

    if (lines <= 0 || k <= 0)
        return (struct fetch){0};
    if (x.along)
        return fetch_in_turns(x.from + line * x.stride + begin, x.stride * size, lines, k * size, turns);
    return fetch_in_turns(x.from + begin * x.stride + line, x.stride * size, k, lines * size, turns);
}

static struct fetch fetch_b(const struct tt_matmul *gemm, int64_t column, int64_t columns, int64_t begin, int64_t k,
                            int64_t turns)
{
    struct tt_b_memory b = tt_matmul_b_memory(gemm, column, columns, begin, k);

    return fetch_in_turns(b.first, b.stride, b.lines, b.bytes, turns);
}

/* --- the product --- */

/* The data that is fetched meanwhile: a panel of B, a part of a block of A, and for writing, rows of c. */
struct ahead {
    struct fetch a, b;
    const char *c;
    int64_t rows, at_once, stride, last; /* rows of c, rows a step; bytes between rows, and of a row but one */
};

/* Not inlined, so that the compiler makes one loop of products. */
__attribute__((noinline)) static void fetch_ahead(struct ahead *next)
{
    fetch_some(&next->b);
    fetch_some(&next->a);
    for (int64_t i = next->at_once; i > 0 && next->rows > 0; i--, next->rows--, next->c += next->stride) {
        __builtin_prefetch(next->c, 1, 3);
        __builtin_prefetch(next->c + next->last, 1, 3);
    }
}

/*
 * sum (32, 32), with rows `stride` floats apart, = a b over `steps` steps of k. Callers pass the numbers of tiles of
 * rows and of columns, 1 or 2, as constants; what they leave out of `sum` is not written.
 */
INLINE void multiply_tiles(const tt_bf16 *a, const tt_bf16 *b, int64_t steps, int rows, int columns, float *sum,
                           int64_t stride, struct ahead *next)
{
    const tt_bf16 *lower = a + steps * TILE, *right = b + steps * TILE;
    int64_t bytes = stride * (int64_t)sizeof *sum;

    zero_sums(rows, columns);
    for (int64_t at = 0; at < steps * TILE; at += TILE) {
        fetch_ahead(next);
        multiply_step(a + at, lower + at, b + at, right + at, rows, columns);
    }
    store_sums(sum, LINES * stride, LINES, bytes, rows, columns);
}

static void multiply_square(const tt_bf16 *a, const tt_bf16 *b, int64_t steps, int64_t rows, int64_t columns,
                            float *sum, int64_t stride, struct ahead *next)
{
    if (rows > LINES && columns > LINES)
        multiply_tiles(a, b, steps, 2, 2, sum, stride, next);
    else if (rows > LINES)
        multiply_tiles(a, b, steps, 2, 1, sum, stride, next);
    else if (columns > LINES)
        multiply_tiles(a, b, steps, 1, 2, sum, stride, next);
    else
        multiply_tiles(a, b, steps, 1, 1, sum, stride, next);
}

/* A block of c at (row, column), and a block of k. */
struct block {
    const struct tt_matmul *gemm;
    int64_t row, rows, column, columns, begin, k;
    tt_bf16 *a, *b; /* packed */
    float *sums;    /* (rows, columns) over the blocks of k so far, for a c of bfloat16 */
};

/* The use of a square's sums: `add` is added to them, then `acc`, and they are stored in `to`, or else in c. */
struct target {
    const float *add; /* NULL: nothing */
    float *to;        /* NULL: c */
    int64_t stride;   /* elements of both */
    const tt_bf16 *acc;
    tt_bf16 *c;
    int64_t c_stride; /* of both */
};

static struct target target_of(const struct block *block, int64_t row, int64_t column)
{
    const struct tt_matmul *gemm = block->gemm;
    int64_t at = (block->row + row) * gemm->ldc + block->column + column;
    bool first = block->begin == 0, last = block->begin + block->k >= gemm->k;
    struct target x = {.stride = gemm->ldc, .c_stride = gemm->ldc};

    if (!gemm->c_bf16) {
        x.to = (float *)gemm->c + at;
        x.add = !first ? x.to : gemm->acc ? (const float *)gemm->acc + at : NULL;
        return x;
    }
    x.stride = block->columns;
    x.add = first ? NULL : block->sums + row * block->columns + column;
    if (last) {
        x.c = (tt_bf16 *)gemm->c + at;
        x.acc = gemm->acc ? (const tt_bf16 *)gemm->acc + at : NULL;
    } else {
        x.to = block->sums + row * block->columns + column;
    }
    return x;
}

/* A square of c is fetched while it is computed: if its lines come from memory, that takes as long as the product. */
static void fetch_target(struct ahead *next, const struct target *to, int64_t rows, int64_t columns, int64_t steps)
{
    int64_t size = to->to ? (int64_t)sizeof(float) : (int64_t)sizeof(tt_bf16);

    next->c = to->to ? (const char *)to->to : (const char *)to->c;
    next->rows = rows;
    next->at_once = tt_div_up(rows, steps);
    next->stride = (to->to ? to->stride : to->c_stride) * size;
    next->last = columns * size - 1;
}

/* Rounds as tt_bf16_from_float does, in the upper halves. */
INLINE void round_floats(v_floats *sum)
{
    v_pairs x, nan;

    memcpy(&x, sum, sizeof x);
    nan = (v_pairs)((x & 0x7fffffffU) > 0x7f800000U);
    x = ((x + 0x7fffU + (x >> 16 & 1U)) & ~nan) | ((x | 0x400000U) & nan);
    memcpy(sum, &x, sizeof x);
}

/* 32 sums of row i. */
INLINE void store_row(const struct target *x, int64_t i, const float *row)
{
    v_floats sum[2], other[2];
    v_halves acc, zeros = {0}, c;

    memcpy(sum, row, sizeof sum);
    if (x->add) {
        memcpy(other, x->add + i * x->stride, sizeof other);
        sum[0] = other[0] + sum[0];
        sum[1] = other[1] + sum[1];
    }
    if (x->to) {
        memcpy(x->to + i * x->stride, sum, sizeof sum);
        return;
    }
    if (x->acc) {
        memcpy(&acc, x->acc + i * x->c_stride, sizeof acc);
        interleave(&other[0], &other[1], &zeros, &acc);
        sum[0] = sum[0] + other[0];
        sum[1] = sum[1] + other[1];
    }
    round_floats(&sum[0]);
    round_floats(&sum[1]);
    c = PICK(v_halves, (v_halves)sum[0], (v_halves)sum[1], LANES(ODD, 0), LANES(ODD, 16));
    memcpy(x->c + i * x->c_stride, &c, sizeof c);
}

static void store_element(const struct target *x, int64_t i, int64_t j, float sum)
{
    if (x->add)
        sum = x->add[i * x->stride + j] + sum;
    if (x->acc)
        sum += tt_bf16_to_float(x->acc[i * x->c_stride + j]);
    if (x->to)
        x->to[i * x->stride + j] = sum;
    else
        x->c[i * x->c_stride + j] = tt_bf16_from_float(sum);
}

static void store_square(const struct target *x, const float *sum, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, sum += SIDE) {
        if (columns == SIDE)
            store_row(x, i, sum);
        for (int64_t j = 0; columns < SIDE && j < columns; j++)
            store_element(x, i, j, sum[j]);
    }
}

/* The panel of B after the one at `column`: of the same block, of the next k, of the next rows, of the next product. Of
 * a packed B, a panel of the columns that are unpacked next. */
static struct fetch next_panel(const struct block *block, int64_t column, int64_t turns)
{
    struct tt_matmul b = *block->gemm;
    int64_t begin = block->begin + block->k, ahead = b.b_packing ? TT_UNPACKED_COLUMNS : SIDE;

    column += ahead;
    if (column < block->columns)
        return fetch_b(&b, block->column + column, up_to(block->columns - column, SIDE), block->begin, block->k, turns);
    column -= tt_round_up(block->columns, ahead);
    if (begin < b.k)
        return fetch_b(&b, block->column + column, up_to(block->columns - column, SIDE), begin,
                       up_to(b.k - begin, DEPTH), turns);
    if (block->row + block->rows < b.m)
        return fetch_b(&b, block->column + column, up_to(block->columns - column, SIDE), 0, up_to(b.k, DEPTH), turns);
    b.b = b.next_b;
    if (!b.b || block->column + block->columns < b.n)
        return (struct fetch){0};
    return fetch_b(&b, 0, up_to(b.n, SIDE), 0, up_to(b.k, DEPTH), turns);
}

/* The block of A after this one: of the next k, or of the next rows. */
static struct fetch next_block(const struct block *block, int64_t turns)
{
    const struct tt_matmul *gemm = block->gemm;
    int64_t begin = block->begin + block->k, row = block->row + block->rows;

    if (begin < gemm->k)
        return fetch_a(gemm, block->row, block->rows, begin, up_to(gemm->k - begin, DEPTH), turns);
    return fetch_a(gemm, row, up_to(gemm->m - row, TT_BGEMM_ROWS), 0, up_to(gemm->k, DEPTH), turns);
}

static void multiply_block(const struct block *block)
{
    struct operand a = operand_a(block->gemm);
    int64_t steps = tt_div_up(block->k, STEP), turns = tt_div_up(block->rows, SIDE) * steps;
    struct ahead next = {.a = next_block(block, tt_div_up(block->columns, SIDE) * turns)};
    float sum[SIDE * SIDE] __attribute__((aligned(64)));

    pack(block->a, &a, block->row, block->rows, block->begin, block->k);
    for (int64_t column = 0; column < block->columns; column += SIDE) {
        int64_t columns = up_to(block->columns - column, SIDE);
        struct operand b = {.along = block->gemm->trans_b, .pairs = true};

        b.from = tt_matmul_b(block->gemm, block->column + column, block->begin, block->k, &b.stride);
        next.b = next_panel(block, column, turns);
        pack(block->b, &b, 0, columns, 0, block->k);
        for (int64_t row = 0; row < block->rows; row += SIDE) {
            int64_t rows = up_to(block->rows - row, SIDE);
            struct target to = target_of(block, row, column);

            fetch_target(&next, &to, rows, columns, steps);
            if (to.to && !to.add && rows == SIDE && columns == SIDE) {
                multiply_square(block->a + row * steps * STEP, block->b, steps, rows, columns, to.to, to.stride, &next);
                continue;
            }
            multiply_square(block->a + row * steps * STEP, block->b, steps, rows, columns, sum, SIDE, &next);
            store_square(&to, sum, rows, columns);
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

/* Tests compile these files under other names. */
const struct tt_kernels TT_ISA(tt_kernels) = {.name = "amx",
                                              .attention_fwd_bf16 = TT_ISA(tt_attention_fwd_bf16),
                                              .attention_bwd_bf16 = TT_ISA(tt_attention_bwd_bf16),
                                              .bgemm = bgemm};
