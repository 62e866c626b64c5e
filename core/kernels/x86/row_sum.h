/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_X86_ROW_SUM_H
#define TT_CORE_KERNELS_X86_ROW_SUM_H

#include "core/kernels/x86/simd.h"

/**
 * How a row is summed: ROW_SUMS vectors take turns, so that additions need not wait for each other; the remainder at
 * the row's end is added to the first. The order depends on the width only.
 */
enum { ROW_SUMS = 4, ROW_STEP = ROW_SUMS * VF_LANES };

VF_INLINE float row_total(const vf *sum)
{
    return vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

#endif
