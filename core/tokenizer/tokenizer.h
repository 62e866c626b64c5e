/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_TOKENIZER_H
#define TT_CORE_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/decoder.h"
#include "core/tokenizer/pretokenizer.h"

/**
 * BPE tokenizers in Hugging Face's format (tokenizer.json and, beside it, tokenizer_config.json): byte-level ones, and
 * SentencePiece-style ones, which spell words in characters, and in bytes where a character is not a token. Tokens and
 * texts equal those of the `tokenizers` library; a file for which they would differ is refused when it is read
 * (TT_EDATA). A loaded tokenizer never changes, so any number of threads may use it.
 */
struct tt_tokenizer;

/** Loads the tokenizer of a folder (or the tokenizer.json itself, or a GGUF file); NULL or "" is the built-in one. */
int tt_tokenizer_load(const char *path, struct tt_tokenizer **ret_tokenizer) TT_MUST_CHECK;

/** The same from bytes; config may be NULL; `where` names the source in messages. */
int tt_tokenizer_parse(const char *json, size_t json_size, const char *config, size_t config_size, const char *where,
                       struct tt_tokenizer **ret_tokenizer) TT_MUST_CHECK;

void tt_tokenizer_free(struct tt_tokenizer *tokenizer);

/** The description of a tokenizer. All members live as long as the tokenizer. */
struct tt_tokenizer_info {
    char *where;         /* its origin: a path, or "built-in tokenizer.json" */
    char *json, *config; /* the bytes of its two files; config NULL: there was none */
    size_t json_size, config_size;
    char *chat_template; /* Jinja, from chat_template.jinja or else from tokenizer_config.json; NULL: none */
    char *chat_where;    /* the file that contains it, for messages */
    int64_t vocab_size;  /* the largest id + 1, including added tokens */
    int32_t bos, eos;    /* the tokens that begin and end a document; -1: none is named */
    int32_t after_bos;   /* GLM's begin with two tokens: the second one; -1: there is none */
    bool adds_bos;       /* the `tokenizers` library would add BOS by itself, according to post_processor */
    uint64_t hash;       /* of tokenizer.json, BOS and EOS: equal hashes make equal documents; the same for
                                       * what tt_tokenizer_json_with_bos makes */
};
const struct tt_tokenizer_info *tt_tokenizer_info(const struct tt_tokenizer *tokenizer);

/**
 * Appends the text of tokenizer.json with a post-processor that puts BOS before every text, as titan does in documents.
 * Returns false, and appends nothing, if the tokenizer adds BOS already, or has no BOS, or no member post_processor.
 */
bool tt_tokenizer_json_with_bos(const struct tt_tokenizer *tokenizer, struct tt_text *text);

/** The id of a token as tokenizer.json writes it, or -1. */
int32_t tt_tokenizer_token_to_id(const struct tt_tokenizer *tokenizer, const char *token);

/** The bytes of a token, "" if id is none; ret_size: their number. */
const char *tt_tokenizer_id_to_token(const struct tt_tokenizer *tokenizer, int32_t id, size_t *ret_size);

/** The length of the added token that text begins with (the longest), or 0. */
size_t tt_tokenizer_added_at(const struct tt_tokenizer *tokenizer, const char *text, size_t size);

/** Whether id is a token; a model may have more rows than the tokenizer has tokens. */
bool tt_tokenizer_has(const struct tt_tokenizer *tokenizer, int32_t id);

bool tt_tokenizer_is_special(const struct tt_tokenizer *tokenizer, int32_t id);

/**
 * Appends the text of n ids, including special tokens. A byte-level tokenizer gives bytes, which may end within a UTF-8
 * character. TT_EDATA for an id that is not a token.
 */
int tt_tokenizer_decode(const struct tt_tokenizer *tokenizer, const int32_t *ids, int64_t n,
                        struct tt_text *text) TT_MUST_CHECK;

/**
 * The same in parts: the parts, together with the end, are the text of all ids. The caller zero-initialises `decoding`
 * and releases it with tt_decoding_release.
 */
int tt_tokenizer_decode_part(const struct tt_tokenizer *tokenizer, struct tt_decoding *decoding, const int32_t *ids,
                             int64_t n, struct tt_text *text) TT_MUST_CHECK;
void tt_tokenizer_decode_end(const struct tt_tokenizer *tokenizer, struct tt_decoding *decoding, struct tt_text *text);

/** A growing array of ids. Zero-initialise; release when done. */
struct tt_ids {
    int32_t *id;
    size_t n;
    size_t cap;
};
void tt_ids_add(struct tt_ids *ids, int32_t id);
void tt_ids_release(struct tt_ids *ids);

/** Appends the tokens that begin a document: BOS and the token that follows it, if the tokenizer has them. */
void tt_tokenizer_begin(const struct tt_tokenizer *tokenizer, struct tt_ids *ids);

/** Encodes text in one thread; holds scratch memory and a cache of words. The tokenizer must outlive it. */
struct tt_encoder;
int tt_encoder_new(const struct tt_tokenizer *tokenizer, struct tt_encoder **ret_encoder) TT_MUST_CHECK;
void tt_encoder_free(struct tt_encoder *encoder);

/** Whether special tokens written in the text become tokens (the default, as in `tokenizers`) or text. */
void tt_encoder_find_special(struct tt_encoder *encoder, bool find_special);

/** Appends the ids of text, without BOS and EOS. TT_EDATA for invalid UTF-8, with its byte offset. */
int tt_encoder_encode(struct tt_encoder *encoder, const char *text, size_t size, struct tt_ids *ids) TT_MUST_CHECK;

/**
 * The same; for every id it appends to marks 1 if the id stands for something in the passages of text, else 0. passages
 * and marks may be NULL.
 */
int tt_encoder_encode_marked(struct tt_encoder *encoder, const char *text, size_t size,
                             const struct tt_passages *passages, struct tt_ids *ids,
                             struct tt_ids *marks) TT_MUST_CHECK;

/** Appends a document: BOS, the ids of text, EOS; without BOS or EOS if the tokenizer names none. */
int tt_encoder_encode_document(struct tt_encoder *encoder, const char *text, size_t size,
                               struct tt_ids *ids) TT_MUST_CHECK;

#endif
