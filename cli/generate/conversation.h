/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_GENERATE_CONVERSATION_H
#define TT_CLI_GENERATE_CONVERSATION_H

#include "cli/generate/prompt.h"
#include "core/models/sampling.h"
#include "parallel/engine/generator.h"

/**
 * A conversation: turns of a user from standard input, and the answers of the model on standard output. The model sees
 * all earlier turns. Of these only what differs from what it has read is fed again. When the context is full, it no
 * longer sees the oldest turns, which is said.
 *
 * On a terminal there is a prompt, and Ctrl-C stops an answer. An error of one turn is shown there and the conversation
 * goes on; elsewhere it ends it.
 */
struct tt_conversation {
    struct tt_generator *generator; /* with the weights */
    const struct tt_pretrained *weights;
    const struct tt_prompt *prompt; /* with chat template, tokenizer, and the tokens that end an answer */
    struct tt_sampling sampling;
    const char *system; /* what the system says first; NULL: nothing */
    int64_t context, prompt_rows, max_new_tokens;
    uint64_t seed;
    bool ignore_eos;
};

/** TT_EUSAGE if there is no turn at all, and for a turn that is too long or no command; TT_EDATA, TT_EIO. */
int tt_conversation_run(const struct tt_conversation *conversation) TT_MUST_CHECK;

#endif
