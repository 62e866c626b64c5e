/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_FILE_H
#define TT_CORE_OS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/os/path.h"

/**
 * Files: whole reads, durable writes. A failure of the system is TT_EIO with the path and the reason. TT_EDATA says that the
 * file itself is wrong: it is missing (a similar name in the same folder is given), not a regular file, too large, cut short.
 */
enum { TT_RANDOM_WORD_BYTES = 17 };

/** Most bytes of a stored file that is read whole: far more than any manifest or tokenizer has. */
#define TT_FILE_MOST ((int64_t)1 << 30)

/**
 * Reads a stored file whole: a regular file (never waits for a pipe or a device) of at most `most` bytes. ret_text is the
 * caller's (tt_free), ends with an extra 0 byte that size does not count. tt_file_read: at most TT_FILE_MOST.
 */
int tt_file_read_most(const char *path, int64_t most, char **ret_text, size_t *ret_size) TT_MUST_CHECK;
int tt_file_read(const char *path, char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/** Reads what a user names, which may be a pipe (process substitution): to its end, at most `most` bytes. */
int tt_file_read_any(const char *path, int64_t most, char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/** Opens a stored file for reading: TT_EDATA with what it is, if it is not a regular file. ret_fd is the caller's. */
int tt_file_open(const char *path, int *ret_fd, int64_t *ret_bytes) TT_MUST_CHECK;

/** Opens a regular file for writing at its end, new if it is missing. TT_EDATA if there is something else at path. */
int tt_file_append(const char *path, int *ret_fd) TT_MUST_CHECK;

/** A regular file mapped read-only. Zero-initialise; release when done. An empty file has data NULL and size 0. */
struct tt_mapping {
    const uint8_t *data;
    size_t size;
};
int tt_mapping_open(const char *path, struct tt_mapping *ret_mapping) TT_MUST_CHECK;
void tt_mapping_release(struct tt_mapping *mapping);

/** Writes all bytes to fd at offset, through short writes and interrupts. path is for the message. */
int tt_file_pwrite(int fd, const char *path, const void *bytes, size_t size, int64_t offset) TT_MUST_CHECK;

/** Reads exactly size bytes at offset; a short file is TT_EDATA ("truncated"). */
int tt_file_pread(int fd, const char *path, void *bytes, size_t size, int64_t offset) TT_MUST_CHECK;

/** Replaces path durably: write path.tmp-RANDOM, fsync, rename, fsync the folder. Readers see the old file or the new one. */
int tt_file_replace(const char *path, const void *bytes, size_t size) TT_MUST_CHECK;

/**
 * Makes a file to be written and renamed to `path` later: path.tmp-RANDOM, new (O_EXCL), so that no two processes ever
 * share one, whatever their hosts and process numbers are. ret_name is the caller's (tt_free), ret_fd too.
 */
int tt_file_temporary(const char *path, char **ret_name, int *ret_fd) TT_MUST_CHECK;

/** The same for a folder: prefix-RANDOM. */
int tt_folder_temporary(const char *prefix, char **ret_name) TT_MUST_CHECK;

/** Whether `name` is what tt_file_temporary makes of a path that ends in `stem`: for sweeping what a killed process left. */
bool tt_file_is_temporary(const char *name, const char *stem);

/** A word of 16 hexadecimal digits that no other process has, for names; and whether a text is such a word. */
void tt_random_word(char ret_word[TT_RANDOM_WORD_BYTES]);
bool tt_random_is_word(const char *text);

/** Seconds since an arbitrary start (monotonic), and since 1970 (wall clock). */
double tt_clock_sec(void);
double tt_clock_wall_sec(void);

#endif
