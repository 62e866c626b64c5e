/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_BLAS_H
#define TT_CORE_KERNELS_BLAS_H

#include <stdbool.h>

#include "core/base/error.h"

struct tt_matmul; /* matmul.h */

/** One product of floats on the calling thread, by the library; grains, partial and scratch are not read. */
void tt_sgemm(const struct tt_matmul *product);

/** Whether products of the kernel variant in use are the library's. */
bool tt_blas_is_needed(void);

/** Loads the library, the first time. TT_EUSAGE if it is not there, TT_EFIT if the address space has no room for it. */
int tt_blas_load(void) TT_MUST_CHECK;

/**
 * For the start of work with products, before ranks depend on it; does nothing if the library is not needed. Loads it,
 * and checks that the address space has room for the buffers of products on that many threads at once: OpenBLAS maps
 * 128 MiB for each thread when it first computes, and retries for ever if a limit (`ulimit -v`, strict overcommit)
 * refuses. Errors: those of tt_blas_load; TT_EFIT if the buffers do not fit.
 */
int tt_blas_check_room(int threads) TT_MUST_CHECK;

/** Name and version of the BLAS library, with the kernels it chose for this CPU; "none" if it cannot be loaded. */
const char *tt_blas_library(void);

/** The name of the processor's kernels that the library has chosen; "none" as above. Bits depend on it. */
const char *tt_blas_kernel(void);

#endif
