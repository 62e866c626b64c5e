/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_START_WATCH_H
#define TT_PARALLEL_COMM_START_WATCH_H

/**
 * Ends a process whose MPI library does not return from its start. Such a call cannot be cancelled, and there is no
 * communicator yet that could end the job. Uses SIGALRM and the interval timer between begin and end. Time in which the
 * process is stopped does not count. Only one watch at a time.
 */

/**
 * After `seconds`, writes the message to standard error and exits with exit_code. Higher ranks wait a little longer, so
 * that one rank reports for all. The message is copied.
 */
void tt_start_watch_begin(double seconds, int rank, int exit_code, const char *message);
void tt_start_watch_end(void);

#endif
