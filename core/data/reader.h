/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_READER_H
#define TT_DATA_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/builtin.h"
#include "core/base/error.h"
#include "core/os/file.h"

/**
 * A file of text, plain or compressed with gzip or zstd, or a table in Parquet's or Arrow's format; the first bytes
 * show which. For any other file (a Git LFS pointer, a web page, another compression), TT_EDATA says what it is.
 */
enum tt_file_form { TT_FORM_TEXT, TT_FORM_PARQUET, TT_FORM_ARROW };

struct tt_reader;

/** The file at path, or a built-in one whose size is not 0; the path and the bytes must outlive the reader. */
int tt_reader_open(const char *path, struct tt_builtin builtin, struct tt_reader **ret_reader) TT_MUST_CHECK;
void tt_reader_free(struct tt_reader *reader);

enum tt_file_form tt_reader_form(const struct tt_reader *reader);

/** The bytes of the file as they are stored, valid until the reader is freed, and how many of them have been read. */
struct tt_mapping tt_reader_stored(const struct tt_reader *reader);
size_t tt_reader_used(const struct tt_reader *reader);

/** Sets the number of bytes that have been read, if the caller reads the stored bytes itself. */
void tt_reader_use(struct tt_reader *reader, size_t used);

/** A part of the text; its offset counts bytes of the (unpacked) file. */
struct tt_piece {
    const char *text;
    size_t size;
    int64_t offset;
};

/**
 * The next line, without its end and without a byte order mark at the start of the file. The line is valid until the
 * next call; its text is NULL at the end of the file. TT_EDATA names the line if a line of a compressed file exceeds
 * 128 MiB, since unpacked lines are held in memory.
 */
int tt_reader_line(struct tt_reader *reader, struct tt_piece *ret_line) TT_MUST_CHECK;

/** The whole rest of the file, valid until the reader is freed. TT_EDATA if it exceeds 1 GiB in a compressed file. */
int tt_reader_rest(struct tt_reader *reader, struct tt_piece *ret_rest) TT_MUST_CHECK;

/** TT_EDATA if bytes, the beginning of a file, cannot be the beginning of a data file; may_be_html: for .html files. */
int tt_reader_refuse(const char *name, const void *bytes, size_t size, bool may_be_html) TT_MUST_CHECK;

/**
 * Unpacks a block that was packed as a whole, whose unpacked size is known. Returns NULL, or what is wrong with it if
 * not exactly out_size bytes result.
 */
enum tt_codec { TT_CODEC_SNAPPY, TT_CODEC_GZIP, TT_CODEC_ZSTD, TT_CODEC_LZ4, TT_CODEC_LZ4_FRAME };
const char *tt_codec_unpack(enum tt_codec codec, const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size);

#endif
