/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_X86_X86_H
#define TT_CORE_KERNELS_X86_X86_H

#include "core/kernels/kernels.h"

/**
 * The variants for x86-64. If a table leaves a slot NULL, the portable kernel is used (kernels.c). To add a kernel,
 * write it with simd.h in a file of this folder, as TT_ISA(tt_name), and name its slot in table.c (table_bf16.c for
 * AVX512-BF16).
 */
extern const struct tt_kernels tt_kernels_avx2;
extern const struct tt_kernels tt_kernels_avx512;
extern const struct tt_kernels tt_kernels_avx512_bf16; /* where a slot is NULL, avx512's is used */

#define TT_KERNEL(name, args)     \
    void tt_##name##_avx2 args;   \
    void tt_##name##_avx512 args; \
    void tt_##name##_avx512_bf16 args;
#include "core/kernels/kernels.def"
#undef TT_KERNEL

#endif
