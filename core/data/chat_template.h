/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_CHAT_TEMPLATE_H
#define TT_DATA_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/tokenizer/tokenizer.h"

/**
 * Writes a conversation as text with a Jinja template (core/data/jinja), the tokenizer's own or one of a table, and
 * finds the learned parts of the text. The text equals the result of Hugging Face's apply_chat_template.
 */
struct tt_chat_template;

/**
 * The template `name` of the table, or for "auto" the tokenizer's own. The tokenizer must outlive it. TT_EUSAGE if
 * there is no such template (with a list of all), if the tokenizer lacks a token of a template in the table, or if
 * titan does not understand the template (with its file and line).
 */
int tt_chat_template_new(const char *name, const struct tt_tokenizer *tokenizer,
                         struct tt_chat_template **ret_template) TT_MUST_CHECK;
void tt_chat_template_free(struct tt_chat_template *chat);

/** Appends the text of messages (an array of objects), and the beginning of an answer. */
int tt_chat_template_ask(const struct tt_chat_template *chat, const json_t *messages,
                         struct tt_text *text) TT_MUST_CHECK;

/**
 * Appends the text of a conversation. Adds to `learned` the answers (messages i with is_answer[i]), each with the token
 * that ends its turn. TT_EDATA if the template refuses the conversation, or if an answer cannot be found in the text.
 */
int tt_chat_template_write(const struct tt_chat_template *chat, const json_t *messages, const bool *is_answer,
                           struct tt_text *text, struct tt_passages *learned) TT_MUST_CHECK;

/** The token that ends an answer, or -1. */
int32_t tt_chat_template_end(const struct tt_chat_template *chat);

/** Appends the text of the template in Jinja, as other programs read it: without {% generation %}. */
void tt_chat_template_text(const struct tt_chat_template *chat, struct tt_text *text);

/** Sets ret_same to whether both templates write the same text for a number of conversations. */
int tt_chat_template_compare(const struct tt_chat_template *a, const struct tt_chat_template *b,
                             bool *ret_same) TT_MUST_CHECK;

#endif
