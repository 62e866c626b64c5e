/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_START_WATCH_H
#define TT_PARALLEL_COMM_START_WATCH_H

/**
 * Ends a process whose MPI library does not come back from its start: calls into it cannot be given up, and there is no
 * communicator yet that could end the job. Uses SIGALRM and the interval timer between begin and end; time in which the
 * process was stopped does not count. Once at a time.
 */

/**
 * After `seconds`, and some more the higher the rank so that one rank speaks for all, writes the message to standard error
 * and exits with exit_code. The message is copied.
 */
void tt_start_watch_begin(double seconds, int rank, int exit_code, const char *message);
void tt_start_watch_end(void);

#endif
