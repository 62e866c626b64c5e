/* SPDX-License-Identifier: MIT
 *
 * Elementwise kernels in AVX2 or AVX-512. Every element goes through the same operations wherever it stands, tails
 * included, so results do not depend on where a range begins.
 */
#include "core/ops/x86/simd.h"
#include "core/ops/x86/x86.h"

void TT_ISA(tt_add)(float *y, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_add(vf_load(a + i), vf_load(b + i)));
    if (i < n)
        vf_store_n(y + i, vf_add(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i)), n - i);
}

void TT_ISA(tt_exp)(float *y, const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_exp(vf_load(x + i)));
    if (i < n)
        vf_store_n(y + i, vf_exp(vf_load_n(x + i, n - i)), n - i);
}
