/* SPDX-License-Identifier: MIT
 *
 * Matrix products of floats, and of bfloat16 for processors without AVX512-BF16: elements are widened when they are
 * packed (method: Goto & van de Geijn 2008).
 *
 * A block of A is packed as panels of ROWS rows and stays in the second cache. B is packed one panel of PANEL columns
 * at a time, just before the panel is multiplied by all rows of the block. Meanwhile the processor fetches the next
 * panel: if a product has few rows, reading a weight from memory costs more than packing it. The registers hold a
 * rectangle of ROWS x PANEL of c over a block of k; the sums over blocks of k are added in order. So the bits of an
 * element depend on k only: neither on the other elements nor on the width of vectors.
 */
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/kernels/vector/element.h"
#include "core/kernels/vector/fetch.h"
#include "core/kernels/vector/simd.h"

/* 64 bits, like the indices that they are multiplied with */
#define LINE INT64_C(16) /* floats of a cache line */
/* ROWS, the rows of a panel of A, are whole vectors, or half of one, or the first six lanes of eight. */
#if VF_REGISTERS == 32
#define ROWS       INT64_C(8)
#define VECTORS    INT64_C(3)
#define BLOCK_ROWS ((int64_t)TT_SGEMM_ROWS)
#else
#define ROWS       (VF_LANES == 8 ? INT64_C(6) : INT64_C(4))
#define VECTORS    INT64_C(2)
#define BLOCK_ROWS INT64_C(192) /* the second-level cache of processors with AVX2 is smaller */
#endif
#define GROUP (ROWS < VF_LANES && 2 * ROWS != VF_LANES ? ROWS : VF_LANES) /* rows of A that are packed at once */
#define PANEL (VECTORS * VF_LANES)

#define STEPS INT64_C(8) /* steps of k between two fetches */
_Static_assert(PANEL <= TT_SGEMM_PANEL && BLOCK_ROWS <= TT_SGEMM_ROWS && TT_SGEMM_DEPTH % LINE == 0, "scratch");

static int64_t up_to(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* --- packing --- */

/* The first VF_LANES columns of up to VF_LANES rows of n elements; elements that do not exist are 0. */
VF_INLINE void transpose_rows(vf *columns, const element *from, int64_t stride, int64_t rows, int64_t n)
{
    VF_UNROLL
    for (int64_t i = 0; i < VF_LANES; i++)
        columns[i] = i < rows ? element_load_n(from + i * stride, n) : vf_zero();
    vf_transpose(columns);
}

/**
 * Stores a column of VF_LANES rows. If a panel has half of them, the second half goes `other` further, to another
 * panel. If it has six rows of eight lanes, two floats spill into the next step or panel, which is packed later and
 * overwrites them.
 */
VF_INLINE void store_column(float *to, int64_t other, vf column)
{
    if (VF_LANES == 2 * ROWS)
        vf_store_halves(to, to + other, column);
    else
        vf_store(to, column);
}

/* ROWS elements of a row of A's transpose, of which n exist. */
VF_INLINE void copy_rows(float *to, const element *from, int64_t n)
{
    VF_UNROLL
    for (int64_t i = 0; i < ROWS; i += VF_LANES)
        vf_store_few(to + i, element_load_n(from + i, n - i), ROWS - i < VF_LANES ? ROWS - i : VF_LANES);
}

/* Up to VF_LANES of the rows, which have k elements: element p of the first goes to to + p step. The next VF_LANES rows
 * are fetched meanwhile. */
static void pack_rows(float *to, int64_t step, int64_t other, const element *from, int64_t stride, int64_t rows,
                      int64_t k)
{
    for (int64_t p = 0; p < k; p += VF_LANES) {
        vf columns[VF_LANES];

        for (int64_t i = VF_LANES; i < 2 * VF_LANES && i < rows; i++)
            __builtin_prefetch(from + i * stride + p, 0, 2);
        transpose_rows(columns, from + p, stride, rows, k - p);
        VF_UNROLL
        for (int64_t i = 0; i < VF_LANES; i++) {
            if (p + i >= k)
                break;
            store_column(to + (p + i) * step, other, columns[i]);
        }
    }
}

/* From k rows of a's transpose, LINE rows at a time; meanwhile the next ones, of which `more` exist, are fetched. */
static void pack_a_trans(float *to, const element *from, int64_t stride, int64_t rows, int64_t k, int64_t more)
{
    for (int64_t begin = 0; begin < k; begin += LINE) {
        int64_t end = begin + up_to(k - begin, LINE), ahead = begin + 2 * LINE <= k + more ? LINE : 0;

        for (int64_t i = 0; i < rows; i += ROWS) {
            for (int64_t p = begin; p < end; p++) {
                __builtin_prefetch(from + (p + ahead) * stride + i, 0, 2);
                copy_rows(to + i * k + p * ROWS, from + p * stride + i, rows - i);
            }
        }
    }
}

static void pack_a(float *to, const struct tt_matmul *gemm, int64_t row, int64_t rows, int64_t begin, int64_t k)
{
    const element *a = gemm->a;

    if (gemm->trans_a) {
        pack_a_trans(to, a + begin * gemm->lda + row, gemm->lda, rows, k, gemm->k - begin - k);
        return;
    }
    for (int64_t i = 0; i < rows; i += GROUP)
        pack_rows(to + i / ROWS * ROWS * k + i % ROWS, ROWS, ROWS * k, a + (row + i) * gemm->lda + begin, gemm->lda,
                  rows - i, k);
}

/* A panel of B over [begin, begin + k). Vectors of lanes beyond the last column are not read. */
static void pack_b(float *to, const struct tt_matmul *gemm, int64_t column, int64_t begin, int64_t k)
{
    int64_t columns = up_to(gemm->n - column, PANEL), stride;
    const element *row = tt_matmul_b(gemm, column, begin, k, &stride);

    for (int64_t i = 0; gemm->trans_b && i < columns; i += VF_LANES)
        pack_rows(to + i, PANEL, VF_LANES / 2, row + i * stride, stride, columns - i, k);
    for (int64_t p = 0; !gemm->trans_b && p < k; p++, row += stride, to += PANEL) {
        VF_UNROLL
        for (int64_t i = 0; i < PANEL; i += VF_LANES)
            vf_store(to + i, element_load_n(row + i, columns - i));
    }
}

/* --- the product --- */

/* A rectangle of c: the sums are added to `add` and stored. */
struct target {
    int64_t rows, columns; /* rows <= ROWS, columns <= PANEL */
    const float *add;      /* NULL: nothing */
    float *c;
    int64_t stride; /* of both */
};

/* Fetches up to n rows of c for writing. */
VF_INLINE void fetch_target(const struct target *to, int64_t row, int64_t n)
{
    for (int64_t end = up_to(row + n, to->rows); row < end; row++) {
        for (int64_t v = 0; v < to->columns + LINE - 1; v += LINE)
            __builtin_prefetch(to->c + row * to->stride + up_to(v, to->columns - 1), 1, 3);
    }
}

/* Callers pass the number of rows and of vectors as constants. */
VF_INLINE void multiply_step(vf sum[ROWS][VECTORS], const float *a, const float *b, int64_t nr, int64_t nv)
{
    vf right[VECTORS];

    VF_UNROLL
    for (int64_t v = 0; v < nv; v++)
        right[v] = vf_load(b + v * VF_LANES);
    VF_UNROLL
    for (int64_t r = 0; r < nr; r++) {
        vf left = vf_set(a[r]);

        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            sum[r][v] = vf_fma(left, right[v], sum[r][v]);
    }
}

VF_INLINE void multiply_panels(const float *a, const float *b, int64_t k, int64_t nr, int64_t nv,
                               const struct target *to, struct fetch *next)
{
    struct fetch f = *next;
    vf sum[ROWS][VECTORS];
    int64_t p = 0, at_once = k >= 2 * STEPS * ROWS ? 1 : ROWS; /* with a short k, c is needed soon */

    VF_UNROLL
    for (int64_t r = 0; r < nr; r++) {
        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            sum[r][v] = vf_zero();
    }
    for (; p + STEPS <= k; p += STEPS, a += STEPS * ROWS, b += STEPS * PANEL) {
        fetch_target(to, p / STEPS * at_once, at_once);
        fetch_some(&f);
        VF_UNROLL
        for (int64_t i = 0; i < STEPS; i++)
            multiply_step(sum, a + i * ROWS, b + i * PANEL, nr, nv);
    }
    for (; p < k; p++, a += ROWS, b += PANEL)
        multiply_step(sum, a, b, nr, nv);
    *next = f;
    VF_UNROLL
    for (int64_t r = 0; r < nr; r++) {
        if (r >= to->rows)
            break;
        VF_UNROLL
        for (int64_t v = 0; v < nv; v++) {
            int64_t n = to->columns - v * VF_LANES, at = r * to->stride + v * VF_LANES;

            if (to->add)
                sum[r][v] = vf_add(vf_load_n(to->add + at, n), sum[r][v]);
            vf_store_n(to->c + at, sum[r][v], n);
        }
    }
}

VF_INLINE void multiply_columns(const float *a, const float *b, int64_t k, int64_t nr, const struct target *to,
                                struct fetch *next)
{
    if (to->columns > 2 * VF_LANES) {
        multiply_panels(a, b, k, nr, VECTORS, to, next);
    } else if (to->columns > VF_LANES) {
        multiply_panels(a, b, k, nr, 2, to, next);
    } else {
        multiply_panels(a, b, k, nr, 1, to, next);
    }
}

static void multiply_target(const float *a, const float *b, int64_t k, const struct target *to, struct fetch *next)
{
    if (to->rows > ROWS / 2) {
        multiply_columns(a, b, k, ROWS, to, next);
    } else {
        multiply_columns(a, b, k, ROWS / 2, to, next);
    }
}

/* A block of rows of c over [begin, begin + k). */
struct block {
    const struct tt_matmul *gemm;
    int64_t row, rows, begin, k;
    int64_t depth; /* the k of all blocks but the last */
    float *a, *b;  /* packed */
};

/* The panel of B after the one at `column`: of the same block, or the first one of the next; it may be empty. Of a
 * packed B, a panel of the columns that are unpacked next. */
static struct fetch next_panel(const struct block *block, int64_t column, int64_t turns)
{
    const struct tt_matmul *gemm = block->gemm;
    int64_t begin = block->begin, k = block->k, ahead = gemm->b_packing ? TT_UNPACKED_COLUMNS : PANEL;
    struct tt_b_memory b;

    column += ahead;
    if (column >= gemm->n) {
        column -= (gemm->n + ahead - 1) / ahead * ahead;
        begin += k;
        k = up_to(gemm->k - begin, block->depth);
    }
    b = tt_matmul_b_memory(gemm, column, up_to(gemm->n - column, PANEL), begin, k);
    return fetch_in_turns(b.first, b.stride, b.lines, b.bytes, turns);
}

static void multiply_panel(const struct block *block, int64_t column)
{
    const struct tt_matmul *gemm = block->gemm;
    struct fetch next = next_panel(block, column, (block->rows + ROWS - 1) / ROWS * (block->k / STEPS));
    const float *add = block->begin ? gemm->c : gemm->acc;

    pack_b(block->b, gemm, column, block->begin, block->k);
    for (int64_t row = 0; row < block->rows; row += ROWS) {
        int64_t at = (block->row + row) * gemm->ldc + column;
        struct target to = {.rows = up_to(block->rows - row, ROWS),
                            .columns = up_to(gemm->n - column, PANEL),
                            .add = add ? add + at : NULL,
                            .c = (float *)gemm->c + at,
                            .stride = gemm->ldc};

        multiply_target(block->a + row * block->k, block->b, block->k, &to, &next);
    }
}

/* The largest part of n, in whole units, if it is cut into as few equal parts as `most` allows. */
static int64_t equal_part(int64_t n, int64_t most, int64_t unit)
{
    int64_t parts = (n + most - 1) / most;

    return parts ? ((n + parts - 1) / parts + unit - 1) / unit * unit : unit;
}

/* A product with a c of floats. */
static void multiply(const struct tt_matmul *gemm)
{
    struct block block = {.gemm = gemm, .depth = equal_part(gemm->k, TT_SGEMM_DEPTH, LINE)};
    int64_t rows = equal_part(gemm->m, BLOCK_ROWS, GROUP > ROWS ? GROUP : ROWS);

    block.b = (float *)(((uintptr_t)gemm->scratch + 63) / 64 * 64);
    block.a = block.b + PANEL * up_to(gemm->k, block.depth);
    for (block.row = 0; block.row < gemm->m; block.row += rows) {
        block.rows = up_to(gemm->m - block.row, rows);
        for (block.begin = 0; block.begin < gemm->k; block.begin += block.depth) {
            block.k = up_to(gemm->k - block.begin, block.depth);
            pack_a(block.a, gemm, block.row, block.rows, block.begin, block.k);
            for (int64_t column = 0; column < gemm->n; column += PANEL)
                multiply_panel(&block, column);
        }
    }
}

#if defined(TT_ELEMENT_BF16)

/* A block of a c of bfloat16, whose sums follow the packed blocks in the scratch. */
static void multiply_rounded(const struct tt_matmul *block)
{
    struct tt_matmul wide = *block;
    int64_t rows = (block->m + LINE - 1) / LINE * LINE;

    wide.c = block->scratch + LINE + (rows + TT_SGEMM_PANEL) * up_to(block->k, TT_SGEMM_DEPTH);
    wide.acc = NULL;
    wide.ldc = block->n;
    multiply(&wide);
    tt_matmul_store(block, wide.c, wide.ldc);
}

void TT_ISA(tt_bgemm)(const struct tt_matmul *gemm)
{
    struct tt_rectangle at = {0};

    if (!gemm->c_bf16) {
        multiply(gemm);
        return;
    }
    for (; at.row < gemm->m; at.row += TT_BGEMM_ROWS) {
        at.rows = up_to(gemm->m - at.row, TT_BGEMM_ROWS);
        for (at.column = 0; at.column < gemm->n; at.column += TT_BGEMM_COLUMNS) {
            struct tt_matmul block;

            at.columns = up_to(gemm->n - at.column, TT_BGEMM_COLUMNS);
            block = tt_matmul_part(gemm, &at, 0, gemm->k);
            multiply_rounded(&block);
        }
    }
}

#else

void TT_ISA(tt_sgemm)(const struct tt_matmul *gemm)
{
    multiply(gemm);
}

#endif
