/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_LOCK_H
#define TT_CORE_OS_LOCK_H

#include <stdbool.h>

#include "core/base/error.h"

/**
 * A lock that keeps a second process out of a folder: one file, one holder, gone when the holder dies, however it dies.
 *
 * It is an flock. Where the file system has none (ENOLCK, EOPNOTSUPP, ENOSYS) it is a record lock of the open file, and
 * where there is none of these either an owner file beside it, PATH.owner, which names host, boot, process and its start:
 * an owner that is provably dead is replaced, one on another host is believed. A note says which guards instead.
 */
struct tt_lock {
    int fd;      /* of the file, for what the holder writes into it; -1: none */
    char *path;  /* NULL: none */
    char *owner; /* the owner file that this process made; NULL: the system holds the lock */
};

#define TT_LOCK_NONE ((struct tt_lock){.fd = -1})

/**
 * Creates the file if need be and takes the lock without waiting. Returns 0 with ret_taken true when another process (or
 * another lock of this one) has it: then ret_lock->fd can be read, and nothing is held. Release ret_lock in both cases.
 * The folder must exist. Errors: TT_EIO.
 */
int tt_lock_take(const char *path, struct tt_lock *ret_lock, bool *ret_taken) TT_MUST_CHECK;

/**
 * Whether the locked file is still the one at its path. TT_EDATA when its folder was removed, replaced or emptied: the
 * lock keeps nobody out any more. TT_EIO when that cannot be seen. Nothing held: 0.
 */
int tt_lock_check(const struct tt_lock *lock) TT_MUST_CHECK;

/** Gives the lock back and zeroes it; allowed when nothing is held. */
void tt_lock_release(struct tt_lock *lock);

#endif
