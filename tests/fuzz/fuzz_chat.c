/* SPDX-License-Identifier: MIT
 *
 * A line of chat data, written by each of the templates, and by one that does not mark answers. Every token has its
 * mark, and an answer is learned.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/builtin.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/data/chat.h"
#include "fuzz.h"

/* A template that writes the last answer differently from earlier ones, trims some, and begins them with reasoning. */
static const char config[] =
    "{\"bos_token\": \"<|begin_of_text|>\", \"eos_token\": \"<|end_of_text|>\", \"chat_template\": \""
    "{% for m in messages %}<|im_start|>{{ m.role }} {% if m.role == 'assistant' %}"
    "{{ '<think>' ~ (m.thinking if m.thinking is string else '') ~ '</think>' if loop.last }}"
    "{{ m.content.split('</think>')[-1] | trim }}{{ '<|eot_id|>' if loop.last else ' <|im_end|>' }}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant <think>{% endif %}\"}";

/* The built-in tokenizer with the tokens of the templates. */
static struct tt_tokenizer *make_tokenizer(void)
{
    static const char *const tokens[] = {"<|start_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"};
    static const char mark[] = "\"added_tokens\": [";
    struct tt_builtin json = tt_builtin_get(TT_BUILTIN_TOKENIZER);
    struct tt_text added = {0}, text = {0};
    struct tt_tokenizer *t = NULL;

    tt_text_add(&added, "%s", mark);
    for (int i = 0; i < 4; i++)
        tt_text_add(&added,
                    "{\"id\": %d, \"content\": \"%s\", \"special\": true, \"single_word\": false, \"lstrip\": false, "
                    "\"rstrip\": false, \"normalized\": false},",
                    2048 + i, tokens[i]);
    tt_text_add_replaced(&text, json.bytes, json.size, mark, added.text);
    if (tt_tokenizer_parse(text.text, text.size, config, sizeof config - 1, "fuzz", &t) < 0)
        abort();
    tt_text_release(&added);
    tt_text_release(&text);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"llama3", "qwen3", "chatml", "auto"};
    static struct tt_tokenizer *tokenizer;
    static struct tt_chat *chats[4];
    struct tt_chat_ids ids = {0};

    if (!tokenizer)
        tokenizer = make_tokenizer();
    for (int i = 0; i < 4 && tt_utf8_invalid((const char *)data, size) < 0; i++) {
        size_t learned = 0;

        if (!chats[i] && tt_chat_new(tokenizer, names[i], &chats[i]) < 0)
            abort();
        if (tt_chat_read(chats[i], (const char *)data, size, &ids) < 0)
            continue;
        for (size_t k = 0; k < ids.counts.n; k++)
            learned += ids.counts.id[k] == 1;
        if (ids.ids.n != ids.counts.n || !learned)
            abort();
    }
    tt_chat_ids_release(&ids);
    return 0;
}
