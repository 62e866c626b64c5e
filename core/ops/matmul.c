/* SPDX-License-Identifier: MIT
 *
 * Matrix products in the type that a node computes in.
 */
#include "core/ops/matmul.h"

#include "core/kernels/bgemm.h"
#include "core/kernels/blas.h"

static struct tt_gemm gemm_of(const struct tt_matmul *p)
{
    return (struct tt_gemm){.trans_a = p->trans_a,
                            .trans_b = p->trans_b,
                            .m = p->m,
                            .n = p->n,
                            .k = p->k,
                            .a = p->a,
                            .b = p->b,
                            .acc = p->acc,
                            .c = p->c,
                            .lda = p->lda,
                            .ldb = p->ldb,
                            .ldc = p->ldc,
                            .m_grain = p->m_grain,
                            .n_grain = p->n_grain,
                            .k_grain = p->k_grain,
                            .partial = p->partial};
}

static struct tt_bgemm bgemm_of(const struct tt_matmul *p)
{
    return (struct tt_bgemm){.trans_a = p->trans_a,
                             .trans_b = p->trans_b,
                             .c_bf16 = p->c_bf16,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .a = p->a,
                             .b = p->b,
                             .acc = p->acc,
                             .c = p->c,
                             .lda = p->lda,
                             .ldb = p->ldb,
                             .ldc = p->ldc,
                             .m_grain = p->m_grain,
                             .n_grain = p->n_grain,
                             .k_grain = p->k_grain,
                             .partial = p->partial,
                             .scratch = p->scratch};
}

void tt_matmul(struct tt_team *team, const struct tt_matmul *product)
{
    struct tt_bgemm half = bgemm_of(product);
    struct tt_gemm single = gemm_of(product);

    if (product->bf16)
        tt_bgemm(team, &half);
    else
        tt_gemm(team, &single);
}

int64_t tt_matmul_tiles(const struct tt_matmul *product)
{
    struct tt_bgemm half = bgemm_of(product);
    struct tt_gemm single = gemm_of(product);

    return product->bf16 ? tt_bgemm_tiles(&half) : tt_gemm_tiles(&single);
}

void tt_matmul_tile(const struct tt_matmul *product, int64_t tile, int worker)
{
    struct tt_bgemm half = bgemm_of(product);
    struct tt_gemm single = gemm_of(product);

    if (product->bf16)
        tt_bgemm_tile(&half, tile, worker);
    else
        tt_gemm_tile(&single, tile);
}

int64_t tt_matmul_partial_floats(const struct tt_matmul *product, bool has_acc)
{
    struct tt_bgemm half = bgemm_of(product);
    struct tt_gemm single = gemm_of(product);

    return product->bf16 ? tt_bgemm_partial_floats(&half, has_acc) : tt_gemm_partial_floats(&single, has_acc);
}

int64_t tt_matmul_scratch_floats(const struct tt_matmul *product)
{
    struct tt_bgemm half = bgemm_of(product);

    return product->bf16 ? tt_bgemm_scratch_floats(&half) : 0;
}
