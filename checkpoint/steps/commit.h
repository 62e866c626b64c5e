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
 * Order, each step durable before the next: file under a temporary name, fsync, rename, fsync of its folder; last
 * the manifest the same way; then the folder's rename, which is the commit, and fsync of the folder that holds it.
 */

/** A file on its way: bytes go to `path`.tmp-RANDOM until tt_durable_end gives it its name. */
struct tt_durable {
    int fd;
    char *path;
    char *temporary;
    int rank; /* for fault injection; -1 where none is wanted */
    bool direct;
};

/** Creates path.tmp-RANDOM and reserves `bytes` for it, so that a full disk shows now. */
int tt_durable_begin(const char *path, int64_t bytes, int rank, struct tt_durable *ret_file) TT_MUST_CHECK;

/** Writes at offset; threads may write different parts at once. Long parts start on their way to the disk now. */
int tt_durable_write(const struct tt_durable *file, const void *bytes, size_t size, int64_t offset) TT_MUST_CHECK;

/**
 * Writes past the system's cache from now on, where the file system can, until turned off: then memory, offset and size of
 * every write are multiples of 4096. Saves the copy into the cache, and keeps there what training needs.
 */
void tt_durable_direct(struct tt_durable *file, bool on);

/** Cuts the file to its size, after writes that were longer to be aligned. */
int tt_durable_cut(const struct tt_durable *file, int64_t bytes) TT_MUST_CHECK;

/** fsync, close, rename to path. An fsync that failed is final: the file is given up. Always releases `file`. */
int tt_durable_end(struct tt_durable *file) TT_MUST_CHECK;

/** Gives up: closes and removes the temporary file. */
void tt_durable_cancel(struct tt_durable *file);

/** A small file at once. */
int tt_durable_put(const char *path, const void *bytes, size_t size) TT_MUST_CHECK;

/** Fails with need and have when `folder` has less room than `bytes`. Unknown room passes. */
int tt_commit_check_space(const char *folder, int64_t bytes) TT_MUST_CHECK;

/** fsync of a folder and every folder below it (files are durable already). */
int tt_commit_sync_tree(const char *folder) TT_MUST_CHECK;

/**
 * Makes parent/temporary appear as parent/name in one step, durably. With replace an existing `name` is exchanged and
 * then removed (`aside` is the name that it has meanwhile); without, an existing one is TT_EUSAGE and stays.
 */
int tt_commit_publish(const char *parent, const char *temporary, const char *name, const char *aside, bool replace,
                      int rank) TT_MUST_CHECK;

/**
 * The same where an existing `name` is not ours to remove: it is exchanged with the new one and stays as `keep`, a name that
 * is free. At every instant both are there, and one of them is `name`, where the file system can exchange folders.
 */
int tt_commit_publish_keeping(const char *parent, const char *temporary, const char *name, const char *keep,
                              int rank) TT_MUST_CHECK;

/** Removes parent/name so that it is never seen half removed: renamed to parent/aside first. */
int tt_commit_remove(const char *parent, const char *name, const char *aside, int rank) TT_MUST_CHECK;

#endif
