/* SPDX-License-Identifier: MIT
 *
 * Matrix products of floats: the reference, and the portable kernel, which is OpenBLAS (blas.c). Processors with
 * AVX-512 have a kernel of their own (x86/gemm.c).
 */
#include "core/kernels/blas.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Whole cache lines of rows; the last line is for the alignment. */
int64_t tt_sgemm_scratch(const struct tt_matmul *gemm)
{
    int64_t rows = (min64(gemm->m, TT_SGEMM_ROWS) + 15) / 16 * 16;

    return (rows + TT_SGEMM_PANEL) * min64(gemm->k, TT_SGEMM_DEPTH) + 16;
}

void tt_sgemm_ref(const struct tt_matmul *gemm)
{
    const float *a = gemm->a, *b = gemm->b, *acc = gemm->acc;
    float *c = gemm->c;

    for (int64_t i = 0; i < gemm->m; i++) {
        for (int64_t j = 0; j < gemm->n; j++) {
            double sum = 0.0;

            for (int64_t p = 0; p < gemm->k; p++)
                sum += (double)a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p] *
                       (double)b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j];
            if (acc)
                sum += (double)acc[i * gemm->ldc + j];
            c[i * gemm->ldc + j] = (float)sum;
        }
    }
}

void tt_sgemm_generic(const struct tt_matmul *gemm)
{
    tt_sgemm(gemm);
}

bool tt_sgemm_is_blas(void)
{
    return tt_kernels()->sgemm == tt_sgemm_generic;
}
