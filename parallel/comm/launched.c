/* SPDX-License-Identifier: MIT
 *
 * The variables in which launchers (Open MPI's mpirun, PMIx, PMI, Slurm) tell a process its rank and their number.
 */
#include "parallel/comm/launched.h"

#include <limits.h>
#include <stdlib.h>

int tt_launched_ranks(const char **ret_variable)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = getenv(variables[i]);
        long n = text ? strtol(text, NULL, 10) : 0;

        /* Slurm sets its variable in interactive shells too, as a step of one task. */
        if (n > 1 || (n == 1 && i + 1 < sizeof variables / sizeof *variables)) {
            *ret_variable = variables[i];
            return n < INT_MAX ? (int)n : INT_MAX;
        }
    }
    return 0;
}

int tt_launched_rank(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]))
            return (int)strtol(getenv(variables[i]), NULL, 10);
    return 0;
}
