/* SPDX-License-Identifier: MIT
 *
 * Chat templates: chooses one, and finds the learned parts of its text. If a template marks no parts, titan finds an
 * answer by rendering the conversation with different answers and comparing the texts. It finds where the model begins
 * to write by rendering the messages before the answer, plus the prompt for an answer.
 *
 * To support more of Jinja (core/data/jinja):
 *   1. A filter or test is a row in filter.c, a method one in string.c, a tag one in parser.c. Anything that differs
 *      from Jinja's result is an error.
 *   2. A row in tests/golden/make_jinja_reference.py (needs transformers), and the new tests/unit/data/jinja.json.
 *   3. A seed in tests/fuzz/corpus/jinja.
 *
 * To add a named template:
 *   1. A row in the table below, with {% generation %} around what is learned.
 *   2. Its word in TT_CHAT_CHOICES (core/keys/choices.h), and its name in the key's help in schema.def, in
 *      titan-datasets(7), titan-data(1) and titan-generate(1).
 *   3. The model's own text in tests/golden/make_chat_reference.py, with marks around what is learned, and the new
 *      tests/unit/data/chat.json.
 *   4. Its special tokens in tests/fuzz/fuzz_chat.c, and its name in tests/cli/test_chat.sh.
 * Templates of tokenizers need no code. tests/interop/templates_with_transformers.py compares any number of templates
 * with transformers.
 */
#include "core/data/chat_template.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/data/jinja/jinja.h"

/* The named templates. They mark the parts that are learned. */
static const struct row {
    const char *name;
    bool bos;                /* it needs the tokenizer's BOS */
    const char *begin, *end; /* tokens that it writes */
    const char *text;
} rows[] = {
    {.name = "llama3",
     .bos = true,
     .begin = "<|start_header_id|>",
     .end = "<|eot_id|>",
     .text = "{% for message in messages %}"
             "{{ bos_token if loop.first }}<|start_header_id|>{{ message.role }}<|end_header_id|>{{ '\\n\\n' }}"
             "{% if message.role == 'assistant' %}"
             "{% generation %}{{ message.content | trim }}<|eot_id|>{% endgeneration %}"
             "{% else %}{{ message.content | trim }}<|eot_id|>{% endif %}"
             "{% endfor %}"
             "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}{% endif %}"},
    {.name = "qwen3",
     .begin = "<|im_start|>",
     .end = "<|im_end|>",
     .text = "{% set ns = namespace(last_question=messages|length - 1) %}"
             "{% for message in messages %}"
             "{% if message.role == 'user' and not (message.content.startswith('<tool_response>') and "
             "message.content.endswith('</tool_response>')) %}"
             "{% set ns.last_question = loop.index0 %}"
             "{% endif %}{% endfor %}"
             "{% for message in messages %}"
             "<|im_start|>{{ message.role }}{{ '\\n' }}"
             "{% if message.role == 'assistant' %}{% generation %}"
             "{% set content = message.content %}{% set reasoning = '' %}"
             "{% if message.reasoning_content is string %}{% set reasoning = message.reasoning_content %}"
             "{% elif '</think>' in content %}"
             "{% set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
             "{% set content = content.split('</think>')[-1].lstrip('\\n') %}"
             "{% endif %}"
             "{% if loop.index0 > ns.last_question and (loop.last or reasoning) %}"
             "{{ '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}"
             "{% else %}{{ content }}{% endif %}"
             "<|im_end|>{% endgeneration %}"
             "{% else %}{{ message.content }}<|im_end|>{% endif %}"
             "{{ '\\n' }}"
             "{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"},
    {.name = "chatml",
     .begin = "<|im_start|>",
     .end = "<|im_end|>",
     .text = "{% for message in messages %}"
             "<|im_start|>{{ message.role }}{{ '\\n' }}"
             "{% if message.role == 'assistant' %}"
             "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
             "{% else %}{{ message.content }}<|im_end|>{% endif %}"
             "{{ '\\n' }}"
             "{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"},
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

#define NOWHERE SIZE_MAX

struct tt_chat_template {
    const struct tt_tokenizer *tokenizer;
    const char *text; /* the text of the template, from the table or the tokenizer */
    struct tt_jinja *jinja;
    char *where;        /* its name in messages */
    json_t *context;    /* the template's variables besides the messages */
    char *opening;      /* the beginning of an answer */
    char *closing;      /* the text that follows an answer anywhere, without trailing white space */
    int closing_tokens; /* the most added tokens that `closing` contains */
    int32_t end;
};

/* The position of something in a text. */
struct place {
    size_t begin, end;
};

/* --- choosing --- */

static const struct row *find_row(const char *name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(name, rows[i].name) == 0)
            return &rows[i];
    return NULL;
}

static void list_rows(struct tt_text *names)
{
    for (int i = 0; i < N_ROWS; i++)
        tt_text_add(names, "%s%s", i ? ", " : "", rows[i].name);
}

/* Fails because there is no template. */
static int fail_unknown(const struct tt_tokenizer *tokenizer, const char *name)
{
    enum tt_key key = TT_KEY(training.chat_template);
    struct tt_text names = {0};

    list_rows(&names);
    if (strcmp(name, "auto") != 0)
        (void)tt_fail_key(TT_EUSAGE, key, "chat template '%s' is not one of auto, %s", name, names.text);
    else
        (void)tt_fail_key(TT_EUSAGE, key, "%s has no chat template\nhelp: set %s to one of %s",
                          tt_tokenizer_info(tokenizer)->where, tt_key_name(key), names.text);
    tt_text_release(&names);
    return TT_EUSAGE;
}

/* Checks that the tokenizer has the tokens that begin and end turns as added tokens, so that no text is mistaken for
 * them. */
static int check_tokens(const struct row *row, const struct tt_tokenizer *tokenizer)
{
    const char *const tokens[] = {row->begin, row->end}, *where = tt_tokenizer_info(tokenizer)->where;

    for (int i = 0; i < 2; i++)
        if (tt_tokenizer_added_at(tokenizer, tokens[i], strlen(tokens[i])) != strlen(tokens[i]))
            return tt_fail_key(TT_EUSAGE, TT_KEY(training.chat_template),
                               "chat template %s needs the token %s, which is not an added token of %s\n"
                               "help: use a tokenizer that has it, or another template",
                               row->name, tokens[i], where);
    if (row->bos && tt_tokenizer_info(tokenizer)->bos < 0)
        return tt_fail_key(TT_EUSAGE, TT_KEY(training.chat_template),
                           "chat template %s needs a token that begins a document, and %s names none", row->name,
                           where);
    return 0;
}

static void set_token(json_t *context, const char *name, const struct tt_tokenizer *tokenizer, int32_t id)
{
    size_t size = 0;
    const char *text = tt_tokenizer_id_to_token(tokenizer, id, &size);

    if (size && !json_object_get(context, name))
        (void)json_object_set_new(context, name, json_stringn(text, size));
}

/* The variables that transformers passes to templates: the named tokens of tokenizer_config.json, no tools, no
 * documents. */
static json_t *make_context(const struct tt_tokenizer *tokenizer)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    const struct tt_tokenizer_info *files = tt_tokenizer_info(tokenizer);
    json_t *context = json_object(), *config = NULL;

    if (files->config && tt_json_parse(files->config, files->config_size, "tokenizer_config.json", &config) < 0)
        config = NULL; /* the tokenizer has reported that */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(config, names[i]);

        value = json_is_object(value) ? json_object_get(value, "content") : value;
        if (json_is_string(value))
            (void)json_object_set(context, names[i], value);
    }
    json_decref(config);
    set_token(context, "bos_token", tokenizer, tt_tokenizer_info(tokenizer)->bos);
    set_token(context, "eos_token", tokenizer, tt_tokenizer_info(tokenizer)->eos);
    (void)json_object_set_new(context, "tools", json_null());
    (void)json_object_set_new(context, "documents", json_null());
    return context;
}

/* --- writing --- */

/* Appends the text of the first n messages. generated: see tt_jinja_render. */
static int render(const struct tt_chat_template *chat, const json_t *messages, size_t n, bool asks,
                  struct tt_text *text, struct tt_passages *generated)
{
    json_t *context = json_copy(chat->context), *list = json_array();
    int rc;

    for (size_t i = 0; i < n; i++)
        (void)json_array_append(list, json_array_get(messages, i));
    (void)json_object_set_new(context, "messages", list);
    (void)json_object_set_new(context, "add_generation_prompt", json_boolean(asks));
    rc = tt_jinja_render(chat->jinja, context, text, generated);
    json_decref(context);
    return rc;
}

/* Turns the error into one of the data, since the template could write other conversations. */
static int as_data_error(int rc)
{
    return rc == TT_EUSAGE ? tt_fail(TT_EDATA, "%s", tt_error_message()) : rc;
}

int tt_chat_template_ask(const struct tt_chat_template *chat, const json_t *messages, struct tt_text *text)
{
    return as_data_error(render(chat, messages, json_array_size(messages), true, text, NULL));
}

/* --- finding the parts that are learned --- */

static size_t same_at_begin(const struct tt_text *a, const struct tt_text *b)
{
    size_t n = 0;

    while (n < a->size && n < b->size && a->text[n] == b->text[n])
        n++;
    return n;
}

static size_t same_at_end(const struct tt_text *a, const struct tt_text *b)
{
    size_t n = 0;

    while (n < a->size && n < b->size && a->text[a->size - 1 - n] == b->text[b->size - 1 - n])
        n++;
    return n;
}

static size_t least(size_t a, size_t b, size_t c)
{
    size_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

static bool is_assistant(const json_t *messages, size_t i)
{
    return strcmp(json_string_value(json_object_get(json_array_get(messages, i), "role")), "assistant") == 0;
}

/* Renders the text with different content in message i. */
static int render_instead(const struct tt_chat_template *chat, const json_t *messages, size_t i, const char *content,
                          struct tt_text *text)
{
    json_t *list = json_copy((json_t *)(uintptr_t)messages), *message = json_copy(json_array_get(messages, i));
    int rc;

    (void)json_object_set_new(message, "content", json_string(content));
    (void)json_array_set_new(list, i, message);
    rc = render(chat, list, json_array_size(list), false, text, NULL);
    json_decref(list);
    return rc;
}

/* Finds the content of message i in the text: the part that changes when "a" or "b" replaces the content. */
static int find_content(const struct tt_chat_template *chat, const json_t *messages, size_t i,
                        const struct tt_text *text, struct place *ret_place)
{
    struct tt_text a = {0}, b = {0};
    size_t begin, end;
    int rc = 0;

    TT_TRY(render_instead(chat, messages, i, "a", &a));
    TT_TRY(render_instead(chat, messages, i, "b", &b));
    begin = same_at_begin(&a, &b);
    end = same_at_end(&a, &b);
    if (a.size != b.size || begin + 1 + end != a.size)
        TT_TRY(tt_fail(TT_EDATA, "%s leaves out the text of message %zu, or writes it more than once", chat->where,
                       i + 1));
    begin = least(begin, same_at_begin(text, &a), same_at_begin(text, &b));
    end = least(end, same_at_end(text, &a), same_at_end(text, &b));
    *ret_place = (struct place){begin, text->size - end > begin ? text->size - end : begin};
out:
    tt_text_release(&a);
    tt_text_release(&b);
    return rc;
}

static size_t skip_space(const char *text, size_t size)
{
    size_t n = 0;

    while (n < size && strchr(" \t\r\n", text[n]) && text[n])
        n++;
    return n;
}

/*
 * The place in text[from, to) after the first `size` bytes of the beginning of an answer, or NOWHERE. Ignores white
 * space before it, and white space at its end that the text does not contain.
 */
static size_t find_opening(const struct tt_chat_template *chat, const struct tt_text *text, size_t from, size_t to,
                           size_t size)
{
    size_t space = skip_space(chat->opening, size), n = size;
    const char *wanted = chat->opening + space;

    while (n > space && skip_space(chat->opening + n - 1, 1))
        n--;
    for (size_t at = from; n > space && at + (n - space) <= to; at++) {
        if (memcmp(text->text + at, wanted, n - space) != 0)
            continue;
        for (at += n - space; n < size && at < to && text->text[at] == chat->opening[n]; n++)
            at++;
        return at;
    }
    return NOWHERE;
}

/*
 * Where the model begins to write answer i: after the text of the earlier messages and the beginning of an answer. Some
 * templates write earlier turns differently if more turns follow, or begin answers with reasoning that they remove
 * later; then this function searches for the beginning of an answer between the previous message and the content.
 */
static int find_begin(const struct tt_chat_template *chat, const json_t *messages, size_t i, const struct tt_text *text,
                      size_t content, size_t *ret_begin)
{
    struct tt_text before = {0};
    struct place last = {0};
    const char *thoughts = strstr(chat->opening, "<think>");
    bool is_written = i > 0 && render(chat, messages, i, true, &before, NULL) == 0;
    size_t opening = strlen(chat->opening), same = is_written ? same_at_begin(&before, text) : 0, begin = NOWHERE;
    int rc = 0;

    if (is_written && same == before.size)
        begin = same < content ? same : content;
    if (begin == NOWHERE && i > 0)
        TT_TRY(find_content(chat, messages, i - 1, text, &last));
    if (begin == NOWHERE)
        begin = find_opening(chat, text, last.end, content, opening);
    if (begin == NOWHERE && thoughts)
        begin = find_opening(chat, text, last.end, content, (size_t)(thoughts - chat->opening));
    if (begin == NOWHERE && is_written && same + opening > before.size)
        begin = same < content ? same : content;
    /* the first message may lack the beginning of an answer; a message after another answer may continue the same
     * turn */
    if (begin == NOWHERE && (!opening || i == 0 || is_assistant(messages, i - 1)))
        begin = content;
    if (begin == NOWHERE)
        rc = tt_fail(TT_EDATA, "%s writes no beginning of an answer before message %zu, which is one", chat->where,
                     i + 1);
    *ret_begin = begin;
out:
    tt_text_release(&before);
    return rc;
}

/* The length of white space and an added token at the beginning of text, or 0. */
static size_t token_after(const struct tt_chat_template *chat, const char *text, size_t size, bool space)
{
    size_t n = space ? skip_space(text, size) : 0;
    size_t token = tt_tokenizer_added_at(chat->tokenizer, text + n, size - n);

    return token ? n + token : 0;
}

/* The end of a turn whose content ends at `at`: after the tokens, or the text, that close the turn. */
static size_t find_end(const struct tt_chat_template *chat, const struct tt_text *text, size_t at)
{
    size_t closing = strlen(chat->closing), n = token_after(chat, text->text + at, text->size - at, true);

    if (!n)
        return text->size - at >= closing && memcmp(text->text + at, chat->closing, closing) == 0 ? at + closing : at;
    for (int i = 1; n && i <= chat->closing_tokens; i++) {
        at += n;
        n = token_after(chat, text->text + at, text->size - at, false);
    }
    return at;
}

/* Uses the parts that the template marked, except those in answers that are not learned. */
static int take_generated(const struct tt_chat_template *chat, const json_t *messages, const bool *is_answer,
                          const struct tt_text *text, const struct tt_passages *generated, struct tt_passages *learned)
{
    struct tt_passages others = {0};
    int rc = 0;

    for (size_t i = 0; i < json_array_size(messages); i++) {
        struct place place = {0};

        if (is_answer[i] || !is_assistant(messages, i))
            continue;
        TT_TRY(find_content(chat, messages, i, text, &place));
        tt_passages_add(&others, place.begin, place.end > place.begin ? place.end : place.begin + 1);
    }
    for (size_t i = 0; i < generated->n; i++)
        if (!tt_passages_touch(&others, generated->item[i].begin, generated->item[i].end))
            tt_passages_add(learned, generated->item[i].begin, generated->item[i].end);
out:
    tt_passages_release(&others);
    return rc;
}

/* Makes offsets count from the beginning of the new text, not of the caller's text before it. */
static int write_and_find(const struct tt_chat_template *chat, const json_t *messages, const bool *is_answer,
                          struct tt_text *text, struct tt_passages *learned)
{
    struct tt_passages generated = {0};
    size_t done = 0, begin = 0;
    int rc = 0;

    TT_TRY(render(chat, messages, json_array_size(messages), false, text, &generated));
    if (tt_jinja_generates(chat->jinja))
        TT_TRY(take_generated(chat, messages, is_answer, text, &generated, learned));
    for (size_t i = 0; i < json_array_size(messages) && !tt_jinja_generates(chat->jinja); i++) {
        struct place content = {0};

        if (!is_answer[i])
            continue;
        TT_TRY(find_content(chat, messages, i, text, &content));
        TT_TRY(find_begin(chat, messages, i, text, content.begin, &begin));
        if (begin < done)
            TT_TRY(
                tt_fail(TT_EDATA, "%s writes message %zu into the turn of the previous message", chat->where, i + 1));
        done = find_end(chat, text, content.end);
        tt_passages_add(learned, begin, done);
    }
    if (!learned->n)
        rc = tt_fail(TT_EDATA, "%s writes no answer that could be learned", chat->where);
out:
    tt_passages_release(&generated);
    return rc;
}

int tt_chat_template_write(const struct tt_chat_template *chat, const json_t *messages, const bool *is_answer,
                           struct tt_text *text, struct tt_passages *learned)
{
    return as_data_error(write_and_find(chat, messages, is_answer, text, learned));
}

int32_t tt_chat_template_end(const struct tt_chat_template *chat)
{
    return chat->end;
}

/* --- for other programs --- */

/* The tags are transformers' own; jinja2 and llama.cpp may not know them. */
void tt_chat_template_text(const struct tt_chat_template *chat, struct tt_text *text)
{
    struct tt_text half = {0};

    tt_text_add_replaced(&half, chat->text, strlen(chat->text), "{% generation %}", "");
    tt_text_add_replaced(text, half.text, half.size, "{% endgeneration %}", "");
    tt_text_release(&half);
}

/* Sets ret_same to true if both templates write the same text, or both refuse. */
static int compare_on(const struct tt_chat_template *a, const struct tt_chat_template *b, const json_t *messages,
                      bool asks, bool *ret_same)
{
    const struct tt_chat_template *const both[] = {a, b};
    struct tt_text text[2] = {{0}, {0}};
    bool refused[2] = {false, false};
    int rc = 0;

    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = render(both[i], messages, json_array_size(messages), asks, &text[i], NULL);
        refused[i] = rc == TT_EDATA || rc == TT_EUSAGE;
        rc = refused[i] ? 0 : rc;
    }
    *ret_same = rc == 0 && refused[0] == refused[1] &&
                (refused[0] || (text[0].size == text[1].size && memcmp(text[0].text, text[1].text, text[0].size) == 0));
    tt_text_release(&text[0]);
    tt_text_release(&text[1]);
    return rc;
}

int tt_chat_template_compare(const struct tt_chat_template *a, const struct tt_chat_template *b, bool *ret_same)
{
    static const char *const roles[] = {"u", "su", "ua", "sua", "uaua", "suaua", "uu", "a", "au", "uaa"};
    static const char *const contents[] = {" Why? ", "So.", "<think>\nhm\n</think>\n\nSo.", "a\n b"};
    int rc = 0;

    *ret_same = true;
    for (size_t i = 0; i < 2 * sizeof roles / sizeof *roles && *ret_same; i++) {
        json_t *messages = json_array();
        const char *role = roles[i / 2];

        for (size_t n = 0; role[n]; n++)
            (void)json_array_append_new(messages,
                                        json_pack("{s:s, s:s}", "role",
                                                  role[n] == 's'   ? "system"
                                                  : role[n] == 'u' ? "user"
                                                                   : "assistant",
                                                  "content", contents[(n + i) % (sizeof contents / sizeof *contents)]));
        rc = compare_on(a, b, messages, i % 2, ret_same);
        json_decref(messages);
    }
    return rc;
}

/* --- trying a template --- */

/* A conversation of n messages. */
static json_t *make_probe(size_t n)
{
    json_t *probe = json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "Why?", "role",
                              "assistant", "content", "So.", "role", "user", "content", "How?");

    while (json_array_size(probe) > n)
        (void)json_array_remove(probe, n);
    return probe;
}

/* Finds the text that the template adds at the end to ask for an answer. */
static int try_opening(struct tt_chat_template *chat)
{
    struct tt_text asked = {0}, plain = {0};
    json_t *probe = make_probe(1);
    size_t same;
    int rc = 0;

    TT_TRY(render(chat, probe, 1, false, &plain, NULL));
    TT_TRY(render(chat, probe, 1, true, &asked, NULL));
    same = same_at_begin(&plain, &asked);
    chat->opening = tt_strndup(asked.size ? asked.text + same : "", asked.size - same);
out:
    json_decref(probe);
    tt_text_release(&asked);
    tt_text_release(&plain);
    return rc;
}

/* Sets ret_rest to the text after the answer in a probe of n messages. */
static int try_end(const struct tt_chat_template *chat, size_t n, struct tt_text *ret_rest)
{
    struct tt_text text = {0};
    json_t *probe = make_probe(n);
    struct place content = {0};
    int rc = 0;

    TT_TRY(render(chat, probe, n, false, &text, NULL));
    TT_TRY(find_content(chat, probe, 1, &text, &content));
    tt_text_add_bytes(ret_rest, text.text + content.end, text.size - content.end);
out:
    json_decref(probe);
    tt_text_release(&text);
    return rc;
}

/* The number of added tokens at the beginning that both texts share. */
static int count_tokens(const struct tt_chat_template *chat, const struct tt_text *a, const struct tt_text *b)
{
    size_t at = 0, n, same = same_at_begin(a, b);
    int tokens = 0;

    for (; (n = token_after(chat, a->text + at, a->size - at, at == 0)) && at + n <= same; at += n)
        tokens++;
    return tokens;
}

/* The added token after white space at the beginning of text, or -1. */
static int32_t first_token(const struct tt_chat_template *chat, const struct tt_text *text)
{
    size_t space = skip_space(text->text, text->size), n = token_after(chat, text->text, text->size, true);
    char *token = n ? tt_strndup(text->text + space, n - space) : NULL;
    int32_t id = token ? tt_tokenizer_token_to_id(chat->tokenizer, token) : -1;

    tt_free(token);
    return id;
}

/*
 * Finds the text that closes a turn: it follows both the last answer and earlier ones. A template that always writes
 * the beginning of an answer adds this beginning too, and its first token may be the first token of every turn.
 */
static int try_closing(struct tt_chat_template *chat)
{
    struct tt_text last = {0}, inner = {0};
    bool always_asks = !*chat->opening;
    size_t same;
    int32_t end;
    int rc = 0;

    TT_TRY(try_end(chat, 2, &last));
    if (try_end(chat, 3, &inner) < 0)
        tt_text_add_bytes(&inner, last.text, last.size); /* the template allows only one question */
    same = same_at_begin(&last, &inner);
    while (same && skip_space(last.text + same - 1, 1))
        same--;
    chat->closing = tt_strndup(last.text, same);
    chat->closing_tokens = count_tokens(chat, &last, &inner);
    end = first_token(chat, chat->closing_tokens || !always_asks ? &last : &inner);
    end = end < 0 ? first_token(chat, &inner) : end;
    chat->end = end < 0 ? chat->end : end;
    if (always_asks && chat->closing_tokens > 1)
        chat->closing_tokens--;
    else if (!always_asks && !chat->closing_tokens)
        chat->closing_tokens = 1;
out:
    tt_text_release(&last);
    tt_text_release(&inner);
    return rc;
}

/* Attributes the template's error to the key that chooses it. */
static int as_key_error(int rc)
{
    struct tt_text names = {0};

    if (rc != TT_EUSAGE && rc != TT_EDATA)
        return rc;
    list_rows(&names);
    rc = tt_fail_key(TT_EUSAGE, TT_KEY(training.chat_template),
                     "%s\nhelp: titan cannot write this chat template; if one of %s writes the same text, set %s to "
                     "its name",
                     tt_error_message(), names.text, TT_KEY_NAME(training.chat_template));
    tt_text_release(&names);
    return rc;
}

int tt_chat_template_new(const char *name, const struct tt_tokenizer *tokenizer, struct tt_chat_template **ret_template)
{
    const struct row *row = find_row(name);
    const char *text = row ? row->text : strcmp(name, "auto") == 0 ? tt_tokenizer_info(tokenizer)->chat_template : NULL;
    struct tt_chat_template *chat = NULL;
    int rc = 0;

    if (!text)
        return fail_unknown(tokenizer, name);
    if (row)
        TT_TRY(check_tokens(row, tokenizer));
    chat = tt_calloc(1, sizeof *chat);
    chat->tokenizer = tokenizer;
    chat->text = text;
    chat->end = tt_tokenizer_info(tokenizer)->eos;
    chat->context = make_context(tokenizer);
    chat->where = tt_format("the chat template %s%s", row ? "" : "of ",
                            row ? row->name : tt_tokenizer_info(tokenizer)->chat_where);
    TT_TRY(as_key_error(tt_jinja_new(text, strlen(text), chat->where, &chat->jinja)));
    TT_TRY(as_key_error(try_opening(chat)));
    TT_TRY(as_key_error(try_closing(chat)));
    *ret_template = chat;
    chat = NULL;
out:
    tt_chat_template_free(chat);
    return rc;
}

void tt_chat_template_free(struct tt_chat_template *chat)
{
    if (!chat)
        return;
    tt_jinja_free(chat->jinja);
    tt_free(chat->where);
    json_decref(chat->context);
    tt_free(chat->opening);
    tt_free(chat->closing);
    tt_free(chat);
}
