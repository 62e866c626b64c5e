/* SPDX-License-Identifier: MIT
 *
 * The slots that an instruction set takes over.
 */
#include "core/ops/x86/simd.h"
#include "core/ops/x86/x86.h"

#define SLOT(name) .name = TT_ISA(tt_##name)

const struct tt_kernels TT_ISA(tt_kernels) = {
#if defined(__AVX512F__)
    .name = "avx512",
#else
    .name = "avx2",
#endif
    SLOT(add),
    SLOT(attention_fwd),
    SLOT(attention_bwd),
    SLOT(cross_entropy),
    SLOT(cross_entropy_grad),
    SLOT(exp),
    SLOT(gemv),
};
