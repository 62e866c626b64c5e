/* SPDX-License-Identifier: MIT
 *
 * Processor features. The compiler's run time reads CPUID and, with XGETBV, what the operating system saves.
 */
#include "core/os/cpu.h"

bool tt_cpu_has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

bool tt_cpu_has_avx512(void)
{
#if defined(__x86_64__)
    return tt_cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
    return false;
#endif
}

bool tt_cpu_has_avx512_bf16(void)
{
#if defined(__x86_64__)
    return tt_cpu_has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}
