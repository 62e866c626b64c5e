/* SPDX-License-Identifier: MIT
 *
 * The slots that an instruction set replaces.
 */
#include "core/kernels/kernels.h"

#define SLOT(name) .name = TT_ISA(tt_##name)

const struct tt_kernels TT_ISA(tt_kernels) = {
#if defined(__AVX512BF16__) /* only what differs from AVX-512's table */
    .name = "avx512_bf16",
    SLOT(attention_fwd_bf16),
    SLOT(attention_bwd_bf16),
    SLOT(bgemm),
#else
#if defined(__AVX512F__)
    .name = "avx512",
#else
    .name = "avx2",
#endif
    SLOT(adamw),
    SLOT(adamw_bf16),
    SLOT(add),
    SLOT(add_bf16),
    SLOT(attention_fwd),
    SLOT(attention_fwd_bf16),
    SLOT(attention_bwd),
    SLOT(attention_bwd_bf16),
    SLOT(attention_row_bf16),
    SLOT(bf16_round),
    SLOT(bf16_widen),
    SLOT(bgemm),
    SLOT(cross_entropy),
    SLOT(cross_entropy_grad),
    SLOT(cross_entropy_grad_bf16),
    SLOT(exp),
    SLOT(geglu_bwd),
    SLOT(geglu_bwd_bf16),
    SLOT(geglu_fwd),
    SLOT(geglu_fwd_bf16),
    SLOT(gelu_bwd),
    SLOT(gelu_bwd_bf16),
    SLOT(gelu_erf_bwd),
    SLOT(gelu_erf_bwd_bf16),
    SLOT(gelu_erf_fwd),
    SLOT(gelu_erf_fwd_bf16),
    SLOT(gelu_fwd),
    SLOT(gelu_fwd_bf16),
    SLOT(gemv),
    SLOT(gemv_bf16),
    SLOT(layernorm_bwd),
    SLOT(layernorm_bwd_bf16),
    SLOT(layernorm_fwd),
    SLOT(layernorm_fwd_bf16),
    SLOT(mix_rows),
    SLOT(mix_rows_bf16),
    SLOT(mix_rows_bwd),
    SLOT(mix_rows_bwd_bf16),
    SLOT(rmsnorm_bwd),
    SLOT(rmsnorm_bwd_bf16),
    SLOT(rmsnorm_fwd),
    SLOT(rmsnorm_fwd_bf16),
    SLOT(rope),
    SLOT(rope_bf16),
    SLOT(scale),
    SLOT(scale_bf16),
    SLOT(scatter_add),
    SLOT(scatter_add_bf16),
    SLOT(sgemm),
    SLOT(soft_cap),
    SLOT(softmax_grad),
    SLOT(softmax_grad_bf16),
    SLOT(softmax_sum),
    SLOT(squares),
    SLOT(sum_rows),
    SLOT(sum_rows_bf16),
    SLOT(swiglu_bwd),
    SLOT(swiglu_bwd_bf16),
    SLOT(swiglu_fwd),
    SLOT(swiglu_fwd_bf16),
#endif
};
