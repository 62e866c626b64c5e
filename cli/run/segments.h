/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SEGMENTS_H
#define TT_CLI_RUN_SEGMENTS_H

/**
 * Removes the shared-memory segments that killed Open MPI processes left: 4 MiB per rank. Only removes files with Open
 * MPI's name for this host and user that belong to this user, have not changed for min_age_sec, are not mapped by any
 * process, and whose job has no process. If what one of the user's processes uses cannot be read, nothing is removed.
 *   shm, proc  "/dev/shm" and "/proc" outside of tests
 * Returns how many were removed. Warns of the first that cannot be removed; otherwise it is silent, since nobody has to
 * do anything about them.
 */
int tt_segments_sweep(const char *shm, const char *proc, double min_age_sec);

/** How many it would remove. */
int tt_segments_left(const char *shm, const char *proc, double min_age_sec);

#endif
