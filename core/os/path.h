/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_PATH_H
#define TT_CORE_OS_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Paths and folders. An error is not an absence: only ENOENT means "not there". What leads nowhere however often it is
 * tried (a file in the place of a folder, a loop of links, a name that is too long) is TT_EDATA; any other failure of the
 * system is TT_EIO (TT_ENOMEM for want of memory). All carry the path and the reason. Interrupted and stale calls are tried
 * again a few times.
 */
enum tt_file_kind {
    TT_FILE_NONE, /* not there; with is_link: a link that leads to nothing */
    TT_FILE_REGULAR,
    TT_FILE_FOLDER,
    TT_FILE_OTHER, /* a pipe, a socket, a device */
};

/** What a path leads to, links followed. */
struct tt_path_info {
    enum tt_file_kind kind;
    bool is_link; /* the last part of the path is a symbolic link */
    int64_t bytes;
    uint64_t device, inode;
    double modified_sec; /* since 1970 */
};
int tt_path_look(const char *path, struct tt_path_info *ret_info) TT_MUST_CHECK;

/** Whether there is something at path, links followed. */
int tt_path_exists(const char *path, bool *ret_exists) TT_MUST_CHECK;

/** Whether path is a folder or a link to one; false where nothing is. */
int tt_path_is_folder(const char *path, bool *ret_is_folder) TT_MUST_CHECK;

/** The failure of a system call on a path: `cannot VERB 'PATH': REASON`, with a code by the rule above. */
int tt_path_fail(const char *verb, const char *path, int error);

/**
 * Whether a call that failed with `error` is worth another try: at once for EINTR, after a short pause for EAGAIN and
 * ESTALE, not for others and not for ever. tries: 0 before the first call.
 */
bool tt_path_again(int error, int *tries);

/** Names in a folder, sorted, without "." and ".."; the caller frees with tt_names_free. A missing folder is TT_EDATA. */
int tt_folder_list(const char *path, char ***ret_names, int *ret_n) TT_MUST_CHECK;

/** The same; a folder that is not there has no names. */
int tt_folder_list_found(const char *path, char ***ret_names, int *ret_n) TT_MUST_CHECK;
void tt_names_free(char **names, int n);

/** mkdir -p. */
int tt_folder_make(const char *path) TT_MUST_CHECK;

/** rm -rf of a folder of ours. A path that does not exist is success. Does not follow links. */
int tt_folder_remove(const char *path) TT_MUST_CHECK;

/** fsync of a folder, so that the names in it survive a power cut. */
int tt_folder_sync(const char *path) TT_MUST_CHECK;

/** Bytes that an unprivileged process can still write on path's file system; negative when unknown. */
int64_t tt_folder_free_bytes(const char *path);

#endif
