/* SPDX-License-Identifier: MIT
 *
 * Matrix products of bfloat16 by vdpbf16ps (method: Goto & van de Geijn 2008).
 *
 * A block of A is packed as panels of ROWS rows, B one panel of PANEL columns at a time, while the next one is fetched
 * from memory. A panel holds pairs along k: (k / 2, rows or columns, 2); rows, columns and a last odd k that do not
 * exist are 0. The registers hold a rectangle of ROWS x PANEL of c over a block of k; the sums over blocks of k are
 * added in order. So the bits of an element depend on k only.
 */
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/kernels/vector/bf16.h"
#include "core/kernels/vector/fetch.h"
#include "core/kernels/vector/simd.h"

/* 64 bits, like the indices that they are multiplied with */
#define ROWS    INT64_C(8)
#define PANEL   ((int64_t)TT_BGEMM_PANEL)
#define VECTORS (PANEL / VP_LANES)
#define STEPS   INT64_C(8) /* pairs of k between two fetches */
_Static_assert(TT_BGEMM_DEPTH % 2 == 0 && TT_BGEMM_ROWS % ROWS == 0 && TT_BGEMM_COLUMNS % PANEL == 0, "blocks");

static int64_t up_to(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* --- packing --- */

/* Packs rows of k elements. */
VF_INLINE void pack_along(tt_bf16 *to, int64_t width, const tt_bf16 *from, int64_t stride, int64_t lines, int64_t k)
{
    int64_t pairs = (k + 1) / 2;

    for (int64_t i = 0; i < lines; i += EIGHT)
        pack_eight_rows(to + (i / width * pairs * width + i % width) * 2, width, from + i * stride, stride, lines - i,
                        k);
}

/* Packs k rows of `lines` elements, four rows at a time: two pairs of a panel of eight lines share a cache line. */
VF_INLINE void pack_across(tt_bf16 *to, int64_t width, const tt_bf16 *from, int64_t stride, int64_t lines, int64_t k)
{
    int64_t pairs = (k + 1) / 2;

    for (int64_t p = 0; p < pairs; p += 2) {
        const tt_bf16 *row[4];

        for (int64_t i = 0; i < 4; i++)
            row[i] = 2 * p + i < k ? from + (2 * p + i) * stride : NULL;
        for (int64_t i = 0; i < lines; i += VP_LANES) {
            vp x = interleave(row[0], row[1], i, lines - i), y = interleave(row[2], row[3], i, lines - i);
            tt_bf16 *at = to + ((i / width * pairs + p) * width + i % width) * 2;

            if (width == EIGHT) {
                __mmask16 mask = p + 1 < pairs ? 0xffff : 0xff;

                _mm512_mask_storeu_epi32(at, mask, _mm512_shuffle_i64x2(x, y, 0x44));
                if (lines - i > EIGHT)
                    _mm512_mask_storeu_epi32(at + 2 * EIGHT * pairs, mask, _mm512_shuffle_i64x2(x, y, 0xee));
            } else {
                vp_store(at, x);
                if (p + 1 < pairs)
                    vp_store(at + 2 * width, y);
            }
        }
    }
}

static void pack_a(tt_bf16 *to, const struct tt_matmul *gemm, int64_t row, int64_t rows, int64_t begin, int64_t k)
{
    const tt_bf16 *from =
        (const tt_bf16 *)gemm->a + (gemm->trans_a ? begin * gemm->lda + row : row * gemm->lda + begin);

    if (gemm->trans_a)
        pack_across(to, ROWS, from, gemm->lda, rows, k);
    else
        pack_along(to, ROWS, from, gemm->lda, rows, k);
}

/* Whole vectors of lanes beyond the last column need no values, because nothing reads them. */
static void pack_b(tt_bf16 *to, const struct tt_matmul *gemm, int64_t column, int64_t columns, int64_t begin, int64_t k)
{
    int64_t stride;
    const tt_bf16 *from = tt_matmul_b(gemm, column, begin, k, &stride);

    if (gemm->trans_b)
        pack_along(to, PANEL, from, stride, columns, k);
    else
        pack_across(to, PANEL, from, stride, columns, k);
}

/* --- the product --- */

/* The use of a rectangle's sums: they are added to `add`, and stored. */
struct target {
    int64_t rows, columns; /* rows <= ROWS, columns <= PANEL */
    const float *add;      /* NULL: nothing */
    const tt_bf16 *acc;    /* NULL: nothing */
    float *sums;           /* NULL: c */
    tt_bf16 *c;
    int64_t add_stride, stride; /* of add; of acc, sums, c */
};

VF_INLINE vf widen(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

VF_INLINE void store_sums(const struct target *to, vf sum, int64_t row, int64_t column)
{
    int64_t n = to->columns - column, at = row * to->stride + column;
    __mmask16 mask = first_of_16(n);

    if (to->add)
        sum = vf_add(vf_load_n(to->add + row * to->add_stride + column, n), sum);
    if (to->acc)
        sum = vf_add(widen(_mm256_maskz_loadu_epi16(mask, to->acc + at)), sum);
    if (to->sums) {
        vf_store_n(to->sums + at, sum, n);
    } else {
        _mm256_mask_storeu_epi16(to->c + at, mask, (__m256i)_mm512_cvtneps_pbh(sum));
    }
}

/* Callers pass the number of rows and of vectors as constants. */
VF_INLINE void multiply_panels(const tt_bf16 *a, const tt_bf16 *b, int64_t pairs, int64_t nr, int64_t nv,
                               const struct target *to, struct fetch *next)
{
    struct fetch f = *next;
    vf sum[ROWS][VECTORS];

    VF_UNROLL
    for (int64_t r = 0; r < nr; r++) {
        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            sum[r][v] = vf_zero();
    }
    for (int64_t p = 0; p < pairs; p++, a += 2 * ROWS, b += 2 * PANEL) {
        vp right[VECTORS];

        if (p % STEPS == 0)
            fetch_some(&f);

        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            right[v] = vp_load(b + 2 * VP_LANES * v);
        VF_UNROLL
        for (int64_t r = 0; r < nr; r++) {
            vp left = vp_set(a + 2 * r);

            VF_UNROLL
            for (int64_t v = 0; v < nv; v++)
                sum[r][v] = vp_dot(right[v], left, sum[r][v]);
        }
    }
    *next = f;
    VF_UNROLL
    for (int64_t r = 0; r < nr; r++) {
        if (r >= to->rows)
            break;
        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            store_sums(to, sum[r][v], r, v * VP_LANES);
    }
}

VF_INLINE void multiply_columns(const tt_bf16 *a, const tt_bf16 *b, int64_t pairs, int64_t nr, const struct target *to,
                                struct fetch *next)
{
    if (to->columns > 2 * VP_LANES) {
        multiply_panels(a, b, pairs, nr, 3, to, next);
    } else if (to->columns > VP_LANES) {
        multiply_panels(a, b, pairs, nr, 2, to, next);
    } else {
        multiply_panels(a, b, pairs, nr, 1, to, next);
    }
}

static void multiply_target(const tt_bf16 *a, const tt_bf16 *b, int64_t pairs, const struct target *to,
                            struct fetch *next)
{
    if (to->rows > ROWS / 2) {
        multiply_columns(a, b, pairs, ROWS, to, next);
    } else {
        multiply_columns(a, b, pairs, ROWS / 2, to, next);
    }
}

/* A block of c at (row, column). */
struct block {
    const struct tt_matmul *gemm;
    int64_t row, rows, column, columns;
    tt_bf16 *a, *b; /* packed */
    float *sums;    /* (rows, width) over the blocks of k so far, for a c of bfloat16 */
    int64_t width;
};

static void target_c(const struct block *block, bool first, bool last, struct target *to)
{
    const struct tt_matmul *gemm = block->gemm;
    int64_t at = block->row * gemm->ldc + block->column;

    to->stride = to->add_stride = gemm->ldc;
    if (!gemm->c_bf16) {
        to->sums = (float *)gemm->c + at;
        to->add = !first ? to->sums : gemm->acc ? (const float *)gemm->acc + at : NULL;
        return;
    }
    to->add_stride = block->width;
    to->add = first ? NULL : block->sums;
    if (last) {
        to->c = (tt_bf16 *)gemm->c + at;
        to->acc = gemm->acc ? (const tt_bf16 *)gemm->acc + at : NULL;
    } else {
        to->stride = block->width;
        to->sums = block->sums;
    }
}

/* The part of a target from (row, column) on. */
static struct target target_at(const struct target *whole, const struct block *block, int64_t row, int64_t column)
{
    struct target to = *whole;
    int64_t at = row * to.stride + column;

    to.rows = block->rows - row < ROWS ? block->rows - row : ROWS;
    to.columns = block->columns - column < PANEL ? block->columns - column : PANEL;
    to.add = to.add ? to.add + row * to.add_stride + column : NULL;
    to.acc = to.acc ? to.acc + at : NULL;
    to.sums = to.sums ? to.sums + at : NULL;
    to.c = to.c ? to.c + at : NULL;
    return to;
}

/*
 * The panel after the one at `column` over the same k; after the last one of the product, the first one of the next
 * product; none after the last one of other blocks. Of a packed B, a panel of the columns that are unpacked next.
 */
static struct fetch next_panel(const struct block *block, int64_t column, int64_t begin, int64_t k)
{
    struct tt_matmul next = *block->gemm;
    int64_t ahead = next.b_packing ? TT_UNPACKED_COLUMNS : PANEL;
    int64_t n = up_to(block->columns - column - ahead, PANEL);
    int64_t turns = (block->rows + ROWS - 1) / ROWS * ((k + 2 * STEPS - 1) / (2 * STEPS));
    struct tt_b_memory b;

    column += block->column + ahead;
    if (n <= 0) {
        if (!next.next_b || column < next.n || block->row + block->rows < next.m || begin + k < next.k)
            return (struct fetch){0};
        next.b = next.next_b;
        n = up_to(next.n, PANEL);
        k = up_to(next.k, TT_BGEMM_DEPTH);
        column = begin = 0;
    }
    b = tt_matmul_b_memory(&next, column, n, begin, k);
    return fetch_in_turns(b.first, b.stride, b.lines, b.bytes, turns);
}

/* The products over [begin, begin + k). */
static void multiply_depth(const struct block *block, int64_t begin, int64_t k)
{
    int64_t pairs = (k + 1) / 2;
    struct target whole = {0};

    pack_a(block->a, block->gemm, block->row, block->rows, begin, k);
    target_c(block, begin == 0, begin + k == block->gemm->k, &whole);
    for (int64_t column = 0; column < block->columns; column += PANEL) {
        struct fetch next = next_panel(block, column, begin, k);

        pack_b(block->b, block->gemm, block->column + column, up_to(block->columns - column, PANEL), begin, k);
        for (int64_t row = 0; row < block->rows; row += ROWS) {
            struct target to = target_at(&whole, block, row, column);

            multiply_target(block->a + 2 * pairs * row, block->b, pairs, &to, &next);
        }
    }
}

void TT_ISA(tt_bgemm)(const struct tt_matmul *gemm)
{
    struct block block = {.gemm = gemm};
    int64_t depth = (up_to(gemm->k, TT_BGEMM_DEPTH) + 1) / 2 * 2;

    for (; block.column < gemm->n; block.column += TT_BGEMM_COLUMNS) {
        block.columns = up_to(gemm->n - block.column, TT_BGEMM_COLUMNS);
        block.width = (block.columns + PANEL - 1) / PANEL * PANEL;
        for (block.row = 0; block.row < gemm->m; block.row += TT_BGEMM_ROWS) {
            block.rows = up_to(gemm->m - block.row, TT_BGEMM_ROWS);
            block.a = (tt_bf16 *)(((uintptr_t)gemm->scratch + 63) / 64 * 64);
            block.b = block.a + (block.rows + ROWS - 1) / ROWS * ROWS * depth;
            block.sums = (float *)(void *)(block.b + block.width * depth);
            for (int64_t p = 0; p < gemm->k; p += TT_BGEMM_DEPTH)
                multiply_depth(&block, p, up_to(gemm->k - p, TT_BGEMM_DEPTH));
        }
    }
}
