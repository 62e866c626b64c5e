/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_ADDED_H
#define TT_CORE_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/json.h"
#include "core/tokenizer/normalizer.h"
#include "core/tokenizer/passages.h"
#include "core/tokenizer/regex.h"
#include "core/tokenizer/strmap.h"

/** The added_tokens of a tokenizer.json: strings that are searched for before the text is cut into words. */
struct tt_added_token {
    char *content;
    size_t size;
    int32_t id;
    bool is_special, is_single_word, strips_left, strips_right;
    bool is_normalized; /* searched for in a second pass, in the normalised text between the tokens of the first */
};

struct tt_added {
    struct tt_normalizer normalizer; /* of the tokenizer */
    struct tt_added_token *token;
    int n, cap;
    struct tt_strmap index[2]; /* content -> index in token, of each pass */
    size_t *length[2];         /* distinct lengths of the contents of each pass, longest first */
    int n_lengths[2], cap_lengths[2];
    bool begins[2][256]; /* first bytes of the contents of a pass */
    struct tt_regex *word_begin, *word_end, *space_begin, *space_end;
};

/**
 * Reads "added_tokens" (an array or absent) and "normalizer", which is applied between the passes. Zero-initialise
 * first; release also after an error.
 */
int tt_added_init(struct tt_added *added, const json_t *json, const json_t *normalizer,
                  const char *where) TT_MUST_CHECK;
void tt_added_release(struct tt_added *added);

/**
 * Receives a piece of text. id: of an added token, or -1 for text between tokens; is_first: the whole text begins with
 * this piece; passages: what of the piece is marked. Returns 0 or an error, which ends the splitting.
 */
typedef int (*tt_added_fn)(void *arg, int32_t id, const char *text, size_t size, bool is_first,
                           const struct tt_passages *passages);

/**
 * Calls fn for the pieces of text in order; text between tokens is normalised. find_special false: special
 * tokens are text. passages: what of the text is marked, followed through the normaliser.
 */
int tt_added_split(const struct tt_added *added, struct tt_matcher *matcher, bool find_special, const char *text,
                   size_t size, const struct tt_passages *passages, tt_added_fn fn, void *arg) TT_MUST_CHECK;

/** The added token whose content text begins with, the longest of them; NULL: none. */
const struct tt_added_token *tt_added_at(const struct tt_added *added, const char *text, size_t size);

#endif
