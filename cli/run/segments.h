/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SEGMENTS_H
#define TT_CLI_RUN_SEGMENTS_H

/**
 * Removes the shared-memory segments that Open MPI's processes left behind when they were killed: 4 MiB a rank, for ever.
 * Only files with Open MPI's name for this host and user, that belong to this user, have not changed for min_age_sec, and
 * that no process has mapped. If it cannot be seen what one of the user's processes has mapped, nothing is removed.
 *   shm, proc  "/dev/shm" and "/proc" outside of tests
 * Returns how many were removed. Failures leave files where they are.
 */
int tt_segments_sweep(const char *shm, const char *proc, double min_age_sec);

#endif
