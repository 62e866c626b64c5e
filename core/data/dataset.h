/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_DATASET_H
#define TT_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/data/tokenfile.h"
#include "core/os/file.h"
#include "core/tokenizer/tokenizer.h"

/**
 * Datasets: documents of tokens, read from a packed file. One rank tokenizes text once (tt_dataset_prepare) into a
 * packed file in the cache folder; then every rank opens that file (tt_dataset_open). The tt_dataset_ref that prepare
 * fills in is plain data, to be broadcast.
 */
struct tt_dataset_kind {
    const char *name;
    int variant;     /* variant of the files' format */
    bool needs_path; /* the user must set dataset_path */
    bool is_text;    /* text, not tokens: needs a tokenizer and a cache folder */
};

/** The kind called name; TT_EUSAGE with the nearest name if there is none. */
int tt_dataset_find(const char *name, const struct tt_dataset_kind **ret_kind) TT_MUST_CHECK;

struct tt_dataset_spec {
    const char *name;                     /* training.dataset */
    const char *path;                     /* training.dataset_path; may be NULL for the built-in ones */
    const char *text_field;               /* the field of JSON lines, or column; NULL: "text" */
    const char *chat_template;            /* of chat data (tt_chat_template_new); NULL: "auto" */
    const struct tt_tokenizer *tokenizer; /* may be NULL for packed files, which are then not compared with it */
    int64_t vocab_size;                   /* of the model; 0: any id is accepted */
    const char *cache_dir;                /* for text; created if it is missing */
};

/**
 * For a packed dataset: compares the tokenizer with the header, without reading the content. Accepts every text
 * dataset. TT_EDATA: it was packed with another tokenizer, or is not a packed file.
 */
int tt_dataset_peek(const struct tt_dataset_spec *spec) TT_MUST_CHECK;

enum { TT_DATASET_PATH_BYTES = 4096 };

/** The packed file that tt_dataset_prepare found or made. */
struct tt_dataset_ref {
    char name[32];
    char path[TT_DATASET_PATH_BYTES]; /* of the packed file */
    struct tt_token_info info;
};

/**
 * Prepares a dataset: checks a packed file, or tokenizes text into the cache, unless the cache contains an intact file
 * for the same content and tokenizer. Removes files of killed runs from the cache folder. Called by one rank (not
 * collective); reports progress.
 *   TT_EUSAGE  unknown name, missing path, a tokenizer larger than the model's vocabulary
 *   TT_EDATA a fault in the data, with file and line; a token beyond the vocabulary; tokens of another tokenizer
 */
int tt_dataset_prepare(const struct tt_dataset_spec *spec, struct tt_dataset_ref *ret_ref) TT_MUST_CHECK;

/**
 * Calls fn for every document of a text dataset (of chat data: for every line), which is valid UTF-8, without a
 * tokenizer; `what` names the work in progress reports. An error of fn ends the reading. TT_EUSAGE for a packed
 * dataset; else as tt_dataset_prepare.
 */
int tt_dataset_each(const struct tt_dataset_spec *spec, const char *what,
                    int (*fn)(void *arg, const char *text, size_t size), void *arg) TT_MUST_CHECK;

/** Tokenizes text into a packed file at path (`titan data pack`); spec->cache_dir is not used. */
int tt_dataset_pack(const struct tt_dataset_spec *spec, const char *path, struct tt_token_info *ret_info) TT_MUST_CHECK;

/**
 * An open dataset: read-only, shared by the samplers of one thread. The file is read, not mapped, so that truncating or
 * replacing it during a run gives an error that names it.
 */
struct tt_dataset {
    struct tt_dataset_ref ref;
    int fd;
    uint64_t device, inode; /* identity of the opened file, even if its path later leads to another one */
    double modified_sec;    /* its modification time at the last check of its content */
    int64_t *offsets;       /* [n_documents + 1], or NULL: one document */
};

/** Opens what prepare made, on any rank. TT_EDATA if the size differs; tt_dataset_verify compares the content. */
int tt_dataset_open(const struct tt_dataset_ref *ref, struct tt_dataset **ret_dataset) TT_MUST_CHECK;
void tt_dataset_free(struct tt_dataset *dataset);

/** Reads the whole file and compares its digest with the one in ref: TT_EDATA names host and file if they differ. */
int tt_dataset_verify(struct tt_dataset *dataset) TT_MUST_CHECK;

/** The same, but only if the file was written after it was opened or last verified. Otherwise almost free. */
int tt_dataset_recheck(struct tt_dataset *dataset) TT_MUST_CHECK;

/**
 * Copies tokens [begin, begin + n) of the stream in file order; the range must lie in it. TT_EDATA names host and file
 * if the file ends early or contains an id beyond ref.info.max_id, so that no id is outside the model's embedding.
 */
int tt_dataset_copy(const struct tt_dataset *dataset, int64_t begin, int64_t n, int32_t *ids) TT_MUST_CHECK;

/**
 * For tokens [begin, begin + n): 1 if the token is learned, else 0. The file must have a mask. TT_EDATA names host and
 * file if the file ends early.
 */
int tt_dataset_counts(const struct tt_dataset *dataset, int64_t begin, int64_t n, uint8_t *ret_counts) TT_MUST_CHECK;

#endif
