/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_TOKENIZER_STRUCT_H
#define TT_CORE_TOKENIZER_TOKENIZER_STRUCT_H

#include "core/tokenizer/added.h"
#include "core/tokenizer/bpe.h"
#include "core/tokenizer/decoder.h"
#include "core/tokenizer/pretokenizer.h"
#include "core/tokenizer/strmap.h"

/** What tokenizer.c and tokenizer_model.c read and encoder.c uses; private to them. */
struct tt_token_bytes {
    size_t at; /* in struct tt_tokenizer's bytes */
    uint32_t size;
    bool is_used, is_special;
    bool is_byte_level; /* its text was in the byte-level alphabet */
};

struct tt_tokenizer {
    char *where;
    char *json, *config; /* the files */
    size_t json_size, config_size;
    char *chat_template;    /* NULL: none */
    char *chat_where;       /* the file that has it */
    struct tt_strmap vocab; /* token as written -> id */
    struct tt_strmap words; /* bytes -> id, only with ignore_merges */
    struct tt_strmap chars; /* character -> id, only without byte-level */
    struct tt_bpe bpe;
    struct tt_pretokenizer pretokenizer;
    struct tt_added added;
    struct tt_decoder decoder;
    bool is_byte_level;   /* words are spelt in bytes; else in characters, with byte_id for those that are not tokens */
    int32_t byte_id[256]; /* -1: not in the vocabulary; `unknown` replaces it */
    int32_t unknown;      /* -1: bytes and characters outside of the vocabulary are dropped */
    bool fuse_unknown;
    bool ignore_merges;
    bool adds_bos;
    struct tt_token_bytes *token; /* by id */
    int64_t vocab_size;
    struct tt_text bytes; /* of all tokens */
    int32_t bos, eos;
    uint64_t hash;
};

/** Fails if "model" is of another kind than BPE. First of all, so that the message names the kind. */
int tt_tokenizer_check_type(const json_t *model, const char *where) TT_MUST_CHECK;

/** Reads "model" after the pre_tokenizer; fills vocab, words, chars, bpe, byte_id, token. where is for messages. */
int tt_tokenizer_read_model(struct tt_tokenizer *t, json_t *model, const char *where) TT_MUST_CHECK;

/** Records the bytes of an id. is_byte_level: text may be in the byte-level alphabet. */
int tt_tokenizer_set_token(struct tt_tokenizer *t, const char *where, int64_t id, const char *text, size_t size,
                           bool is_byte_level) TT_MUST_CHECK;

#endif
