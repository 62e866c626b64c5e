/* SPDX-License-Identifier: MIT */
#ifndef TT_TOKENIZER_TRAIN_WORDS_H
#define TT_TOKENIZER_TRAIN_WORDS_H

#include "core/tokenizer/pretokenizer.h"
#include "core/tokenizer/strmap.h"

/**
 * How often every word of a text occurs; a word is what a pre-tokenizer cuts. The memory is bounded: when there are
 * `most` different words, the rarest are dropped, which can change the tokens a little.
 *
 *     struct tt_word_counts words = {0};
 *     TT_TRY(tt_word_counts_init(&words, "gpt2", TT_WORDS_MOST));
 *     TT_TRY(tt_word_counts_add(&words, text, size));       // for every document
 *     ...
 *     tt_word_counts_release(&words);
 */
struct tt_word_counts {
    struct tt_pretokenizer pretokenizer;
    json_t *json; /* the same, as in tokenizer.json */
    struct tt_matcher *matcher;
    struct tt_text scratch;
    struct tt_strmap count;
    size_t most;
    int64_t n_words;   /* that were added, with repetitions */
    int64_t n_dropped; /* of these, words that were dropped */
};

/** About 2 GiB. */
enum { TT_WORDS_MOST = 16 << 20 };

/** pattern: "gpt2", "llama3", or a regular expression. TT_EDATA for one that titan cannot use. */
int tt_word_counts_init(struct tt_word_counts *words, const char *pattern, size_t most) TT_MUST_CHECK;
void tt_word_counts_release(struct tt_word_counts *words);

/** Counts the words of a document of valid UTF-8. */
int tt_word_counts_add(struct tt_word_counts *words, const char *text, size_t size) TT_MUST_CHECK;

#endif
