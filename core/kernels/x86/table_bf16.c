/* SPDX-License-Identifier: MIT
 *
 * The slots that AVX512-BF16 replaces in AVX-512's table.
 */
#include "core/kernels/x86/simd.h"
#include "core/kernels/x86/x86.h"

const struct tt_kernels TT_ISA(tt_kernels) = {
    .name = "avx512_bf16",
    .attention_fwd_bf16 = TT_ISA(tt_attention_fwd_bf16),
    .attention_bwd_bf16 = TT_ISA(tt_attention_bwd_bf16),
    .bgemm = TT_ISA(tt_bgemm),
};
