/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_CPU_H
#define TT_CORE_OS_CPU_H

#include <stdbool.h>

/**
 * Instruction sets that this processor has and the operating system supports (it must save their registers on a context
 * switch). False on every other architecture.
 */

/** AVX2 with FMA. */
bool tt_cpu_has_avx2(void);

/** AVX-512 F, BW, VL and DQ, and AVX2 with FMA. */
bool tt_cpu_has_avx512(void);

/** What tt_cpu_has_avx512 says, and AVX512-BF16. */
bool tt_cpu_has_avx512_bf16(void);

#endif
