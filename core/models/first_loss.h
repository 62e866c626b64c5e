/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_FIRST_LOSS_H
#define TT_MODELS_FIRST_LOSS_H

#include "core/models/model.h"

/**
 * The loss that a model is expected to have before its first update, from its initialisation alone. It is the sum of
 * three parts.
 *
 *     blind   ln V: all V tokens equally likely
 *     spread  logits differ at random, with the variance s2 of D products of a normalised element and a weight of the
 *             head: the logarithm of the mean of exp(logit) is s2 / 2 (above s2 = 2 ln V a few logits decide it, and it
 *             is s sqrt(2 ln V) - ln V); a soft cap of the logits is applied to them
 *     own     a tied head has the embedding of the token that was read, and the last hidden state still contains that
 *             embedding: its logit is far above the others, and it is the wrong answer
 *
 * How much of the embedding the last hidden state contains is estimated by carrying second moments through the forward
 * graph, as mean field theory does (Poole et al. 2016): weights are independent of what they multiply. A real first
 * loss also depends on the batch: labels that are frequent have one logit each, and these do not average out.
 */
struct tt_first_loss {
    double loss; /* the sum */
    double blind, spread, own;
    double variance;  /* of the logits, s2; behind the soft cap */
    double own_logit; /* the mean logit of the token itself; 0 if the head is not tied */
};

/* What is known of the text: the probability that two tokens far from each other are equal, and two neighbours. */
struct tt_text_repeats {
    double anywhere, next;
};

/** False, and nothing is known, if the head is tied and the graph has an op that the estimate does not cover. */
bool tt_model_first_loss(const struct tt_model *model, int64_t seq_len, const struct tt_text_repeats *repeats,
                         struct tt_first_loss *ret_loss);

#endif
