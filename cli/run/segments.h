/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SEGMENTS_H
#define TT_CLI_RUN_SEGMENTS_H

/**
 * Removes the shared-memory segments that killed Open MPI processes left: 4 MiB per rank. Removes only files that have
 * Open MPI's name for this host and user, belong to this user, have not changed for min_age_sec, are not mapped by any
 * process, and whose job has no process. If titan cannot read which segments a process of the user uses, nothing is
 * removed.
 *   shm, proc  "/dev/shm" and "/proc" outside of tests
 * Returns the number of removed files. Warns about the first file that cannot be removed. Otherwise it prints nothing,
 * since the user need not do anything.
 */
int tt_segments_sweep(const char *shm, const char *proc, double min_age_sec);

/** The number of segments that tt_segments_sweep would remove. */
int tt_segments_left(const char *shm, const char *proc, double min_age_sec);

#endif
