/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_LOCK_H
#define TT_CORE_OS_LOCK_H

#include <stdbool.h>

#include "core/base/error.h"

/**
 * A lock that keeps a second process out of a folder. It is one file with one holder, and it is
 * released however the holder dies.
 *
 * It is an flock. If the file system has none (ENOLCK, EOPNOTSUPP, ENOSYS), it is a record lock of the open file. If
 * there are none of these either, it is an owner file next to the lock file, PATH.owner, which names the host, the
 * boot, the process and when it began. An owner that is provably dead is replaced; an owner on another host is
 * believed. A note says what guards instead.
 */
struct tt_lock {
    int fd;      /* of the file, for what the holder writes into it; -1: none */
    char *path;  /* NULL: none */
    char *owner; /* the owner file that this process made; NULL: the system holds the lock */
};

#define TT_LOCK_NONE ((struct tt_lock){.fd = -1})

/**
 * Creates the file if need be and takes the lock without waiting. If another process (or another lock of this process)
 * has it, returns 0 with ret_taken true: nothing is held then, and ret_lock->fd can be read. Release ret_lock in both
 * cases. The folder must exist. Errors: TT_EIO.
 */
int tt_lock_take(const char *path, struct tt_lock *ret_lock, bool *ret_taken) TT_MUST_CHECK;

/**
 * Whether another process holds the lock of `path`, which nothing is written to. A missing file is not locked. For a
 * moment this keeps others from taking the lock, as if it were held. Errors: TT_EIO.
 */
int tt_lock_is_held(const char *path, bool *ret_held) TT_MUST_CHECK;

/**
 * Checks that the locked file is still the one at its path. TT_EDATA when its folder was removed, replaced or emptied,
 * so that the lock no longer keeps anyone out. TT_EIO when this cannot be determined. 0 when nothing is held.
 */
int tt_lock_check(const struct tt_lock *lock) TT_MUST_CHECK;

/** Gives the lock back and zeroes it; allowed when nothing is held. */
void tt_lock_release(struct tt_lock *lock);

#endif
