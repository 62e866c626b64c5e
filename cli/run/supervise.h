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
 * within a second count as one. This process passes on the launcher's output, without mpirun's remarks about exit codes
 * (tt_remarks), as long as its own output is open. After that, the launcher's output is dropped but still read, since
 * mpirun would end the job if its output were closed.
 *
 *   argv     ends with NULL
 *   ret_why  gets the launcher's words about a rank that a signal ended; the caller releases it
 * Returns the exit code of the launcher (128 + signal when it was killed), or TT_EUSAGE when it cannot be run.
 */
int tt_supervise(char *const *argv, struct tt_text *ret_why) TT_MUST_CHECK;

/* --- mpirun's remarks --- */

/**
 * Filters mpirun's remarks out of its standard error. mpirun reports exit codes other than 0 in one or two blocks
 * between lines of dashes, and forwarded signals in a line. The ranks themselves say why they end, so these remarks
 * only distract. Other blocks, such as those about a crash or about missing slots, are passed on.
 */
struct tt_remarks {
    struct tt_text held;                                                  /* bytes that may belong to a remark */
    enum { TT_REMARKS_LINE_START, TT_REMARKS_LINE, TT_REMARKS_BLOCK } at; /* a held line is still at its start */
};

/** Appends the next bytes to `out` unless they belong to a remark. Holds bytes back until it is clear whether they
 * do. */
void tt_remarks_pass(struct tt_remarks *r, const char *bytes, size_t n, struct tt_text *out);

/** At the end of the output, appends the text that is still held back. */
void tt_remarks_end(struct tt_remarks *r, struct tt_text *out);

#endif
