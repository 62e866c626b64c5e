/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_BGEMM_H
#define TT_CORE_KERNELS_BGEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/math/bf16.h"
#include "core/os/team.h"

/**
 * Matrix products of bfloat16 with sums in float32: c (m, n) = [acc +] A B in row-major order. As in struct tt_gemm
 * (blas.h), A is a (m, k), or with trans_a the transpose of a stored a (k, m), and B is b (k, n), or with trans_b the
 * transpose of a stored b (n, k). lda, ldb and ldc are row strides in elements. acc has c's type and strides and may be
 * c itself. A bfloat16 c is rounded once, to nearest even, after acc is added.
 */
struct tt_bgemm {
    bool trans_a, trans_b;
    bool c_bf16; /* c and acc are tt_bf16, otherwise float */
    int64_t m, n, k;
    const tt_bf16 *a, *b;
    const void *acc; /* NULL: nothing is added */
    void *c;
    int64_t lda, ldb, ldc;
    int64_t m_grain, n_grain, k_grain; /* as in struct tt_gemm */
    float *partial;                    /* tt_bgemm_partial_floats */
    float *scratch;                    /* tt_bgemm_scratch_floats for each worker */
};

/**
 * One product on the team. It is cut into tiles like tt_gemm. The bits depend on the sizes of the grains and on the
 * kernel variant (kernels.h), but neither on the number of threads, nor on which thread ran a tile, nor on how many of
 * the grains this rank has.
 */
void tt_bgemm(struct tt_team *team, const struct tt_bgemm *gemm);

/** The number of tiles of a product, over all its grains. Reads sizes only. */
int64_t tt_bgemm_tiles(const struct tt_bgemm *gemm);

/** Runs one tile on the calling thread, so that an op can run the tiles of several products in one run of a team. */
void tt_bgemm_tile(const struct tt_bgemm *gemm, int64_t tile, int worker);

/** Floats of `partial` that a product needs, with an acc or without. Reads sizes and c_bf16 only. */
int64_t tt_bgemm_partial_floats(const struct tt_bgemm *gemm, bool has_acc);

/**
 * Floats of `scratch` for one worker, whole cache lines: packed blocks of A and B, and a block of c in float32. It is
 * the same for all variants and below 4 MiB. Reads sizes and c_bf16 only.
 */
int64_t tt_bgemm_scratch_floats(const struct tt_bgemm *gemm);

#endif
