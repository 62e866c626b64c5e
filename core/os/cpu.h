/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_CPU_H
#define TT_CORE_OS_CPU_H

#include <stdbool.h>

/**
 * What this processor can do and the operating system lets programs use (registers that are not saved on a context
 * switch do not count). False on every other architecture.
 */

/** AVX2 with FMA. */
bool tt_cpu_has_avx2(void);

/** AVX-512 F, BW, VL and DQ, and AVX2 with FMA. */
bool tt_cpu_has_avx512(void);

#endif
