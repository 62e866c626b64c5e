/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_GGUF_H
#define TT_CORE_TOKENIZER_GGUF_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/gguf/gguf.h"

/**
 * Turns a tokenizer into values of a GGUF file, and back. A file that titan writes also contains the whole
 * tokenizer.json, under the format's key for it ("tokenizer.huggingface.json").
 */

struct tt_tokenizer;

/** Facts that a tokenizer's files do not state. */
struct tt_gguf_ends {
    const char *name;          /* of the model: general.name, by which llama.cpp decides what some tokens do */
    const char *chat_template; /* NULL: there is none */
    bool begins;               /* texts begin with BOS, if the tokenizer has one */
    int32_t turn;              /* the token that ends a turn, if it is not EOS; -1: none */
};

/**
 * Adds the values: the model's name, tokens, merges or scores, special tokens, the name of llama.cpp's pre-tokenizer,
 * the chat template. TT_EDATA if llama.cpp would cut text in another way, or the model has fewer rows than there are
 * tokens.
 *   tokenizer   NULL: the file has none, and llama.cpp takes ids
 *   vocab_size  rows of the model's embedding; each row without a token gets a unique name
 */
int tt_gguf_put_tokenizer(const struct tt_tokenizer *tokenizer, const struct tt_gguf_ends *ends, int64_t vocab_size,
                          struct tt_gguf_values *values) TT_MUST_CHECK;

/**
 * The text of a file as it would lie in a folder: tokenizer.json, tokenizer_config.json or chat_template.jinja. NULL if
 * there is none. The caller frees.
 */
int tt_gguf_tokenizer_file(const struct tt_gguf *file, const char *name, char **ret_text,
                           size_t *ret_size) TT_MUST_CHECK;

/** The same from a file that is opened by its path. */
int tt_gguf_tokenizer_load(const char *path, const char *name, char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/** Whether a file contains a tokenizer. */
int tt_gguf_has_tokenizer(const char *path, bool *ret_has) TT_MUST_CHECK;

/** The types of tokens in a GGUF file. */
enum {
    TT_GGUF_NORMAL = 1,
    TT_GGUF_UNKNOWN,
    TT_GGUF_CONTROL,
    TT_GGUF_USER_DEFINED,
    TT_GGUF_UNUSED,
    TT_GGUF_BYTE,
};

/** U+2581, which stands for a space in SentencePiece-style tokenizers. */
#define TT_GGUF_MARK "\xe2\x96\x81"

/**
 * llama.cpp's name for the way in which a byte-level tokenizer cuts text into words (tokenizer.ggml.pre). TT_EDATA,
 * naming the expressions, if it has none.
 */
int tt_gguf_pre_name(const json_t *pre_tokenizer, bool ignores_merges, const char *where,
                     const char **ret_name) TT_MUST_CHECK;

/**
 * The reverse: makes a pre_tokenizer (the caller releases it), and says whether a word that is a token is used without
 * merges, and whether text is first brought into the normal form NFC.
 */
int tt_gguf_pre_tokenizer(const char *name, const char *where, json_t **ret_json, bool *ret_ignores_merges,
                          bool *ret_nfc) TT_MUST_CHECK;

#endif
