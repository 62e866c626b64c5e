/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_TEXT_H
#define TT_TRAINER_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "trainer/data/data.h"
#include "trainer/generation.h"
#include "trainer/job/setup.h"
#include "trainer/step/reporter.h"

/**
 * Texts sampled from the model during training (metrics.sample_freq). The ranks send their weights to rank 0, which
 * makes a generator for each text. So the text depends only on the weights and the prompt, and `titan generate` makes
 * the same text from a checkpoint.
 *
 *     tt_train_text_open      makes the prompt, once the data is open
 *     tt_train_text_sample    after a step that metrics.sample_freq chooses
 *     tt_train_text_release
 */
struct tt_train_text {
    const struct tt_setup *setup;
    struct tt_tokenizer *own; /* a tokenizer, if the data opened none; NULL: the data did, or none is known */
    const struct tt_tokenizer *tokenizer; /* NULL: texts consist of token ids */
    const char *prompt;                   /* the text of the prompt; NULL: the beginning of a document */
    struct tt_ids ids;                    /* the prompt */
    int32_t stop;                         /* the token that ends a text; -1: there is none */
};

/**
 * The set-up and the data must outlive `text`. Does nothing if the run samples no texts. TT_EUSAGE if the prompt cannot
 * be used. Collective.
 */
int tt_train_text_open(const struct tt_setup *setup, const struct tt_train_data *data,
                       struct tt_train_text *ret_text) TT_MUST_CHECK;
void tt_train_text_release(struct tt_train_text *text);

/**
 * The tokenizer of the data: for text the one that reads it; for packed tokens the run's, unless the file says that
 * another one made them. NULL: it is not known. The caller frees *ret_own, which may be NULL.
 */
int tt_train_text_tokenizer(const struct tt_setup *setup, const struct tt_train_data *data,
                            struct tt_tokenizer **ret_own, const struct tt_tokenizer **ret_tokenizer) TT_MUST_CHECK;

/**
 * Makes a generator with the current weights, or with their averages if validation uses those, on rank 0; the caller
 * frees it, also after an error. *ret_generator is NULL at first, and stays NULL on other ranks. TT_EFIT, TT_ENOMEM: as
 * tt_generator_allocate. Collective.
 */
int tt_train_text_generator(const struct tt_setup *setup, const struct tt_generator_options *options,
                            struct tt_generator **ret_generator) TT_MUST_CHECK;

/**
 * Samples a text from the current weights, or from their averages if validation uses those, and reports it. Changes
 * nothing. If the system refuses the memory, or a value is not finite, reports that; training continues. Collective.
 */
int tt_train_text_sample(const struct tt_train_text *text, int64_t step, struct tt_reporter *reporter) TT_MUST_CHECK;

#endif
