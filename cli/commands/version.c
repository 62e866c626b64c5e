/* SPDX-License-Identifier: MIT
 *
 * titan version.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/kernels/blas.h"
#include "core/kernels/kernels.h"
#include "core/os/cpu.h"
#include "parallel/comm/mpi.h"
#include "trainer/run/revision.h"

static const char *instruction_set(void)
{
    return tt_cpu_has_avx512() ? "AVX-512" : tt_cpu_has_avx2() ? "AVX2" : "generic";
}

int tt_cli_print_version(bool is_json)
{
    const char *revision = tt_revision();

    if (is_json)
        return tt_cli_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "version", TITAN_VERSION, "git", revision,
                                           "mpi", tt_comm_mpi_library(), "blas", tt_blas_library(), "cpu",
                                           instruction_set(), "kernels", tt_kernels()->name));
    tt_print("titan %s%s%s%s\nMPI  %s\nBLAS %s\nCPU  %s, kernels %s\n", TITAN_VERSION, revision[0] ? " (git " : "",
             revision, revision[0] ? ")" : "", tt_comm_mpi_library(), tt_blas_library(), instruction_set(),
             tt_kernels()->name);
    return tt_cli_finish();
}
