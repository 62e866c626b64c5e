/* SPDX-License-Identifier: MIT
 *
 * The slots that an instruction set replaces.
 */
#include "core/kernels/x86/simd.h"
#include "core/kernels/x86/x86.h"

#define SLOT(name) .name = TT_ISA(tt_##name)

const struct tt_kernels TT_ISA(tt_kernels) = {
#if defined(__AVX512F__)
    .name = "avx512",
#else
    .name = "avx2",
#endif
    SLOT(adamw),
    SLOT(add),
    SLOT(attention_fwd),
    SLOT(attention_bwd),
    SLOT(bf16_round),
    SLOT(bf16_widen),
    SLOT(cross_entropy),
    SLOT(cross_entropy_grad),
    SLOT(exp),
    SLOT(gelu_bwd),
    SLOT(gelu_fwd),
    SLOT(gemv),
    SLOT(layernorm_bwd),
    SLOT(layernorm_fwd),
    SLOT(rmsnorm_bwd),
    SLOT(rmsnorm_fwd),
    SLOT(rope),
    SLOT(scatter_add),
    SLOT(squares),
    SLOT(sum_rows),
    SLOT(swiglu_bwd),
    SLOT(swiglu_fwd),
};
