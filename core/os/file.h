/* SPDX-License-Identifier: MIT */
#ifndef TT_OS_FILE_H
#define TT_OS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

struct json_t;

/**
 * Paths and folders. An error does not mean that a file is absent: only ENOENT does. A path that can never work (a file
 * in place of a folder, a loop of links, a name that is too long) is TT_EDATA. Any other failure of the system is
 * TT_EIO, or TT_ENOMEM if memory is short. All messages give the path and the reason. Interrupted and stale calls are
 * repeated a few times.
 */
enum tt_file_kind {
    TT_FILE_NONE, /* nothing; with is_link: a dangling link */
    TT_FILE_REGULAR,
    TT_FILE_FOLDER,
    TT_FILE_OTHER, /* a pipe, a socket, a device */
};

/** What is at a path, following links. */
struct tt_path_info {
    enum tt_file_kind kind;
    bool is_link; /* the last part of the path is a symbolic link */
    int64_t bytes;
    uint64_t device, inode;
    double modified_sec; /* since 1970 */
};
int tt_path_look(const char *path, struct tt_path_info *ret_info) TT_MUST_CHECK;

/** Whether anything exists at path, or at folder/name; whether path is a folder. Links are followed. */
int tt_path_exists(const char *path, bool *ret_exists) TT_MUST_CHECK;
int tt_path_has(const char *folder, const char *name, bool *ret_has) TT_MUST_CHECK;
int tt_path_is_folder(const char *path, bool *ret_is_folder) TT_MUST_CHECK;

/**
 * For an error that a missing file may have caused: if nothing exists at path, attributes this thread's error to `key`,
 * which names the file. Returns rc; the message stays.
 */
int tt_path_blame_missing(int rc, const char *path, enum tt_key key);

/** The path of the running program, links resolved; NULL if the system does not tell. The caller frees it (tt_free). */
char *tt_path_of_program(void);

/**
 * For messages about a missing file: "; from the current folder it is '/data/text.txt'", or "" if the path does not
 * depend on the current folder. The caller frees it (tt_free).
 */
char *tt_path_seen(const char *path);

/**
 * Sets the error for a failed system call on a path: `cannot VERB 'PATH': REASON`, with a code according to the rule
 * above.
 */
int tt_path_fail(const char *verb, const char *path, int error);

/**
 * Whether to repeat a call that failed with `error`: at once after EINTR, after a short pause for EAGAIN and ESTALE,
 * never for others, and only a limited number of times. tries: 0 before the first call.
 */
bool tt_path_again(int error, int *tries);

/**
 * Names in a folder, sorted, without "." and ".."; the caller frees them with tt_names_free. A missing folder is
 * TT_EDATA; in tt_folder_list_found it is empty.
 */
int tt_folder_list(const char *path, char ***ret_names, int *ret_n) TT_MUST_CHECK;
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

/**
 * Files: whole reads and durable writes. A failure of the system is TT_EIO with the path and the reason. TT_EDATA means
 * that the file itself is wrong: it is missing (the message suggests a similar name in the same folder), not a regular
 * file, too large, or truncated.
 */
enum { TT_RANDOM_WORD_BYTES = 17 };

/** The largest stored file that is read whole, in bytes: far larger than any manifest or tokenizer. */
#define TT_FILE_MOST ((int64_t)1 << 30)

/**
 * Reads a whole stored file: a regular file (it never waits for a pipe or a device) of at most TT_FILE_MOST bytes.
 * The caller frees ret_text (tt_free); it ends with an extra 0 byte, which size does not count.
 */
int tt_file_read(const char *path, char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/**
 * Reads a file that the user names to its end. It may be a pipe (process substitution); it may have at most `most`
 * bytes.
 */
int tt_file_read_any(const char *path, int64_t most, char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/**
 * Opens a stored file for reading. TT_EDATA if it is not a regular file; the message says what it is. The caller closes
 * ret_fd.
 */
int tt_file_open(const char *path, int *ret_fd, int64_t *ret_bytes) TT_MUST_CHECK;

/** Opens a regular file for appending and creates it if it is missing. TT_EDATA if something else is at path. */
int tt_file_append(const char *path, int *ret_fd) TT_MUST_CHECK;

/** A regular file mapped read-only. Zero-initialise; release when done. An empty file has data NULL and size 0. */
struct tt_mapping {
    const uint8_t *data;
    size_t size;
};
int tt_mapping_open(const char *path, struct tt_mapping *ret_mapping) TT_MUST_CHECK;
void tt_mapping_release(struct tt_mapping *mapping);

/** TT_EIO, "cannot WRITE 'PATH': why", with help if a limit is reached or the disk is full; `advice` is a further
 * remedy, such as "keep fewer checkpoints" (NULL: none). */
int tt_file_fail(const char *what, const char *path, int error, const char *advice) TT_MUST_CHECK;

/**
 * Writes all bytes to fd at its current position. Continues after short writes and interrupts, and waits for a full
 * pipe or terminal that does not block. Returns 0 or an errno, and sets no message. Signal handlers may call it.
 */
int tt_file_put(int fd, const void *bytes, size_t size);

/** The same at offset, with a message by tt_file_fail, which uses path and advice. */
int tt_file_pwrite(int fd, const char *path, const void *bytes, size_t size, int64_t offset,
                   const char *advice) TT_MUST_CHECK;

/** Reads exactly size bytes at offset; a short file is TT_EDATA ("truncated"). */
int tt_file_pread(int fd, const char *path, void *bytes, size_t size, int64_t offset) TT_MUST_CHECK;

/**
 * Replaces path durably: writes path.tmp-RANDOM, fsyncs, renames, fsyncs the folder. Readers see the old file or the
 * new. TT_EDATA if something other than a regular file is at path. Removes temporary files of this path that killed
 * processes left. The second function calls `write` to write the content to fd, the file with the temporary name.
 */
int tt_file_replace(const char *path, const void *bytes, size_t size) TT_MUST_CHECK;
int tt_file_replace_by(const char *path, int (*write)(void *arg, int fd, const char *name), void *arg) TT_MUST_CHECK;

/**
 * The same for two files that belong together. Both are written before the first is renamed, and `main` is renamed
 * last, after an old `main` was removed. So if `main` exists, the `other` file that belongs to it does too.
 */
struct tt_new_file {
    const char *path;
    const void *bytes;
    size_t size;
};
int tt_file_replace_pair(struct tt_new_file main, struct tt_new_file other) TT_MUST_CHECK;

/**
 * Creates path.tmp-RANDOM, to be written and then renamed to `path`; anything at `path` must be a regular file
 * (otherwise TT_EDATA). The file is always new (O_EXCL), so no two processes share one, even on different hosts. It is
 * locked, if the file system has locks, until ret_fd is closed, so that a sweep does not remove it. The caller frees
 * ret_name (tt_free) and closes ret_fd. The second function makes a folder, prefix-RANDOM.
 */
int tt_file_temporary(const char *path, char **ret_name, int *ret_fd) TT_MUST_CHECK;
int tt_folder_temporary(const char *prefix, char **ret_name) TT_MUST_CHECK;

/**
 * Durably renames a file of tt_file_temporary to its final name: fsync, rename, fsync of the folder. Then frees *name
 * and sets it to NULL. Close fd only afterwards, since sweeps remove files without a lock.
 */
int tt_file_complete(const char *path, char **name, int fd) TT_MUST_CHECK;

/** Removes a file unless a living process has locked it; the second function does this for all path.tmp-RANDOM. */
void tt_file_sweep(const char *path);
void tt_file_sweep_beside(const char *path);

/** Whether tt_file_temporary may have made this name from a path that ends in `stem`. */
bool tt_file_is_temporary(const char *name, const char *stem);

/** Reads and parses a file of JSON (tt_json_parse). The caller calls json_decref. */
int tt_json_load(const char *path, struct json_t **ret_json) TT_MUST_CHECK;

/** Writes indented JSON (tt_json_dump) durably, by tt_file_replace. */
int tt_json_save(const char *path, const struct json_t *json) TT_MUST_CHECK;

/**
 * The first function makes a word of 16 random hexadecimal digits, for names; the second tells whether a text is such a
 * word.
 */
void tt_random_word(char ret_word[TT_RANDOM_WORD_BYTES]);
bool tt_random_is_word(const char *text);

/** Seconds since an arbitrary start (monotonic), and since 1970 (wall clock). */
double tt_clock_sec(void);
double tt_clock_wall_sec(void);

#endif
