/* SPDX-License-Identifier: MIT
 *
 * e^x in AVX2 or AVX-512; not an op (core/kernels/exp.c).
 */
#include "core/kernels/x86/simd.h"
#include "core/kernels/x86/x86.h"

void TT_ISA(tt_exp)(float *y, const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_exp(vf_load(x + i)));
    if (i < n)
        vf_store_n(y + i, vf_exp(vf_load_n(x + i, n - i)), n - i);
}
