/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_X86_ROW_SUM_H
#define TT_CORE_KERNELS_X86_ROW_SUM_H

#include "core/kernels/x86/simd.h"

/**
 * How a row is summed: ROW_SUMS vectors take turns, so that additions need not wait for each other; what is left at the
 * row's end goes to the first. The order is a function of the width alone.
 */
enum { ROW_SUMS = 4, ROW_STEP = ROW_SUMS * VF_LANES };

VF_INLINE float row_total(const vf *sum)
{
    return vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

#endif
