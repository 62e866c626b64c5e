/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_SOURCE_H
#define TT_DATA_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/builtin.h"
#include "core/base/error.h"

/**
 * The source of a dataset's documents: text files with one document each (of HTML, the text without its tags), or files
 * of rows with one document each: JSON lines, Parquet or Arrow; the first bytes show which. The receiver gets one text
 * field of each line or row (TT_SOURCE_JSONL), or the line (TT_SOURCE_LINES); the line of a row contains its columns
 * that belong to conversations. A text that is null is left out, with a note.
 */
enum tt_source_kind { TT_SOURCE_TEXT, TT_SOURCE_JSONL, TT_SOURCE_LINES };

struct tt_source {
    enum tt_source_kind kind;
    const char *only; /* the files of folders that are read: those with this ending; NULL: all of their kind */
    char *text_field; /* text field of JSON lines, or column of a table */
    char **path;      /* sorted; the name of a built-in source */
    int n_paths;
    struct tt_builtin builtin; /* size is 0 if the source consists of files */
    int64_t bytes;             /* size of all files on disk */
};

/**
 * The files at a path: a file, all files below a folder in the order of their names, or what matches a pattern with *,
 * ? or [] (if nothing has that name itself). In a folder that datasets of Hugging Face wrote, those that its state.json
 * lists. TT_EDATA if the folder contains tables of several splits. Zero-initialise; release also after an error.
 */
int tt_source_init(struct tt_source *source, enum tt_source_kind kind, const char *path, const char *text_field,
                   const char *only) TT_MUST_CHECK;
void tt_source_release(struct tt_source *source);

/**
 * The dataset that reads what is at a path, by the names of its files: "jsonl", "parquet" or "arrow", or "text" if no
 * name says that a file has rows. Errors: as tt_source_init.
 */
int tt_source_guess(const char *path, const char **ret_dataset) TT_MUST_CHECK;

/** Whether something exists at the path, or matches it as a pattern. */
bool tt_source_is_there(const char *path);

/** A hash of the content of all files, their order and their number; reports progress. */
int tt_source_hash(const struct tt_source *source, uint64_t *ret_hash) TT_MUST_CHECK;

/** Receives one document of valid UTF-8. Returns 0 or an error; an error ends the reading, and the position is added to
 * its message. */
typedef int (*tt_document_fn)(void *arg, const char *text, size_t size);

/**
 * Calls fn for every document in order; `what` names the work in progress reports. TT_EDATA, with file and line
 * (or row, or byte), for a broken line or table, a line without the text field, invalid UTF-8, or a source without any
 * text.
 */
int tt_source_each(const struct tt_source *source, const char *what, tt_document_fn fn, void *arg) TT_MUST_CHECK;

#endif
