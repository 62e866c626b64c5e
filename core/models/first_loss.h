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
 *     own     a tied head contains the embedding of the token that was read, and the last hidden state still contains
 *             that embedding: its logit is far above the others, and it is the wrong answer
 *
 * How much of the embedding the last hidden state contains is estimated by carrying second moments through the forward
 * graph, as mean field theory does (Poole et al. 2016): weights are independent of their inputs. A real first loss also
 * depends on the batch: labels that are frequent have one logit each, and these do not average out.
 */
struct tt_first_loss {
    double loss; /* the sum of the parts */
    double blind, spread, own;
    double variance;  /* variance of the logits, s2; after the soft cap */
    double own_logit; /* the mean logit of the token itself; 0 if the head is not tied */
};

/* Facts about the text: the probabilities that two tokens far from each other are equal, and that two neighbours
 * are. */
struct tt_text_repeats {
    double anywhere, next;
};

/**
 * Returns false, with nothing set, if the head is tied and the graph contains an op that the estimate does not cover.
 */
bool tt_model_first_loss(const struct tt_model *model, int64_t seq_len, const struct tt_text_repeats *repeats,
                         struct tt_first_loss *ret_loss);

#endif
