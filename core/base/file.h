/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_FILE_H
#define TT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Files: whole reads, durable writes, folders. Every failure is TT_EIO with the path and the system's reason, except a
 * missing file, which is TT_EDATA ("no such file") and names a similar one in the same folder if there is one.
 */

/** Reads a whole file. ret_text is the caller's (tt_free), ends with an extra 0 byte that size does not count. */
int tt_file_read(const char *path, char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/** A file mapped read-only. Zero-initialise; release when done. An empty file has data NULL and size 0. */
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

/** Replaces path durably: write path.tmp, fsync, rename, fsync the folder. Readers see the old file or the new one. */
int tt_file_replace(const char *path, const void *bytes, size_t size) TT_MUST_CHECK;

/** fsync of a folder, so that the names in it survive a power cut. */
int tt_folder_sync(const char *path) TT_MUST_CHECK;

/** mkdir -p. */
int tt_folder_make(const char *path) TT_MUST_CHECK;

/** rm -rf of a folder of ours. A path that does not exist is success. Does not follow links. */
int tt_folder_remove(const char *path) TT_MUST_CHECK;

bool tt_path_exists(const char *path);
bool tt_path_is_folder(const char *path);

/** Names in a folder, sorted, without "." and ".."; the caller frees with tt_names_free. */
int tt_folder_list(const char *path, char ***ret_names, int *ret_n) TT_MUST_CHECK;
void tt_names_free(char **names, int n);

/** Bytes that an unprivileged process can still write on path's file system; negative when unknown. */
int64_t tt_folder_free_bytes(const char *path);

/** Seconds since an arbitrary start (monotonic), and since 1970 (wall clock). */
double tt_clock_sec(void);
double tt_clock_wall_sec(void);

#endif
