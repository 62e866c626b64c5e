/* SPDX-License-Identifier: MIT
 *
 * titan version.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "core/ops/blas.h"
#include "parallel/comm_mpi.h"

static const char *instruction_set(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return "AVX-512";
    if (__builtin_cpu_supports("avx2"))
        return "AVX2";
#endif
    return "generic";
}

void tt_cli_print_version(void)
{
    (void)printf("titan %s\nMPI  %s\nBLAS %s\nCPU  %s\n", TITAN_VERSION, tt_comm_mpi_library(), tt_blas_library(),
                 instruction_set());
}
