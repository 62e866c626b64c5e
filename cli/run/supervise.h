/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SUPERVISE_H
#define TT_CLI_RUN_SUPERVISE_H

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Runs a launcher (mpirun, srun) as a child and passes on requests to stop in a way that lets the ranks save. mpirun
 * itself kills its ranks within two seconds of Ctrl-C, SIGTERM or SIGHUP and then always returns 1, but it forwards
 * SIGUSR1 and SIGUSR2. So the launcher gets its own process group, which a terminal's Ctrl-C does not reach, and
 *
 *     SIGTERM, SIGHUP, SIGUSR1   become SIGUSR1
 *     SIGINT, SIGUSR2            become SIGUSR2
 *
 * The first signal is passed on, and the first two interrupts (SIGINT, SIGUSR2): other signals after the first change
 * nothing (cli/run/signals.h). The third interrupt ends the launcher with SIGTERM, the fourth with SIGKILL; interrupts
 * within a second count once.
 * Its output is passed on, without mpirun's remarks about exit codes (tt_remarks), as long as this process's output is
 * open; afterwards it is dropped, since mpirun would end the job if its output were closed.
 *
 *   argv     ends with NULL
 *   ret_why  gets what the launcher said about a rank that a signal ended; the caller releases it
 * Returns the exit code of the launcher (128 + signal when it was killed), or TT_EUSAGE when it cannot be run.
 */
int tt_supervise(char *const *argv, struct tt_text *ret_why) TT_MUST_CHECK;

#endif
