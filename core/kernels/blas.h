/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_BLAS_H
#define TT_CORE_KERNELS_BLAS_H

#include "core/base/error.h"

struct tt_matmul; /* matmul.h */

/** One product of floats on the calling thread, by the library; grains, partial and scratch are not read. */
void tt_sgemm(const struct tt_matmul *product);

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
