/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_PRETOKENIZER_H
#define TT_CORE_TOKENIZER_PRETOKENIZER_H

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/tokenizer/regex.h"

/**
 * The pre_tokenizer of a tokenizer.json: cuts text into words. It is a list of steps, each of which cuts the pieces of
 * the previous one. One step may be Metaspace, or the last one ByteLevel. Without steps the text is one word.
 */
enum { TT_PRETOKENIZER_STEPS = 16 };

/** Where Metaspace adds its mark: before every piece, before the piece that begins the text, or never. */
enum tt_prepend { TT_PREPEND_ALWAYS, TT_PREPEND_FIRST, TT_PREPEND_NEVER };

/** Metaspace, a pre-tokenizer and a decoder: it writes a mark (U+2581) for each space. */
struct tt_metaspace {
    char mark[5]; /* one character */
    enum tt_prepend prepend;
    bool splits; /* words begin at marks */
};

/** Reads a Metaspace; what: "pre_tokenizer" or "decoder". */
int tt_metaspace_init(struct tt_metaspace *m, const json_t *json, const char *what, const char *where) TT_MUST_CHECK;

struct tt_pretokenizer {
    struct tt_regex *step[TT_PRETOKENIZER_STEPS]; /* each cuts around its matches (behavior Isolated) */
    int n_steps;
    bool prefix_space; /* of ByteLevel: a space is added before every piece that reaches it */
    int prefix_step;   /* the number of steps before ByteLevel; -1: there is no ByteLevel */
    struct tt_metaspace metaspace;
    int metaspace_step; /* the number of steps before Metaspace; -1: there is no Metaspace */
};

/**
 * Reads the JSON value of "pre_tokenizer" (null and absent: none); where (a file) is for messages. Release also
 * after an error.
 */
int tt_pretokenizer_init(struct tt_pretokenizer *p, const json_t *json, const char *where) TT_MUST_CHECK;
void tt_pretokenizer_release(struct tt_pretokenizer *p);

/** Receives one word of size > 0 bytes. Returns 0 or an error, which ends the splitting. */
typedef int (*tt_word_fn)(void *arg, const char *word, size_t size);

/**
 * Calls fn for the words of text (valid UTF-8) in order; is_first: a document begins here. scratch is cleared and used.
 */
int tt_pretokenizer_split(const struct tt_pretokenizer *p, struct tt_matcher *matcher, struct tt_text *scratch,
                          const char *text, size_t size, bool is_first, tt_word_fn fn, void *arg) TT_MUST_CHECK;

#endif
