/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_CHAT_TEMPLATE_H
#define TT_DATA_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/tokenizer.h"

/**
 * How a conversation is written as text: a table of the templates that titan knows, each with the text that Hugging
 * Face's apply_chat_template makes of it. The templates of tokenizers are recognised, not interpreted.
 */
struct tt_chat_message {
    char *role;                /* "system", "user" or "assistant" */
    char *content, *reasoning; /* reasoning NULL: none apart from the content */
    size_t content_size, reasoning_size;
    bool is_answer; /* what the assistant says, and is learned */
};

enum { TT_CHAT_MARKS = 4 };

struct tt_chat_template {
    const char *name;
    bool bos;    /* a conversation begins with the tokenizer's BOS */
    bool trims;  /* white space around contents is left out */
    bool thinks; /* answers after the last question have a block of reasoning, others have none */
    const char *before_role, *after_role;
    const char *end;       /* the token that ends a turn; the model learns it */
    const char *after_end; /* what comes before the next turn; not learned */
    /* what a tokenizer's template must have and must lack, as tt_chat_template_choose writes it, to be this one */
    const char *has[TT_CHAT_MARKS], *lacks[TT_CHAT_MARKS];
};

/**
 * The template `name`, or for "auto" that of the tokenizer. TT_EUSAGE listing what there is if the name or the
 * tokenizer's template is unknown, or if a token of the template is not an added token of the tokenizer.
 */
int tt_chat_template_choose(const char *name, const struct tt_tokenizer *tokenizer,
                            const struct tt_chat_template **ret_template) TT_MUST_CHECK;

/**
 * Appends the text of n messages: with BOS if the template has it, and with the beginning of the assistant's turn if
 * it is to answer. To learned it adds the answers, each with the token that ends its turn.
 */
void tt_chat_template_write(const struct tt_chat_template *chat, const struct tt_tokenizer *tokenizer,
                            const struct tt_chat_message *messages, size_t n, bool asks, struct tt_text *text,
                            struct tt_passages *learned);

#endif
