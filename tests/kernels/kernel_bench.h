/* SPDX-License-Identifier: MIT */
#ifndef TT_KERNELS_KERNEL_BENCH_H
#define TT_KERNELS_KERNEL_BENCH_H

#include "core/kernels/kernels.h"

/** Measures how fast each kernel is on one thread, for kernelcheck --bench (core/kernels/kernels.def: adding one). */
struct kernel_time {
    const char *kernel, *variant;
    char shape[64];
    double sec;   /* median of one call */
    double flops; /* of one call; 0: memory limits the kernel */
    bool bf16;    /* the products are of bfloat16 */
    double bytes; /* read and written at least once by one call; 0: arithmetic limits the kernel */
};

/** The number of kernels with a case, and the name of the i-th. */
int kernel_bench_count(void);
const char *kernel_bench_name(int i);

/** Whether a variant has its own code for the i-th kernel; otherwise it uses the portable one. */
bool kernel_bench_is_own(int i, const struct tt_kernels *variant);

/**
 * Times kernel i of a variant: calls it for about `seconds`, at least `fewest` times.
 *   elements  of each array, a power of two of at least 4096: small arrays stay in the caches; attention
 *             has its own sizes
 */
void kernel_bench_run(int i, const struct tt_kernels *variant, int64_t elements, double seconds, int fewest,
                      struct kernel_time *ret_time);

#endif
