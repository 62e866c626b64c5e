/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_LOCK_H
#define TT_CORE_OS_LOCK_H

#include <stdbool.h>

#include "core/base/error.h"

/**
 * A lock that keeps a second process out of a folder. It is a file with at most one holder, and it is released no
 * matter how the holder ends.
 *
 * It is an flock. If the file system does not support that (ENOLCK, EOPNOTSUPP, ENOSYS), it is a record lock of the
 * open file. If there are no record locks either, it is an owner file next to the lock file, PATH.owner, which names
 * the host, the boot, the process and the time of its start. An owner that is provably dead is replaced; an owner on
 * another host counts as alive. A note says which kind of lock is used instead.
 */
struct tt_lock {
    int fd;      /* the open lock file, in which the holder may write; -1: none */
    char *path;  /* NULL: none */
    char *owner; /* the owner file that this process made; NULL: the system holds the lock */
};

#define TT_LOCK_NONE ((struct tt_lock){.fd = -1})

/**
 * Creates the file if need be and takes the lock without waiting. If another process (or another lock of this process)
 * holds it, returns 0 with ret_taken true: ret_lock then holds nothing, and ret_lock->fd can be read. Release ret_lock
 * in both cases. The folder must exist. Errors: TT_EIO.
 */
int tt_lock_take(const char *path, struct tt_lock *ret_lock, bool *ret_taken) TT_MUST_CHECK;

/**
 * Whether another process holds the lock of `path`. Writes nothing to the file; a missing file is not locked. For a
 * moment, other processes find the lock taken. Errors: TT_EIO.
 */
int tt_lock_is_held(const char *path, bool *ret_held) TT_MUST_CHECK;

/**
 * Checks that the locked file is still the one at its path. TT_EDATA if its folder was removed, replaced or emptied, so
 * that the lock no longer keeps others out. TT_EIO if that cannot be determined. 0 if nothing is held.
 */
int tt_lock_check(const struct tt_lock *lock) TT_MUST_CHECK;

/** Releases the lock and zeroes it; allowed if nothing is held. */
void tt_lock_release(struct tt_lock *lock);

#endif
