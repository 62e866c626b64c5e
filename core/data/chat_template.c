/* SPDX-License-Identifier: MIT
 *
 * The chat templates. What each makes of a conversation equals Hugging Face's apply_chat_template, without tools and
 * without a prompt for the next answer.
 */
#include "core/data/chat_template.h"

#include <string.h>

#include "core/base/utf8.h"

/* Marks are without white space and have message.role, not message['role'] (is_written_as). */
static const struct tt_chat_template templates[] = {
    {.name = "llama3",
     .bos = true,
     .trims = true,
     .before_role = "<|start_header_id|>",
     .after_role = "<|end_header_id|>\n\n",
     .end = "<|eot_id|>",
     .after_end = "",
     .has = {"'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'",
             "content=bos_token+content"},
     .lacks = {"CuttingKnowledgeDate", "message.tool_calls"}}, /* of Llama 3.1, whose system message has a date */
    {.name = "qwen3",
     .thinks = true,
     .before_role = "<|im_start|>",
     .after_role = "\n",
     .end = "<|im_end|>",
     .after_end = "\n",
     .has = {"'\\n<think>\\n'+reasoning_content.strip('\\n')+'\\n</think>\\n\\n'+content.lstrip('\\n')",
             "ifloop.lastor(notloop.lastandreasoning_content)", "ifloop.index0>ns.last_query_index", "'</think>'in"}},
    {.name = "chatml",
     .before_role = "<|im_start|>",
     .after_role = "\n",
     .end = "<|im_end|>",
     .after_end = "\n",
     .has = {"'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'+'\\n'"},
     .lacks = {"think>", "Youare", "tools", "bos_token"}}, /* of its relatives, such as Qwen2's */
};

enum { N_TEMPLATES = sizeof templates / sizeof templates[0] };

/* --- choosing --- */

/* Removes white space and makes all quotes the same. A line that ends in a string becomes the escape that means the
 * same: some tokenizers have the one, some the other. Strings are looked for only in {{ }} and {% %}. */
static void normalize_strings(const char *text, struct tt_text *out)
{
    bool in_code = false;
    char quote = 0; /* of the string at this place; 0: none */

    tt_text_add_bytes(out, "", 0);
    for (; *text; text++) {
        if (!quote && *text == '{' && (text[1] == '{' || text[1] == '%'))
            in_code = true;
        else if (!quote && (*text == '}' || *text == '%') && text[1] == '}')
            in_code = false;
        if (quote && *text == '\\' && text[1])
            tt_text_add_bytes(out, text++, 1); /* the next character does not end the string */
        else if (in_code && (quote ? *text == quote : *text == '\'' || *text == '"'))
            quote = quote ? 0 : *text;
        if (quote && *text == '\n')
            tt_text_add(out, "\\n");
        else if (!strchr(" \t\r\n", *text))
            tt_text_add_bytes(out, *text == '"' ? "'" : text, 1);
    }
}

/* The text of a template in the spelling of the marks, so that those of many tokenizers are the same. */
static void normalize(const char *text, struct tt_text *out)
{
    struct tt_text quotes = {0}, roles = {0}, ends = {0};

    normalize_strings(text, &quotes);
    tt_text_add_bytes(&roles, "", 0);
    tt_text_add_replaced(&roles, quotes.text, quotes.size, "message['role']", "message.role");
    tt_text_add_bytes(&ends, "", 0);
    tt_text_add_replaced(&ends, roles.text, roles.size, "message['content']", "message.content");
    tt_text_add_bytes(out, "", 0);
    tt_text_add_replaced(out, ends.text, ends.size, "'<|im_end|>\\n'", "'<|im_end|>'+'\\n'");
    tt_text_release(&quotes);
    tt_text_release(&roles);
    tt_text_release(&ends);
}

static bool is_written_as(const struct tt_chat_template *t, const char *text)
{
    bool same = true;

    for (int i = 0; i < TT_CHAT_MARKS; i++) {
        same = same && (!t->has[i] || strstr(text, t->has[i]));
        same = same && (!t->lacks[i] || !strstr(text, t->lacks[i]));
    }
    return same;
}

static const struct tt_chat_template *find_template(const char *name, const char *text)
{
    struct tt_text normal = {0};
    const struct tt_chat_template *found = NULL;
    bool is_auto = strcmp(name, "auto") == 0;

    if (is_auto && text)
        normalize(text, &normal);
    for (int i = 0; i < N_TEMPLATES && !found; i++)
        if (is_auto ? text && is_written_as(&templates[i], normal.text) : strcmp(name, templates[i].name) == 0)
            found = &templates[i];
    tt_text_release(&normal);
    return found;
}

/* Fails because no template is known; text is the tokenizer's, or NULL. */
static int fail_unknown(const struct tt_tokenizer *tokenizer, const char *name, const char *text)
{
    struct tt_text names = {0};
    int rc;

    for (int i = 0; i < N_TEMPLATES; i++)
        tt_text_add(&names, "%s%s", i ? ", " : "", templates[i].name);
    if (strcmp(name, "auto") != 0)
        rc =
            tt_fail_key(TT_EUSAGE, TT_KEY_CHAT_TEMPLATE, "chat template '%s' is not one of auto, %s", name, names.text);
    else if (text)
        rc = tt_fail_key(TT_EUSAGE, TT_KEY_CHAT_TEMPLATE,
                         "the chat template of %s is not one that titan knows: %s\n"
                         "help: if one of these writes the same text, set %s to its name",
                         tt_tokenizer_where(tokenizer), names.text, tt_key_name(TT_KEY_CHAT_TEMPLATE));
    else
        rc = tt_fail_key(TT_EUSAGE, TT_KEY_CHAT_TEMPLATE, "%s has no chat template\nhelp: set %s to one of %s",
                         tt_tokenizer_where(tokenizer), tt_key_name(TT_KEY_CHAT_TEMPLATE), names.text);
    tt_text_release(&names);
    return rc;
}

/* Turns begin and end with tokens, not with text that looks like them. */
static int check_tokens(const struct tt_chat_template *t, const struct tt_tokenizer *tokenizer)
{
    const char *const tokens[] = {t->before_role, t->end};

    for (int i = 0; i < 2; i++) {
        if (tt_tokenizer_added_at(tokenizer, tokens[i], strlen(tokens[i])) != strlen(tokens[i]))
            return tt_fail_key(TT_EUSAGE, TT_KEY_CHAT_TEMPLATE,
                               "chat template %s needs the token %s, which is not an added token of %s\n"
                               "help: use a tokenizer that has it, or another template",
                               t->name, tokens[i], tt_tokenizer_where(tokenizer));
    }
    if (t->bos && tt_tokenizer_bos(tokenizer) < 0)
        return tt_fail_key(TT_EUSAGE, TT_KEY_CHAT_TEMPLATE,
                           "chat template %s needs a token that begins a document, and %s names none", t->name,
                           tt_tokenizer_where(tokenizer));
    return 0;
}

int tt_chat_template_choose(const char *name, const struct tt_tokenizer *tokenizer,
                            const struct tt_chat_template **ret_template)
{
    const char *text = tt_tokenizer_chat_template(tokenizer);
    const struct tt_chat_template *found = find_template(name, text);
    int rc = found ? check_tokens(found, tokenizer) : fail_unknown(tokenizer, name, text);

    if (rc == 0)
        *ret_template = found;
    return rc;
}

/* --- writing --- */

struct part {
    const char *text;
    size_t size;
};

/* White space as Python's str.strip has it. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static struct part trim(struct part p)
{
    size_t first = 0, last = 0; /* of what stays: its first byte, and the byte after it */
    bool begun = false;

    for (size_t at = 0; at < p.size;) {
        uint32_t c = 0;
        int n = tt_utf8_decode(p.text + at, p.size - at, &c);

        n = n > 0 ? n : 1;
        if (!is_space(c)) {
            first = begun ? first : at;
            begun = true;
            last = at + (size_t)n;
        }
        at += (size_t)n;
    }
    return (struct part){p.text + first, last - first};
}

static struct part without_lines_before(struct part p)
{
    for (; p.size && *p.text == '\n'; p.text++)
        p.size--;
    return p;
}

static struct part without_lines_after(struct part p)
{
    while (p.size && p.text[p.size - 1] == '\n')
        p.size--;
    return p;
}

/* Where the last (or the first) `mark` in p begins, or NULL. */
static const char *find(struct part p, const char *mark, bool last)
{
    const char *found = NULL;
    size_t n = strlen(mark);

    for (size_t at = 0; at + n <= p.size && (last || !found); at++)
        if (memcmp(p.text + at, mark, n) == 0)
            found = p.text + at;
    return found;
}

static struct part after(struct part p, const char *at, const char *mark)
{
    const char *begin = at ? at + strlen(mark) : p.text;

    return (struct part){begin, (size_t)(p.text + p.size - begin)};
}

/* Splits the reasoning off a content that holds it. */
static void split_reasoning(struct part *content, struct part *ret_reasoning)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *end = find(*content, close, false);
    struct part reasoning;

    if (!end)
        return;
    reasoning = without_lines_after((struct part){content->text, (size_t)(end - content->text)});
    *ret_reasoning = without_lines_before(after(reasoning, find(reasoning, open, true), open));
    *content = without_lines_before(after(*content, find(*content, close, true), close));
}

static bool begins_with(struct part p, const char *mark)
{
    return p.size >= strlen(mark) && memcmp(p.text, mark, strlen(mark)) == 0;
}

static bool ends_with(struct part p, const char *mark)
{
    return p.size >= strlen(mark) && memcmp(p.text + p.size - strlen(mark), mark, strlen(mark)) == 0;
}

/* What a user says is a question, unless it is the result of a tool. Without any, the last message counts as one. */
static size_t last_question(const struct tt_chat_message *messages, size_t n)
{
    size_t last = n - 1;

    for (size_t i = 0; i < n; i++) {
        struct part content = {messages[i].content, messages[i].content_size};

        if (strcmp(messages[i].role, "user") == 0 &&
            !(begins_with(content, "<tool_response>") && ends_with(content, "</tool_response>")))
            last = i;
    }
    return last;
}

static void write_thinking(const struct tt_chat_message *messages, size_t n, size_t i, struct part content,
                           struct tt_text *body)
{
    struct part reasoning = {messages[i].reasoning, messages[i].reasoning_size};

    if (!reasoning.text)
        split_reasoning(&content, &reasoning);
    if (i > last_question(messages, n) && (i + 1 == n || reasoning.size)) {
        reasoning = without_lines_before(without_lines_after(reasoning));
        content = without_lines_before(content);
        tt_text_add(body, "<think>\n");
        tt_text_add_bytes(body, reasoning.size ? reasoning.text : "", reasoning.size);
        tt_text_add(body, "\n</think>\n\n");
    }
    tt_text_add_bytes(body, content.text, content.size);
}

static void write_message(const struct tt_chat_template *chat, const struct tt_chat_message *messages, size_t n,
                          size_t i, struct tt_text *text, struct tt_passages *learned)
{
    struct part content = {messages[i].content, messages[i].content_size};
    size_t begin;

    tt_text_add(text, "%s%s%s", chat->before_role, messages[i].role, chat->after_role);
    begin = text->size;
    if (chat->thinks && strcmp(messages[i].role, "assistant") == 0) {
        write_thinking(messages, n, i, content, text);
    } else {
        content = chat->trims ? trim(content) : content;
        tt_text_add_bytes(text, content.text, content.size);
    }
    tt_text_add(text, "%s", chat->end);
    if (messages[i].is_answer)
        tt_passages_add(learned, begin, text->size);
    tt_text_add(text, "%s", chat->after_end);
}

void tt_chat_template_write(const struct tt_chat_template *chat, const struct tt_tokenizer *tokenizer,
                            const struct tt_chat_message *messages, size_t n, bool asks, struct tt_text *text,
                            struct tt_passages *learned)
{
    size_t size = 0;
    const char *bos = tt_tokenizer_id_to_token(tokenizer, tt_tokenizer_bos(tokenizer), &size);

    if (chat->bos)
        tt_text_add_bytes(text, bos, size);
    for (size_t i = 0; i < n; i++)
        write_message(chat, messages, n, i, text, learned);
    if (asks)
        tt_text_add(text, "%sassistant%s", chat->before_role, chat->after_role);
}
