/* SPDX-License-Identifier: MIT
 *
 * Matrix products of bfloat16: their tiles, the reference, and the portable kernel, which widens blocks of A and B to
 * float32 for sgemm. Processors with AVX512-BF16 have a kernel of their own (x86/bgemm.c). titan does not use AMX.
 */
#include "core/kernels/bgemm.h"

#include "core/kernels/blas.h"
#include "core/kernels/kernels.h"
#include "core/kernels/product_tiles.h"
#include "core/math/tree.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct tt_product_size size_of(const struct tt_bgemm *gemm)
{
    return (struct tt_product_size){gemm->m, gemm->n, gemm->k, gemm->m_grain, gemm->n_grain, gemm->k_grain};
}

int64_t tt_bgemm_tiles(const struct tt_bgemm *gemm)
{
    struct tt_product_size size = size_of(gemm);

    return tt_product_tiles(&size);
}

/* The lowest sum over grains of k can be c itself, unless c holds bfloat16 or may be acc. */
int64_t tt_bgemm_partial_floats(const struct tt_bgemm *gemm, bool has_acc)
{
    struct tt_product_size size = size_of(gemm);

    return tt_product_partial_arrays(&size, !has_acc && !gemm->c_bf16) * gemm->m * gemm->ldc;
}

/* The portable kernel's blocks have half the depth, so that floats take the memory of pairs of bfloat16. */
enum { WIDE_DEPTH = TT_BGEMM_DEPTH / 2 };

/* Whole vectors of columns, and whole cache lines of rows; the last line is for the alignment. */
int64_t tt_bgemm_scratch_floats(const struct tt_bgemm *gemm)
{
    int64_t rows = (min64(gemm->m, TT_BGEMM_ROWS) + 15) / 16 * 16;
    int64_t columns = (min64(gemm->n, TT_BGEMM_COLUMNS) + TT_BGEMM_PANEL - 1) / TT_BGEMM_PANEL * TT_BGEMM_PANEL;

    return (rows + columns) * min64(gemm->k, WIDE_DEPTH) + (gemm->c_bf16 ? rows * columns : 0) + 16;
}

/* The address of element i of c, or of acc. */
static void *element(const struct tt_bgemm *gemm, const void *c, int64_t i)
{
    return (char *)(uintptr_t)c + i * (gemm->c_bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(float));
}

/* Computes a rectangle of c over [begin, begin + k) of the summed dimension; acc and c: its first elements. */
static void multiply(const struct tt_bgemm *gemm, const struct tt_rectangle *at, int64_t begin, int64_t k,
                     const void *acc, void *c, bool c_bf16)
{
    struct tt_bgemm part = *gemm;

    part.c_bf16 = c_bf16;
    part.m = at->rows;
    part.n = at->columns;
    part.k = k;
    part.a += gemm->trans_a ? at->row + begin * gemm->lda : at->row * gemm->lda + begin;
    part.b += gemm->trans_b ? at->column * gemm->ldb + begin : at->column + begin * gemm->ldb;
    part.acc = acc;
    part.c = c;
    tt_kernels()->bgemm(&part);
}

static void multiply_grain(const void *product, const struct tt_rectangle *at, int64_t begin, int64_t k, float *to)
{
    multiply(product, at, begin, k, NULL, to, false);
}

/* c = [acc +] sum, a rectangle; c and acc: its first elements. sum is overwritten. */
static void add_acc(const struct tt_bgemm *gemm, const struct tt_rectangle *at, float *sum, int64_t sum_stride)
{
    for (int64_t i = 0; i < at->rows; i++, sum += sum_stride) {
        int64_t first = (at->row + i) * gemm->ldc + at->column;
        void *c = element(gemm, gemm->c, first);

        if (gemm->c_bf16) {
            const tt_bf16 *acc = gemm->acc ? element(gemm, gemm->acc, first) : NULL;

            for (int64_t j = 0; acc && j < at->columns; j++)
                sum[j] += tt_bf16_to_float(acc[j]);
            tt_kernels()->bf16_round(c, sum, at->columns);
        } else if (gemm->acc) {
            tt_tree_add(c, element(gemm, gemm->acc, first), sum, at->columns);
        }
    }
}

/* The products over the grains of k, as a tree. */
static void multiply_grains(const struct tt_bgemm *gemm, const struct tt_product_size *size,
                            const struct tt_rectangle *at)
{
    struct tt_product_sums sums = {gemm->acc || gemm->c_bf16 ? NULL : gemm->c, gemm->partial, gemm->ldc};

    add_acc(gemm, at, tt_product_add_grains(size, at, &sums, multiply_grain, gemm), gemm->ldc);
}

void tt_bgemm_tile(const struct tt_bgemm *gemm, int64_t tile, int worker)
{
    struct tt_product_size size = size_of(gemm);
    struct tt_rectangle at = tt_product_tile(&size, tile);
    int64_t first = at.row * gemm->ldc + at.column;
    struct tt_bgemm own = *gemm;

    own.scratch += worker * tt_bgemm_scratch_floats(gemm);
    if (gemm->k_grain)
        multiply_grains(&own, &size, &at);
    else
        multiply(&own, &at, 0, gemm->k, gemm->acc ? element(gemm, gemm->acc, first) : NULL,
                 element(gemm, gemm->c, first), gemm->c_bf16);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    tt_bgemm_tile(arg, tile, worker);
}

void tt_bgemm(struct tt_team *team, const struct tt_bgemm *gemm)
{
    tt_team_run(team, tt_bgemm_tiles(gemm), run_tile, (void *)gemm);
}

void tt_bgemm_ref(const struct tt_bgemm *gemm)
{
    for (int64_t i = 0; i < gemm->m; i++) {
        for (int64_t j = 0; j < gemm->n; j++) {
            void *c = element(gemm, gemm->c, i * gemm->ldc + j);
            const void *acc = gemm->acc ? element(gemm, gemm->acc, i * gemm->ldc + j) : NULL;
            double sum = 0.0;

            for (int64_t p = 0; p < gemm->k; p++)
                sum += (double)tt_bf16_to_float(gemm->a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p]) *
                       (double)tt_bf16_to_float(gemm->b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j]);
            if (gemm->c_bf16)
                *(tt_bf16 *)c =
                    tt_bf16_from_float((float)(sum + (acc ? (double)tt_bf16_to_float(*(const tt_bf16 *)acc) : 0.0)));
            else
                *(float *)c = (float)(sum + (acc ? (double)*(const float *)acc : 0.0));
        }
    }
}

/* A block of a stored matrix in float32. */
static const float *widen(float *to, const tt_bf16 *from, int64_t stride, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        tt_kernels()->bf16_widen(to + i * columns, from + i * stride, columns);
    return to;
}

/* The block of c at (row, column), over all of k. */
static void multiply_block(const struct tt_bgemm *gemm, const struct tt_rectangle *at)
{
    int64_t m = at->rows, n = at->columns, first = at->row * gemm->ldc + at->column;
    float *a = gemm->scratch, *b = a + m * min64(gemm->k, WIDE_DEPTH), *sum = b + n * min64(gemm->k, WIDE_DEPTH);
    struct tt_gemm part = {.trans_a = gemm->trans_a, .trans_b = gemm->trans_b, .m = m, .n = n, .c = sum, .ldc = n};

    if (!gemm->c_bf16) {
        part.c = element(gemm, gemm->c, first);
        part.acc = gemm->acc ? element(gemm, gemm->acc, first) : NULL;
        part.ldc = gemm->ldc;
    }
    for (int64_t p = 0; p < gemm->k; p += WIDE_DEPTH) {
        int64_t k = min64(gemm->k - p, WIDE_DEPTH);

        part.k = k;
        part.a = gemm->trans_a ? widen(a, gemm->a + p * gemm->lda + at->row, gemm->lda, k, m)
                               : widen(a, gemm->a + at->row * gemm->lda + p, gemm->lda, m, k);
        part.lda = gemm->trans_a ? m : k;
        part.b = gemm->trans_b ? widen(b, gemm->b + at->column * gemm->ldb + p, gemm->ldb, n, k)
                               : widen(b, gemm->b + p * gemm->ldb + at->column, gemm->ldb, k, n);
        part.ldb = gemm->trans_b ? k : n;
        tt_gemm_serial(&part);
        part.acc = part.c;
    }
    if (gemm->c_bf16)
        add_acc(gemm, at, sum, n);
}

void tt_bgemm_generic(const struct tt_bgemm *gemm)
{
    struct tt_rectangle at = {0};

    for (at.column = 0; at.column < gemm->n; at.column += TT_BGEMM_COLUMNS) {
        at.columns = min64(gemm->n - at.column, TT_BGEMM_COLUMNS);
        for (at.row = 0; at.row < gemm->m; at.row += TT_BGEMM_ROWS) {
            at.rows = min64(gemm->m - at.row, TT_BGEMM_ROWS);
            multiply_block(gemm, &at);
        }
    }
}
