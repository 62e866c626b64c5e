/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_TOKENFILE_H
#define TT_DATA_TOKENFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Packed token files, titan's own and foreign ones.
 *
 * titan's: a header of 128 bytes, the tokens (uint16 or uint32), zeros up to a multiple of 8, then n_documents + 1
 * int64 offsets: document d is tokens [offset[d], offset[d+1]). All little-endian. Files of version 2 then have a mask,
 * a bit for every token, the lowest bit of a byte first, which is 1 if the token is to be learned; in version 1 all
 * tokens are. The header contains a hash of itself and one of everything after it, so that truncated or damaged files
 * are detected. llm.c's: a header of 256 int32 (magic 20240520, version 1, count: uint16; or 20240801, 7: uint32), then
 * the tokens. Headerless: uint16 tokens (nanoGPT).
 */
enum tt_token_format { TT_TOKENS_TITAN, TT_TOKENS_LLMC, TT_TOKENS_RAW_U16 };

enum { TT_TOKEN_UNICODE_BYTES = 8 };

/** The content of a packed file, and where it is in the file. Plain data, the same on every rank. */
struct tt_token_info {
    int32_t format;    /* enum tt_token_format */
    int32_t item_size; /* bytes of a token: 2 or 4 */
    int64_t n_tokens;
    int64_t n_documents; /* 1 if the file contains no offsets */
    int64_t tokens_at;   /* byte offsets in the file */
    int64_t offsets_at;  /* 0: no document offsets */
    int64_t mask_at;     /* 0: every token is learned */
    int64_t file_size;
    int64_t vocab_size;                   /* of the tokenizer; 0: unknown */
    int32_t bos, eos;                     /* -1: unknown or none */
    int64_t n_learned;                    /* number of learned tokens */
    int64_t max_id;                       /* largest id in the file */
    uint64_t tokenizer_hash;              /* 0: unknown */
    char unicode[TT_TOKEN_UNICODE_BYTES]; /* version of Unicode whose properties the tokenizer used; "": unknown */
    uint64_t source_hash;                 /* of the text from which the file was made; 0: unknown */
    uint64_t digest;                      /* hash of everything after the header: equal digests mean equal data */
};

/**
 * Reads and checks a packed file, including its content; reports progress for large files. is_raw: read it as
 * headerless uint16. TT_EDATA says what is wrong with it.
 */
int tt_tokenfile_check(const char *path, bool is_raw, struct tt_token_info *ret_info) TT_MUST_CHECK;

/**
 * The same without reading the content: takes the header's values, and checks that the file has the size that follows
 * from them. The digest and max_id of foreign files stay unset.
 */
int tt_tokenfile_peek(const char *path, bool is_raw, struct tt_token_info *ret_info) TT_MUST_CHECK;

/**
 * For an open file that was prepared earlier, on this host or another: the first function reads it again for its
 * digest; the second reads and checks its document offsets ([n_documents + 1]; the caller frees them). path is for
 * messages.
 */
int tt_tokenfile_digest(int fd, const char *path, const struct tt_token_info *info, uint64_t *ret_digest) TT_MUST_CHECK;
int tt_tokenfile_offsets(int fd, const char *path, const struct tt_token_info *info,
                         int64_t **ret_offsets) TT_MUST_CHECK;

/** Writes a file of titan's format; the file gets its name when it is complete. */
struct tt_token_writer;
int tt_token_writer_new(const char *path, int64_t vocab_size, struct tt_token_writer **ret_writer) TT_MUST_CHECK;

/**
 * Adds one document of n ids, all in [0, vocab_size).
 *   counts  for every id: 1 if it is to be learned, else 0; NULL: all are. Pass it for all documents of a file or for
 *           none
 */
int tt_token_writer_add(struct tt_token_writer *writer, const int32_t *ids, const int32_t *counts,
                        size_t n) TT_MUST_CHECK;

/**
 * Completes the file, durably.
 *   about     tokenizer_hash, unicode, source_hash, bos, eos of the header
 *   ret_info  the description of the written file
 */
int tt_token_writer_finish(struct tt_token_writer *writer, const struct tt_token_info *about,
                           struct tt_token_info *ret_info) TT_MUST_CHECK;

/** Frees the writer; an unfinished file is removed. */
void tt_token_writer_free(struct tt_token_writer *writer);

#endif
