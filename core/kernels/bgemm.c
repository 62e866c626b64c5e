/* SPDX-License-Identifier: MIT
 *
 * Matrix products of bfloat16: the reference, and the portable kernel, which widens blocks of A and B to float32 for
 * OpenBLAS. Processors with AVX-512 have kernels of their own: x86/gemm.c, and with AVX512-BF16 x86/bgemm.c. titan does
 * not use AMX.
 */
#include "core/kernels/blas.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The portable kernel's blocks have half the depth, so that floats take the memory of pairs of bfloat16. */
enum { WIDE_DEPTH = TT_BGEMM_DEPTH / 2 };

/* Whole vectors of columns, and whole cache lines of rows; the last line is for the alignment. */
int64_t tt_bgemm_scratch(const struct tt_matmul *gemm)
{
    int64_t rows = (min64(gemm->m, TT_BGEMM_ROWS) + 15) / 16 * 16;
    int64_t columns = (min64(gemm->n, TT_BGEMM_COLUMNS) + TT_BGEMM_PANEL - 1) / TT_BGEMM_PANEL * TT_BGEMM_PANEL;

    return (rows + columns) * min64(gemm->k, WIDE_DEPTH) + (gemm->c_bf16 ? rows * columns : 0) + 16;
}

void tt_bgemm_ref(const struct tt_matmul *gemm)
{
    const tt_bf16 *a = gemm->a, *b = gemm->b;

    for (int64_t i = 0; i < gemm->m; i++) {
        for (int64_t j = 0; j < gemm->n; j++) {
            int64_t at = i * gemm->ldc + j;
            double sum = 0.0;

            for (int64_t p = 0; p < gemm->k; p++)
                sum += (double)tt_bf16_to_float(a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p]) *
                       (double)tt_bf16_to_float(b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j]);
            if (gemm->acc)
                sum += (double)(gemm->c_bf16 ? tt_bf16_to_float(((const tt_bf16 *)gemm->acc)[at])
                                             : ((const float *)gemm->acc)[at]);
            if (gemm->c_bf16)
                ((tt_bf16 *)gemm->c)[at] = tt_bf16_from_float((float)sum);
            else
                ((float *)gemm->c)[at] = (float)sum;
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

/* A block of c, over all of k. */
static void multiply_block(const struct tt_matmul *block)
{
    const struct tt_rectangle all = {0, block->m, 0, block->n};
    int64_t m = block->m, n = block->n;
    float *a = block->scratch, *b = a + m * min64(block->k, WIDE_DEPTH), *sum = b + n * min64(block->k, WIDE_DEPTH);
    struct tt_matmul wide = {.trans_a = block->trans_a, .trans_b = block->trans_b, .m = m, .n = n, .c = sum, .ldc = n};

    if (!block->c_bf16) {
        wide.c = block->c;
        wide.acc = block->acc;
        wide.ldc = block->ldc;
    }
    for (int64_t p = 0; p < block->k; p += WIDE_DEPTH) {
        int64_t k = min64(block->k - p, WIDE_DEPTH);
        struct tt_matmul part = tt_matmul_part(block, &all, p, k);

        wide.k = k;
        wide.a = part.trans_a ? widen(a, part.a, part.lda, k, m) : widen(a, part.a, part.lda, m, k);
        wide.lda = part.trans_a ? m : k;
        wide.b = part.trans_b ? widen(b, part.b, part.ldb, n, k) : widen(b, part.b, part.ldb, k, n);
        wide.ldb = part.trans_b ? k : n;
        tt_sgemm(&wide);
        wide.acc = wide.c;
    }
    if (block->c_bf16)
        tt_matmul_store(block, sum, n);
}

bool tt_bgemm_is_blas(void)
{
    return tt_kernels()->bgemm == tt_bgemm_generic;
}

void tt_bgemm_generic(const struct tt_matmul *gemm)
{
    struct tt_rectangle at = {0};

    for (at.column = 0; at.column < gemm->n; at.column += TT_BGEMM_COLUMNS) {
        at.columns = min64(gemm->n - at.column, TT_BGEMM_COLUMNS);
        for (at.row = 0; at.row < gemm->m; at.row += TT_BGEMM_ROWS) {
            struct tt_matmul block;

            at.rows = min64(gemm->m - at.row, TT_BGEMM_ROWS);
            block = tt_matmul_part(gemm, &at, 0, gemm->k);
            multiply_block(&block);
        }
    }
}
