/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_SOURCE_H
#define TT_DATA_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/builtin.h"
#include "core/base/error.h"

/** TT_EDATA if bytes, the beginning of a file, cannot be the beginning of a data file; may_be_html: for .html files. */
int tt_reader_refuse(const char *name, const void *bytes, size_t size, bool may_be_html) TT_MUST_CHECK;

/**
 * The source of a dataset's documents: text files with one document each, or JSON lines with one document per line. The
 * receiver gets one text field of each line (TT_SOURCE_JSONL), or the whole line (TT_SOURCE_LINES).
 */
enum tt_source_kind { TT_SOURCE_TEXT, TT_SOURCE_JSONL, TT_SOURCE_LINES };

struct tt_source {
    enum tt_source_kind kind;
    char *text_field; /* text field of JSON lines */
    char **path;      /* sorted; the name of a built-in source */
    int n_paths;
    struct tt_builtin builtin; /* size is 0 if the source consists of files */
    int64_t bytes;             /* size of all files on disk */
};

/**
 * The files at a path (a file, or all files below a folder). Zero-initialise; release also after an error.
 */
int tt_source_init(struct tt_source *source, enum tt_source_kind kind, const char *path,
                   const char *text_field) TT_MUST_CHECK;
void tt_source_init_builtin(struct tt_source *source, struct tt_builtin builtin);
void tt_source_release(struct tt_source *source);

/** Sets TT_EDATA for a Parquet file: why titan does not read it, and how to convert it. */
int tt_source_fail_parquet(const char *path);

/** A hash of the content of all files, their order and their number; reports progress. */
int tt_source_hash(const struct tt_source *source, uint64_t *ret_hash) TT_MUST_CHECK;

/** Receives one document of valid UTF-8. Returns 0 or an error; an error ends the reading, and the position is added to
 * its message. */
typedef int (*tt_document_fn)(void *arg, const char *text, size_t size);

/**
 * Calls fn for every document in order; `what` names the work in progress reports. TT_EDATA, with file and line, for a
 * broken line, a line without the text field, invalid UTF-8, or a source without any text.
 */
int tt_source_each(const struct tt_source *source, const char *what, tt_document_fn fn, void *arg) TT_MUST_CHECK;

#endif
