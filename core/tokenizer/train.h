/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_TRAIN_H
#define TT_CORE_TOKENIZER_TRAIN_H

#include "core/tokenizer/pretokenizer.h"
#include "core/tokenizer/strmap.h"

/**
 * Counts of the words into which a pre-tokenizer cuts a text. The memory is bounded: when there are
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
    int64_t n_words;   /* words that were added, with repetitions */
    int64_t n_dropped; /* how many of these were dropped */
};

/** About 2 GiB. */
enum { TT_WORDS_MOST = 16 << 20 };

/** pattern: "gpt2", "llama3", or a regular expression. TT_EDATA for one that titan cannot use. */
int tt_word_counts_init(struct tt_word_counts *words, const char *pattern, size_t most) TT_MUST_CHECK;
void tt_word_counts_release(struct tt_word_counts *words);

/** Counts the words of a document of valid UTF-8. */
int tt_word_counts_add(struct tt_word_counts *words, const char *text, size_t size) TT_MUST_CHECK;

/**
 * A byte-level BPE vocabulary: special tokens, the 256 bytes in the order of their characters, then one token per
 * merge. The `tokenizers` library's BpeTrainer learns the same merges from the same words: the most frequent pair of
 * tokens first, and among equally frequent pairs the one with the lower ids.
 */
struct tt_merge {
    int32_t left, right, result;
};

struct tt_bpe_trained {
    char **token; /* text of every id, in the byte-level alphabet; special tokens as they are */
    int n_tokens, cap_tokens;
    int n_special;
    struct tt_merge *merge;
    int n_merges, cap_merges;
    int64_t text_bytes, text_tokens; /* bytes of the words, with repetitions */
};

/**
 * Learns merges until there are vocab_size tokens, or until no pair is left. The first tokens are `special`. The result
 * depends on the counts alone. TT_EUSAGE if vocab_size has no room for the special tokens and bytes.
 */
int tt_bpe_train(const struct tt_word_counts *words, int64_t vocab_size, int n_special, const char *const *special,
                 struct tt_bpe_trained *ret_trained) TT_MUST_CHECK;
void tt_bpe_trained_release(struct tt_bpe_trained *trained);

/**
 * Writes tokenizer.json and tokenizer_config.json into folder, which it creates if necessary; bos and eos may be NULL.
 */
int tt_bpe_write(const struct tt_bpe_trained *trained, const struct tt_word_counts *words, const char *bos,
                 const char *eos, const char *folder) TT_MUST_CHECK;

#endif
