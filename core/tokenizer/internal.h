/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_INTERNAL_H
#define TT_CORE_TOKENIZER_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "core/tokenizer/decoder.h"
#include "core/tokenizer/strmap.h"
#include "core/tokenizer/tokenizer.h"

struct tt_bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    int32_t rank;  /* -1: the entry is free */
    int32_t id;    /* the merged token */
};

/** The merges of byte pair encoding: an open-addressing table. Zero-initialise. Read-only use is thread-safe. */
struct tt_bpe {
    struct tt_bpe_merge *merge;
    size_t n;
    size_t cap; /* a power of two, or 0 */
};

/** Adds a merge; a later one of the same pair replaces it. */
void tt_bpe_add(struct tt_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);

/** Data that load.c reads and encoder.c uses. */
struct tt_token_bytes {
    size_t at; /* its place in struct tt_tokenizer's bytes */
    uint32_t size;
    bool is_used, is_special;
    bool is_byte_level; /* its text was in the byte-level alphabet */
};

struct tt_tokenizer {
    struct tt_tokenizer_info info;
    struct tt_strmap vocab; /* token as written -> id */
    struct tt_strmap words; /* bytes -> id, only with ignore_merges */
    struct tt_strmap chars; /* character -> id, only without byte-level */
    struct tt_bpe bpe;
    struct tt_pretokenizer pretokenizer;
    struct tt_added added;
    struct tt_decoder decoder;
    bool is_byte_level;   /* words are spelt in bytes; else in characters, with byte_id for other characters */
    int32_t byte_id[256]; /* -1: not in the vocabulary; `unknown` replaces it */
    int32_t unknown;      /* -1: bytes and characters that are not in the vocabulary are dropped */
    bool fuse_unknown;
    bool ignore_merges;
    struct tt_token_bytes *token; /* by id */
    struct tt_text bytes;         /* of all tokens */
};

#endif
