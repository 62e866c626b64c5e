/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_CHAT_H
#define TT_DATA_CHAT_H

#include <stddef.h>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"

/**
 * Turns lines of chat data into tokens, of which only the answers are learned. A line is an object with one of
 *     messages               a list of {role, content}, which the chat template writes; the answers are the messages of
 *                            the assistant whose weight is not 0, each with the token that ends its turn
 *     prompt and completion  (or response), or instruction, input and output: texts, written one after the other
 *                            between BOS and EOS without a template; the answer is the second one, with EOS
 */
struct tt_chat;

/** The members of such a line, and names that show that data are conversations, of this form or another. */
#define TT_CHAT_MEMBERS "messages|tools|prompt|completion|response|instruction|input|output|conversations"
#define TT_CHAT_NAMES   "messages|conversation|conversations|prompt|instruction|response|completion|chosen|rejected"

struct tt_chat_ids {
    struct tt_ids ids;
    struct tt_ids counts; /* for every id: 1 if it is part of an answer, else 0 */
};

/**
 * The tokenizer must outlive it. template_name: see tt_chat_template_new, which is called only when a template is
 * needed.
 */
int tt_chat_new(const struct tt_tokenizer *tokenizer, const char *template_name,
                struct tt_chat **ret_chat) TT_MUST_CHECK;
void tt_chat_free(struct tt_chat *chat);

/**
 * Sets ret_ids, which the caller zero-initialises and releases, to the tokens of a line of valid UTF-8. TT_EDATA: the
 * message says what is wrong with the line, but not which line it is; TT_EUSAGE if the chat template is not known.
 */
int tt_chat_read(struct tt_chat *chat, const char *line, size_t size, struct tt_chat_ids *ret_ids) TT_MUST_CHECK;

/** The token that ends an answer, or -1. TT_EUSAGE if the chat template is not known. */
int tt_chat_end(struct tt_chat *chat, int32_t *ret_end) TT_MUST_CHECK;

/** Appends {role, content} to messages, an array. TT_EDATA if the text is not UTF-8. */
int tt_chat_add(json_t *messages, const char *role, const char *text, size_t size) TT_MUST_CHECK;

/**
 * Sets ret_ids to the tokens that ask for an answer: the messages, an array of {role, content}, and the beginning of
 * the assistant's turn. TT_EDATA if the template refuses them; TT_EUSAGE if the chat template is not known.
 */
int tt_chat_ask(struct tt_chat *chat, const json_t *messages, struct tt_chat_ids *ret_ids) TT_MUST_CHECK;

void tt_chat_ids_release(struct tt_chat_ids *ids);

#endif
