/* SPDX-License-Identifier: MIT
 *
 * The kernels of float64: the portable loops compiled for double (core/math/real.h), and the product of doubles. The
 * slots for bfloat16 are NULL, since an op in float64 does not run them.
 *
 * An element of a product is the sum over k in order, starting from acc. So its bits depend neither on the shape of the
 * product nor on how it was cut. Nothing here uses a BLAS library, or instructions that only some processors have.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"

enum {
    ROWS = 4, /* of a block of c that stays in registers */
    COLUMNS = 4,
    DEPTH = 256, /* elements of k between two blocks of b */
    WIDTH = 64   /* columns of a block of b */
};

/* Columns of b over part of k, side by side: to[p * COLUMNS + j], one group of COLUMNS after the other. */
static void pack(const struct tt_matmul *product, int64_t p, int64_t k, int64_t column, int64_t n, double *to)
{
    const double *b = product->b;

    memset(to, 0, (size_t)((n + COLUMNS - 1) / COLUMNS * COLUMNS * k) * sizeof *to);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < k; i++)
            to[j / COLUMNS * COLUMNS * k + i * COLUMNS + j % COLUMNS] =
                product->trans_b ? b[(column + j) * product->ldb + p + i] : b[(p + i) * product->ldb + column + j];
}

/* c += a b for `rows` rows from `row` on, at most ROWS, and n columns, at most COLUMNS. */
static void block(const struct tt_matmul *product, int64_t row, int64_t rows, int64_t p, int64_t k, const double *b,
                  double *c, int64_t n)
{
    const double *a = product->a;
    double sum[ROWS][COLUMNS] = {{0.0}};
    int64_t step = product->trans_a ? product->lda : 1, from[ROWS];

    for (int64_t i = 0; i < ROWS; i++) {
        int64_t r = row + (i < rows ? i : 0);

        from[i] = product->trans_a ? p * product->lda + r : r * product->lda + p;
        for (int64_t j = 0; j < n && i < rows; j++)
            sum[i][j] = c[i * product->ldc + j];
    }
    for (int64_t q = 0; q < k; q++)
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t j = 0; j < COLUMNS; j++)
                sum[i][j] += a[from[i] + q * step] * b[q * COLUMNS + j];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            c[i * product->ldc + j] = sum[i][j];
}

void TT_LOOPS(sgemm)(const struct tt_matmul *gemm)
{
    const double *acc = gemm->acc;
    double *c = gemm->c, b[WIDTH * DEPTH];

    for (int64_t i = 0; i < gemm->m && acc != c; i++) {
        if (acc)
            memcpy(c + i * gemm->ldc, acc + i * gemm->ldc, (size_t)gemm->n * sizeof *c);
        else
            memset(c + i * gemm->ldc, 0, (size_t)gemm->n * sizeof *c);
    }
    for (int64_t p = 0; p < gemm->k; p += DEPTH)
        for (int64_t column = 0; column < gemm->n; column += WIDTH) {
            int64_t k = gemm->k - p < DEPTH ? gemm->k - p : DEPTH;
            int64_t n = gemm->n - column < WIDTH ? gemm->n - column : WIDTH;

            pack(gemm, p, k, column, n, b);
            for (int64_t row = 0; row < gemm->m; row += ROWS)
                for (int64_t j = 0; j < n; j += COLUMNS)
                    block(gemm, row, gemm->m - row < ROWS ? gemm->m - row : ROWS, p, k, b + j * k,
                          c + row * gemm->ldc + column + j, n - j < COLUMNS ? n - j : COLUMNS);
        }
}

/* The product packs on the stack. */
int64_t tt_sgemm_scratch(const struct tt_matmul *gemm)
{
    (void)gemm;
    return 0;
}

bool tt_sgemm_is_blas(void)
{
    return false;
}

#define SLOT(kernel) .kernel = TT_LOOPS(kernel)
static const struct tt_kernels table = {
    .name = "float64",
    SLOT(add),
    SLOT(adamw),
    SLOT(adamw_8bit),
    SLOT(attention_fwd),
    SLOT(attention_row),
    SLOT(attention_bwd),
    SLOT(cross_entropy),
    SLOT(cross_entropy_grad),
    SLOT(exp),
    SLOT(geglu_fwd),
    SLOT(geglu_bwd),
    SLOT(gelu_fwd),
    SLOT(gelu_bwd),
    SLOT(gelu_erf_fwd),
    SLOT(gelu_erf_bwd),
    SLOT(gemv),
    SLOT(layernorm_fwd),
    SLOT(layernorm_bwd),
    SLOT(mix_rows),
    SLOT(mix_rows_bwd),
    SLOT(rmsnorm_fwd),
    SLOT(rmsnorm_bwd),
    SLOT(rope),
    SLOT(scale),
    SLOT(scatter_add),
    SLOT(sgemm),
    SLOT(sinks_bwd),
    SLOT(soft_cap),
    SLOT(softmax_grad),
    SLOT(softmax_sum),
    SLOT(squares),
    SLOT(sum_rows),
    SLOT(swiglu_fwd),
    SLOT(swiglu_bwd),
    SLOT(swiglu_clamped_fwd),
    SLOT(swiglu_clamped_bwd),
    SLOT(unpack),
};

const struct tt_kernels *tt_kernels(void)
{
    return &table;
}
