/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_GGUF_NAMES_H
#define TT_CORE_TOKENIZER_GGUF_NAMES_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/json.h"

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

/** The reverse: a new pre_tokenizer (the caller releases it), and whether words that are tokens are not merged. */
int tt_gguf_pre_tokenizer(const char *name, const char *where, json_t **ret_json,
                          bool *ret_ignores_merges) TT_MUST_CHECK;

/** Whether llama.cpp begins texts with BOS where the pre-tokenizer has that name and the file does not say. */
bool tt_gguf_pre_begins(const char *name);

#endif
