/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_X86_X86_H
#define TT_CORE_KERNELS_X86_X86_H

#include "core/kernels/kernels.h"

/**
 * The variants for x86-64. A slot that a table leaves NULL takes the portable kernel (kernels.c). A new kernel: write it
 * in a file of this folder over simd.h, as TT_ISA(tt_name), and name its slot in table.c.
 */
extern const struct tt_kernels tt_kernels_avx2;
extern const struct tt_kernels tt_kernels_avx512;

#define TT_KERNEL(name, args)   \
    void tt_##name##_avx2 args; \
    void tt_##name##_avx512 args;
#include "core/kernels/kernels.def"
#undef TT_KERNEL

#endif
