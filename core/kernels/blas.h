/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_BLAS_H
#define TT_CORE_KERNELS_BLAS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/os/team.h"

/**
 * c (m, n) = [acc +] A B in row-major order. A is a (m, k), or with trans_a the transpose of a stored a (k, m). B is
 * b (k, n), or with trans_b the transpose of a stored b (n, k). lda, ldb and ldc are row strides in elements. acc has
 * c's strides and may be c itself.
 * Dimensions and strides are below 2^31.
 */
struct tt_gemm {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const float *a, *b;
    const float *acc; /* NULL: nothing is added */
    float *c;
    int64_t lda, ldb, ldc;
    /*
     * If m, n or k is a part of a dimension that ranks share: the size of its grains; 0 if it is not cut. Each grain
     * of m and n is a separate product with its own tiles. The products over grains of k are added as a tree, and
     * then acc is added.
     */
    int64_t m_grain, n_grain, k_grain;
    float *partial; /* tt_gemm_partial_floats */
};

/** One product on the calling thread, without grains; tiles of a team run call it. */
void tt_gemm_serial(const struct tt_gemm *gemm);

/**
 * One product on the team. The larger of a grain's m and n is cut into a power of two of tiles, which depends on the
 * grain's shape only; k is never cut. So the bits depend neither on the number of threads, nor on which thread ran a
 * tile, nor on how many of the grains this rank has.
 */
void tt_gemm(struct tt_team *team, const struct tt_gemm *gemm);

/** The number of tiles of a product, over all its grains. Reads sizes only. */
int64_t tt_gemm_tiles(const struct tt_gemm *gemm);

/** Runs one tile on the calling thread, so that an op can run the tiles of several products in one run of a team. */
void tt_gemm_tile(const struct tt_gemm *gemm, int64_t tile);

/** Floats of `partial` that a product needs, with an acc or without. Reads sizes only. */
int64_t tt_gemm_partial_floats(const struct tt_gemm *gemm, bool has_acc);

/**
 * Checks that the address space has room for the buffers of products on that many threads at once: OpenBLAS maps 128
 * MiB for each thread when it first computes, and retries for ever if a limit (`ulimit -v`, strict overcommit) refuses.
 * TT_EFIT if it does not fit.
 */
int tt_blas_check_room(int threads) TT_MUST_CHECK;

/** Name and version of the BLAS library, with the kernels it chose for this CPU. */
const char *tt_blas_library(void);

/** The name of the processor's kernels that the library has chosen. Bits depend on it. */
const char *tt_blas_kernel(void);

#endif
