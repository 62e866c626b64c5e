/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DURABLE_DURABLE_H
#define TT_CHECKPOINT_DURABLE_DURABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Durable files and the atomic publication of a folder. Everything here is local; save.c makes the ranks agree.
 *
 * The actions, in order; each is durable before the next one begins: write each file under a temporary name, fsync it,
 * rename it, fsync its folder; do the same with the manifest last; then rename the folder, which is the commit, and
 * fsync the folder that contains it.
 */

/** A file that is being written: bytes go to `path`.tmp-RANDOM until tt_durable_end gives it its name. */
struct tt_durable {
    int fd;
    char *path;
    char *temporary;
    int rank; /* for fault injection; -1: no faults */
    bool direct;
};

/** Creates path.tmp-RANDOM and reserves `bytes` bytes for it, so that a full disk is noticed now. */
int tt_durable_begin(const char *path, int64_t bytes, int rank, struct tt_durable *ret_file) TT_MUST_CHECK;

/** Writes at offset; threads may write different parts at once. The system starts to write long parts to disk now. */
int tt_durable_write(const struct tt_durable *file, const void *bytes, size_t size, int64_t offset) TT_MUST_CHECK;

/**
 * From now on, until turned off, writes bypass the system's cache, if the file system supports this. Memory, offset and
 * size of every write must then be multiples of 4096. This avoids the copy into the cache and leaves the cache to
 * training.
 */
void tt_durable_direct(struct tt_durable *file, bool on);

/** Truncates the file to its size, after writes that were longer because of alignment. */
int tt_durable_cut(const struct tt_durable *file, int64_t bytes) TT_MUST_CHECK;

/** fsync, close, rename to path. After a failed fsync the file is abandoned. Always releases `file`. */
int tt_durable_end(struct tt_durable *file) TT_MUST_CHECK;

/** Abandons the file: closes and removes the temporary file. Does nothing if fd is -1, as after tt_durable_end. */
void tt_durable_cancel(struct tt_durable *file);

/** Writes the small file folder/name in a single call. */
int tt_durable_put(const char *folder, const char *name, const void *bytes, size_t size) TT_MUST_CHECK;

/** Fails, naming both sizes, if `folder` has less free space than `bytes`. Succeeds if the free space is unknown. */
int tt_commit_check_space(const char *folder, int64_t bytes) TT_MUST_CHECK;

/** fsyncs a folder and every folder below it (the files are already durable). */
int tt_commit_sync_tree(const char *folder) TT_MUST_CHECK;

/**
 * Makes parent/temporary appear as parent/name in one step, durably. An existing folder `name` is exchanged with it and
 * becomes parent/aside, which is then removed. With `keeps`, parent/aside stays; that name must not exist before. If
 * the file system can exchange folders, there is a folder `name` at every instant.
 */
int tt_commit_publish(const char *parent, const char *temporary, const char *name, const char *aside, bool keeps,
                      int rank) TT_MUST_CHECK;

/** Removes parent/name. Renames it to parent/aside first, so that nobody ever sees it half removed. */
int tt_commit_remove(const char *parent, const char *name, const char *aside, int rank) TT_MUST_CHECK;

/**
 * A folder that a command makes. The command fills it next to its final place, under a hidden name, and publishes it by
 * one rename, so that it appears complete or not at all. Use tt_durable_put for small files. Local.
 */
struct tt_output {
    char *parent, *name, *temporary, *aside;
    char *folder; /* the hidden folder that the files are written to */
    int lock_fd;  /* lock of that folder; other commands may remove an unlocked folder; -1: none */
};

/** Checks the path of an output before it is made: TT_EUSAGE if the output would replace the file or folder from which
 * it is made. */
int tt_output_check_apart(const char *path, const char *source) TT_MUST_CHECK;

/**
 * Begins an output. Makes the parent folder if it is missing; it must have space for `bytes`. Removes what a killed
 * command left of the same output.
 */
int tt_output_begin(const char *path, int64_t bytes, struct tt_output *ret_output) TT_MUST_CHECK;

/**
 * Removes the remains of killed or failed commands that made the output `name` in the folder `parent`. An output that
 * is being made is locked and stays. tt_output_begin does this too.
 */
int tt_output_sweep(const char *parent, const char *name) TT_MUST_CHECK;

/** Makes everything durable, publishes the folder, and releases `output`. On failure call tt_output_abandon. */
int tt_output_publish(struct tt_output *output) TT_MUST_CHECK;

/** Abandons the output and removes everything. Keeps this thread's error message. */
void tt_output_abandon(struct tt_output *output);

/** Copies the files of a folder whose names `want` accepts into the output. The folder may be missing. */
int tt_output_copy(const struct tt_output *output, const char *from_folder,
                   bool (*want)(const char *name)) TT_MUST_CHECK;

/**
 * Injected failures, to test the commit protocol: TITAN_FAULT=point:rank:action[,…] makes rank `rank` ('*': every rank)
 * fail at that point of a save, in the training thread or the writer's. Actions: kill (SIGKILL to itself), pause
 * (SIGSTOP, until somebody sends SIGCONT), enospc, eio (the call fails with that error). The code is always compiled
 * in; it costs one getenv per point, about a dozen per save.
 */
#define TT_FAULT_MAP(X)                                                                                   \
    X(begin)            /* every rank, before anything is written */                                      \
    X(mkdir)            /* rank 0, after the temporary folder is made */                                  \
    X(open)             /* writer, its file exists and is empty */                                        \
    X(allocate)         /* writer, its blocks are reserved */                                             \
    X(gather)           /* writer, half of a file that it gathers is written */                           \
    X(stage)            /* every rank, before the copy (with a writer thread) */                          \
    X(staged)           /* every rank, the thread is about to write */                                    \
    X(write)            /* writer, about half of a file is written */                                     \
    X(fsync)            /* writer, all bytes are written but not yet durable */                           \
    X(file_rename)      /* writer, the file is durable under its temporary name */                        \
    X(assets)           /* rank 0, before the assets */                                                   \
    X(written)          /* every rank, all its files are durable */                                       \
    X(collect)          /* every rank, before checksums are exchanged */                                  \
    X(manifest)         /* rank 0, before the manifest */                                                 \
    X(publish)          /* rank 0, complete under its temporary name */                                   \
    X(exchange)         /* rank 0, before an existing step is exchanged; an error: two renames instead */ \
    X(aside)            /* rank 0, between the two renames */                                             \
    X(published)        /* rank 0, renamed, but the folder is not yet durable */                          \
    X(replaced)         /* rank 0, an older checkpoint of the step is about to be removed */              \
    X(retention)        /* rank 0, before an old step is renamed away */                                  \
    X(retention_remove) /* rank 0, an old step is renamed but not yet removed */                          \
    X(end)              /* every rank */

/** Does what TITAN_FAULT requests at this point. Returns 0 if it requests nothing here, and always for rank -1. */
int tt_fault(const char *point, int rank) TT_MUST_CHECK;

#endif
