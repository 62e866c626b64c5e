/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_COMMIT_H
#define TT_CHECKPOINT_STEPS_COMMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Durable files and the atomic publication of a folder. Everything here is local; the ranks' agreement is in save.c.
 *
 * The order, in which each action is durable before the next one begins: write each file under a temporary name, fsync
 * it, rename it, fsync its folder; do the same with the manifest last; then rename the folder, which is the commit, and
 * fsync the folder that contains it.
 */

/** A file that is being written: bytes go to `path`.tmp-RANDOM until tt_durable_end gives it its name. */
struct tt_durable {
    int fd;
    char *path;
    char *temporary;
    int rank; /* for fault injection; -1 where none is wanted */
    bool direct;
};

/** Creates path.tmp-RANDOM and reserves `bytes` for it, so that a full disk is noticed now. */
int tt_durable_begin(const char *path, int64_t bytes, int rank, struct tt_durable *ret_file) TT_MUST_CHECK;

/** Writes at offset; threads may write different parts at once. The system starts to write long parts to disk now. */
int tt_durable_write(const struct tt_durable *file, const void *bytes, size_t size, int64_t offset) TT_MUST_CHECK;

/**
 * Makes writes bypass the system's cache from now on, until turned off, if the file system can. Memory, offset and
 * size of every write must then be multiples of 4096. This saves the copy into the cache and does not displace what
 * training needs there.
 */
void tt_durable_direct(struct tt_durable *file, bool on);

/** Truncates the file to its size, after writes that were longer because of alignment. */
int tt_durable_cut(const struct tt_durable *file, int64_t bytes) TT_MUST_CHECK;

/** fsync, close, rename to path. After a failed fsync the file is given up. Always releases `file`. */
int tt_durable_end(struct tt_durable *file) TT_MUST_CHECK;

/** Gives up: closes and removes the temporary file. */
void tt_durable_cancel(struct tt_durable *file);

/** Writes a small file in one call. */
int tt_durable_put(const char *path, const void *bytes, size_t size) TT_MUST_CHECK;

/**
 * Fails, naming both sizes, when `folder` has less free space than `bytes`. Succeeds when the free space is unknown.
 */
int tt_commit_check_space(const char *folder, int64_t bytes) TT_MUST_CHECK;

/** fsync of a folder and of every folder below it (the files are already durable). */
int tt_commit_sync_tree(const char *folder) TT_MUST_CHECK;

/**
 * Makes parent/temporary appear as parent/name in one step, durably. With `replace`, an existing `name` is exchanged
 * and then removed (`aside` is its name meanwhile). Without it, an existing `name` is TT_EUSAGE and stays.
 */
int tt_commit_publish(const char *parent, const char *temporary, const char *name, const char *aside, bool replace,
                      int rank) TT_MUST_CHECK;

/**
 * The same for an existing `name` that must not be removed: it is exchanged with the new one and stays as `keep`, which
 * must be a free name. If the file system can exchange folders, both exist at every instant and one of them is `name`.
 */
int tt_commit_publish_keeping(const char *parent, const char *temporary, const char *name, const char *keep,
                              int rank) TT_MUST_CHECK;

/** Removes parent/name. It is renamed to parent/aside first, so that it is never seen half removed. */
int tt_commit_remove(const char *parent, const char *name, const char *aside, int rank) TT_MUST_CHECK;

#endif
