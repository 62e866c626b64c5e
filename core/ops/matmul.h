/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_MATMUL_H
#define TT_OPS_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/os/team.h"

/**
 * A matrix product of an op, in the type that the node computes in: tt_gemm (core/kernels/blas.h), or tt_bgemm
 * (core/kernels/bgemm.h) if a and b are bfloat16. Members mean the same there. c and acc are float; with c_bf16, for
 * products of bfloat16 only, they are bfloat16.
 */
struct tt_matmul {
    bool bf16, c_bf16;
    bool trans_a, trans_b;
    int64_t m, n, k;
    const void *a, *b;
    const void *acc;
    void *c;
    int64_t lda, ldb, ldc;
    int64_t m_grain, n_grain, k_grain;
    float *partial; /* tt_matmul_partial_floats */
    float *scratch; /* tt_matmul_scratch_floats for each worker */
};

/** One product on the team; bits do not depend on threads. */
void tt_matmul(struct tt_team *team, const struct tt_matmul *product);

/** The number of tiles of a product; reads sizes only. */
int64_t tt_matmul_tiles(const struct tt_matmul *product);

/** Runs one tile on the calling thread, so that an op can run the tiles of several products in one run of a team. */
void tt_matmul_tile(const struct tt_matmul *product, int64_t tile, int worker);

/** Floats of `partial` that a product needs, with an acc or without; reads sizes and types only. */
int64_t tt_matmul_partial_floats(const struct tt_matmul *product, bool has_acc);

/** Floats of `scratch` for one worker, whole cache lines; 0 for products of float. Reads sizes and types only. */
int64_t tt_matmul_scratch_floats(const struct tt_matmul *product);

#endif
