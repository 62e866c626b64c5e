/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_GENERATE_PROMPT_H
#define TT_CLI_GENERATE_PROMPT_H

#include "cli/generate/pretrained.h"
#include "core/config/args.h"
#include "core/data/chat.h"

/**
 * The prompt: text or token ids, and the tokens that end a text.
 */
struct tt_prompt {
    char *text; /* NULL when it was given as tokens, and of a conversation */
    struct tt_ids ids;
    struct tt_ids stop;
    struct tt_tokenizer *tokenizer; /* NULL: tokens only */
    struct tt_chat *chat;           /* with --chat */
};

/** Whether what is said comes from standard input, turn by turn: --chat without a prompt. */
bool tt_prompt_is_conversation(const struct tt_args *args);

/**
 * Reads --prompt, --prompt_file or --prompt_tokens, one of them, and --tokenizer. Text gets a BOS token if the model
 * was trained with one: always after training with titan (if the tokenizer has one), else as the tokenizer says. With
 * --chat the text is what a user says, written by the chat template, and the token that ends the answer ends the text.
 * A conversation has no text and no tokens yet.
 *   TT_EUSAGE  no prompt, an empty one, more than one, a token beyond the vocabulary, no or an unknown chat template
 *   TT_EDATA   no tokenizer for a text, a file that cannot be read, text that is not UTF-8
 */
int tt_prompt_read(const struct tt_args *args, const struct tt_pretrained *weights,
                   struct tt_prompt *ret_prompt) TT_MUST_CHECK;
void tt_prompt_release(struct tt_prompt *prompt);

/** TT_EDATA if the tokenizer makes a token of the prompt that the model does not have. */
int tt_prompt_check_ids(const struct tt_pretrained *weights, const struct tt_prompt *prompt,
                        const struct tt_ids *ids) TT_MUST_CHECK;

#endif
