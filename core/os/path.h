/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_PATH_H
#define TT_CORE_OS_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Paths and folders. An error does not mean that a file is absent: only ENOENT does. A path that cannot work however
 * often it is tried (a file in place of a folder, a loop of links, a name that is too long) is TT_EDATA. Any other
 * failure of the system is TT_EIO, or TT_ENOMEM if memory is short. All messages give the path and the reason.
 * Interrupted and stale calls are repeated a few times.
 */
enum tt_file_kind {
    TT_FILE_NONE, /* nothing; with is_link: a dangling link */
    TT_FILE_REGULAR,
    TT_FILE_FOLDER,
    TT_FILE_OTHER, /* a pipe, a socket, a device */
};

/** What a path leads to, following links. */
struct tt_path_info {
    enum tt_file_kind kind;
    bool is_link; /* the last part of the path is a symbolic link */
    int64_t bytes;
    uint64_t device, inode;
    double modified_sec; /* since 1970 */
};
int tt_path_look(const char *path, struct tt_path_info *ret_info) TT_MUST_CHECK;

/** Whether something exists at path, following links. */
int tt_path_exists(const char *path, bool *ret_exists) TT_MUST_CHECK;

/**
 * For an error that may be due to a missing file: if nothing exists at path, the error becomes one about key, which
 * names the file. Returns rc; the message stays.
 */
int tt_path_blame_missing(int rc, const char *path, enum tt_key key);

/** The path of the running program, links resolved; NULL if the system does not tell. The caller frees it (tt_free). */
char *tt_path_of_program(void);

/** Whether path is a folder or a link to one; false if nothing is there. */
int tt_path_is_folder(const char *path, bool *ret_is_folder) TT_MUST_CHECK;

/**
 * For messages about what is missing: "; from the current folder it is '/data/text.txt'", or "" for a path that does
 * not depend on that folder. The caller frees it (tt_free).
 */
char *tt_path_seen(const char *path);

/** The failure of a system call on a path: `cannot VERB 'PATH': REASON`, with a code by the rule above. */
int tt_path_fail(const char *verb, const char *path, int error);

/**
 * Whether to repeat a call that failed with `error`: at once after EINTR, after a short pause for EAGAIN and ESTALE,
 * never for others, and only a limited number of times. tries: 0 before the first call.
 */
bool tt_path_again(int error, int *tries);

/**
 * Names in a folder, sorted, without "." and ".."; the caller frees with tt_names_free. A missing folder is TT_EDATA.
 */
int tt_folder_list(const char *path, char ***ret_names, int *ret_n) TT_MUST_CHECK;

/** The same, but a missing folder has no names. */
int tt_folder_list_found(const char *path, char ***ret_names, int *ret_n) TT_MUST_CHECK;
void tt_names_free(char **names, int n);

/** mkdir -p. */
int tt_folder_make(const char *path) TT_MUST_CHECK;

/** rm -rf of one of titan's folders. A path that does not exist is success. Does not follow links. */
int tt_folder_remove(const char *path) TT_MUST_CHECK;

/** fsync of a folder, so that the names in it survive a power cut. */
int tt_folder_sync(const char *path) TT_MUST_CHECK;

/** Bytes that an unprivileged process can still write on path's file system; negative when unknown. */
int64_t tt_folder_free_bytes(const char *path);

#endif
