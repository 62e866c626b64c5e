/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_PRETOKENIZER_H
#define TT_DATA_PRETOKENIZER_H

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/data/regex.h"

/**
 * The pre_tokenizer of a tokenizer.json: cuts text into words. A list of steps, each of which cuts the pieces of the
 * one before; the last is ByteLevel.
 */
enum { TT_PRETOKENIZER_STEPS = 16 };

struct tt_pretokenizer {
    struct tt_regex *step[TT_PRETOKENIZER_STEPS]; /* each cuts around its matches (behavior Isolated) */
    int n_steps;
    bool prefix_space; /* of ByteLevel: every piece that reaches it begins with a space */
    int prefix_step;   /* the number of steps before ByteLevel */
};

/** Reads the JSON value of "pre_tokenizer"; where (a file) is for messages. Release also after an error. */
int tt_pretokenizer_init(struct tt_pretokenizer *p, const json_t *json, const char *where) TT_MUST_CHECK;
void tt_pretokenizer_release(struct tt_pretokenizer *p);

/** Takes one word: size > 0 bytes. Returns 0 or an error, which ends the splitting. */
typedef int (*tt_word_fn)(void *arg, const char *word, size_t size);

/** Calls fn for the words of text (valid UTF-8) in order. scratch is cleared and used. */
int tt_pretokenizer_split(const struct tt_pretokenizer *p, struct tt_matcher *matcher, struct tt_text *scratch,
                          const char *text, size_t size, tt_word_fn fn, void *arg) TT_MUST_CHECK;

#endif
