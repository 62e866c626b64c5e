/* SPDX-License-Identifier: MIT */
#ifndef TT_TOKENIZER_TRAIN_MERGES_H
#define TT_TOKENIZER_TRAIN_MERGES_H

#include "core/tokenizer/train/words.h"

/**
 * A byte-level BPE vocabulary: special tokens, the 256 bytes in the order of their characters, then one token per
 * merge. The merges are those of the `tokenizers` library's BpeTrainer on the same words: the most frequent pair of
 * tokens first, and of equally frequent ones that with the lower ids.
 */
struct tt_merge {
    int32_t left, right, result;
};

struct tt_bpe_trained {
    char **token; /* of every id, in the byte-level alphabet; special tokens as they are */
    int n_tokens, cap_tokens;
    int n_special;
    struct tt_merge *merge;
    int n_merges, cap_merges;
    int64_t text_bytes, text_tokens; /* of the words, with repetitions */
};

/**
 * Learns merges until there are vocab_size tokens, or until no pair is left. `special` are the first tokens. The result
 * depends on the counts alone. TT_EUSAGE if vocab_size has no room for the special tokens and bytes.
 */
int tt_bpe_train(const struct tt_word_counts *words, int64_t vocab_size, int n_special, const char *const *special,
                 struct tt_bpe_trained *ret_trained) TT_MUST_CHECK;
void tt_bpe_trained_release(struct tt_bpe_trained *trained);

/** tokenizer.json and tokenizer_config.json in folder, which is made if it is missing; bos and eos may be NULL. */
int tt_bpe_write(const struct tt_bpe_trained *trained, const struct tt_word_counts *words, const char *bos,
                 const char *eos, const char *folder) TT_MUST_CHECK;

#endif
