/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_KERNEL_BENCH_H
#define TT_CORE_KERNELS_KERNEL_BENCH_H

#include "core/kernels/kernels.h"

/**
 * How fast each kernel is on one thread.
 * `titan bench` and kernelcheck --bench print it. To add a kernel: a row of the table in kernel_bench.c.
 */
struct tt_kernel_time {
    const char *kernel, *variant;
    char shape[64];
    double sec;   /* median of one call */
    double flops; /* of one call; 0: the kernel is bound by memory */
    double bytes; /* read and written at least once by one call; 0: bound by arithmetic */
};

/** How many kernels have a case, and the name of the i-th. */
int tt_kernel_bench_count(void);
const char *tt_kernel_bench_name(int i);

/**
 * Whether a variant has code of its own for the i-th kernel: a variant for an instruction set takes the portable one
 * where it has none.
 */
bool tt_kernel_bench_is_own(int i, const struct tt_kernels *variant);

/**
 * Times kernel i of a variant: calls it for about `seconds`, at least `fewest` times.
 *   elements  of each array, a power of two from 4096 on: small ones stay in the caches; attention has its own
 */
void tt_kernel_bench_run(int i, const struct tt_kernels *variant, int64_t elements, double seconds, int fewest,
                         struct tt_kernel_time *ret_time);

#endif
