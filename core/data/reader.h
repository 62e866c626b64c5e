/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_READER_H
#define TT_DATA_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Reads text files, plain or compressed by gzip or zstd (told by their first bytes). A file that is something else (a
 * Git LFS pointer, a web page, Parquet, another compression) is TT_EDATA saying what it is.
 */
struct tt_reader;

int tt_reader_open(const char *path, struct tt_reader **ret_reader) TT_MUST_CHECK;

/** Reads bytes in memory, which must outlive the reader; name is for messages. */
int tt_reader_open_bytes(const char *name, const void *bytes, size_t size, struct tt_reader **ret_reader) TT_MUST_CHECK;

void tt_reader_free(struct tt_reader *reader);

/**
 * The next line, without its end; a byte order mark at the start of the file is left out. ret_line is valid until the
 * next call and NULL at the end of the file. ret_offset is where the line begins, in bytes of the (unpacked) file.
 * TT_EDATA naming the line if more than 128 MiB of a packed file are one line, since unpacked lines are held in memory.
 */
int tt_reader_line(struct tt_reader *reader, const char **ret_line, size_t *ret_size,
                   int64_t *ret_offset) TT_MUST_CHECK;

/** The whole rest of the file, valid until the reader is freed. TT_EDATA beyond 1 GiB of a packed file. */
int tt_reader_rest(struct tt_reader *reader, const char **ret_text, size_t *ret_size,
                   int64_t *ret_offset) TT_MUST_CHECK;

/** How many bytes of the file, as it is on disk, were used so far; for progress. */
int64_t tt_reader_position(const struct tt_reader *reader);

/** The bytes of the file as it is on disk. */
const void *tt_reader_raw(const struct tt_reader *reader, size_t *ret_size);

/** TT_EDATA if bytes (the beginning of a file) are not what a data file begins with; may_be_html for .html files. */
int tt_reader_refuse(const char *name, const void *bytes, size_t size, bool may_be_html) TT_MUST_CHECK;

#endif
