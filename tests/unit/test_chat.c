/* SPDX-License-Identifier: MIT
 *
 * Chat data as tokens. data/chat.json and data/chat_tokenizers.json hold what transformers makes of the same
 * conversations (tests/golden/make_chat_reference.py).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/builtin.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/data/chat.h"
#include "core/data/chat_template.h"
#include "core/os/file.h"

static json_t *golden;

/* The built-in tokenizer with added tokens, and with a chat template and BOS unless they are NULL. */
static struct tt_tokenizer *make_tokenizer_of(const json_t *tokens, const json_t *chat_template, const char *bos)
{
    struct tt_builtin file = tt_builtin_get(TT_BUILTIN_TOKENIZER);
    json_t *root = NULL, *config = json_pack("{s:s*, s:s}", "bos_token", bos, "eos_token", "<|end_of_text|>");
    const json_t *row;
    struct tt_tokenizer *t = NULL;
    char *text, *config_text;
    size_t i;

    assert_int_equal(tt_json_parse(file.bytes, file.size, file.name, &root), 0);
    json_array_foreach(tokens, i, row)
    {
        json_t *added = json_pack("{s:O, s:O, s:O, s:b, s:b, s:b, s:b}", "id", json_object_get(row, "id"), "content",
                                  json_object_get(row, "content"), "special", json_object_get(row, "special"),
                                  "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0);

        assert_int_equal(json_array_append_new(json_object_get(root, "added_tokens"), added), 0);
    }
    if (chat_template)
        (void)json_object_set(config, "chat_template", (json_t *)(uintptr_t)chat_template);
    text = tt_json_text(root);
    config_text = tt_json_text(config);
    if (tt_tokenizer_parse(text, strlen(text), config_text, strlen(config_text), "t.json", &t) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(text);
    tt_free(config_text);
    json_decref(root);
    json_decref(config);
    return t;
}

/* As above, with the added tokens of chat.json. */
static struct tt_tokenizer *make_tokenizer_with(const json_t *chat_template, const char *bos)
{
    return make_tokenizer_of(json_object_get(golden, "added"), chat_template, bos);
}

static struct tt_tokenizer *make_tokenizer(const json_t *chat_template)
{
    return make_tokenizer_with(chat_template, "<|begin_of_text|>");
}

static void expect_failure(int rc, int code, const char *message)
{
    assert_int_equal(rc, code);
    if (!strstr(tt_error_message(), message))
        fail_msg("'%s' instead of '%s'", tt_error_message(), message);
}

static void expect_list(const char *what, const char *line, const struct tt_ids *found, const json_t *want)
{
    if (found->n != json_array_size(want))
        fail_msg("%s: %zu %s, wanted %zu", line, found->n, what, json_array_size(want));
    for (size_t i = 0; i < found->n; i++)
        if (found->id[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: %s %zu is %d, wanted %lld", line, what, i, found->id[i],
                     (long long)json_integer_value(json_array_get(want, i)));
}

/* Asks for an answer to a question; `system`, which may be NULL, is the system's message before it. */
static void ask(struct tt_chat *chat, const char *system, const char *question, struct tt_chat_ids *found)
{
    json_t *messages = json_array();

    if (system)
        assert_int_equal(tt_chat_add(messages, "system", system, strlen(system)), 0);
    assert_int_equal(tt_chat_add(messages, "user", question, strlen(question)), 0);
    assert_int_equal(tt_chat_ask(chat, messages, found), 0);
    json_decref(messages);
}

/* Reads the lines of chat.json that are for this template (NULL: all) and compares the tokens and the mask of learned
 * tokens. */
static size_t expect_cases(struct tt_tokenizer *t, const char *template, const char *named)
{
    size_t i, n = 0;
    const json_t *row;

    json_array_foreach(json_object_get(golden, "cases"), i, row)
    {
        const char *line = json_string_value(json_object_get(row, "line"));
        const char *name = json_string_value(json_object_get(row, "template"));
        struct tt_chat_ids found = {0};
        struct tt_chat *chat = NULL;

        if (template && strcmp(name, template) != 0)
            continue;
        assert_int_equal(tt_chat_new(t, named ? named : name, &chat), 0);
        for (int round = 0; round < 2; round++) { /* nothing of one line remains for the next */
            if (tt_chat_read(chat, line, strlen(line), &found) < 0)
                fail_msg("%s: %s", line, tt_error_message());
            expect_list("ids", line, &found.ids, json_object_get(row, "ids"));
            expect_list("learned", line, &found.counts, json_object_get(row, "learned"));
        }
        tt_chat_ids_release(&found);
        tt_chat_free(chat);
        n++;
    }
    return n;
}

static void tokens_and_learned_ones_are_those_of_transformers(void **state)
{
    struct tt_tokenizer *t = make_tokenizer(NULL);

    assert_true(expect_cases(t, NULL, NULL) > 40);
    tt_tokenizer_free(t);
}

/* The template as in Llama 3's own file: its strings contain line feeds, not their escapes. */
static json_t *with_line_feeds(const json_t *template)
{
    struct tt_text text = {0};
    json_t *json;

    tt_text_add_replaced(&text, json_string_value(template), json_string_length(template), "\\n", "\n");
    json = json_string(text.text);
    tt_text_release(&text);
    return json;
}

static void templates_of_tokenizers_are_evaluated(void **state)
{
    const char *name;
    json_t *text;

    json_object_foreach(json_object_get(golden, "templates"), name, text)
    {
        json_t *lists = json_pack("[{s:s, s:s}, {s:s, s:O}]", "name", "tools", "template", "{{ tools }}", "name",
                                  "default", "template", text);
        json_t *lines = with_line_feeds(text);
        struct tt_tokenizer *t = make_tokenizer(text), *older = make_tokenizer(lists), *fed = make_tokenizer(lines);

        assert_true(expect_cases(t, name, "auto") > 10);
        assert_true(expect_cases(older, name, "auto") > 10);
        assert_true(expect_cases(fed, name, "auto") > 10);
        tt_tokenizer_free(t);
        tt_tokenizer_free(older);
        tt_tokenizer_free(fed);
        json_decref(lists);
        json_decref(lines);
    }
}

/* An export contains the text of a built-in template, but that text does not mark the learned passages. */
static void what_other_programs_read_writes_the_same_tokens(void **state)
{
    static const char *const names[] = {"llama3", "qwen3", "chatml"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tt_tokenizer *plain = make_tokenizer(NULL), *t;
        struct tt_chat_template *named = NULL, *own = NULL, *other = NULL;
        struct tt_text text = {0};
        bool same = false;
        json_t *json;

        assert_int_equal(tt_chat_template_new(names[i], plain, &named), 0);
        tt_chat_template_text(named, &text);
        assert_null(strstr(text.text, "generation %}"));
        json = json_string(text.text);
        t = make_tokenizer(json);
        assert_true(expect_cases(t, names[i], "auto") > 10);
        assert_int_equal(tt_chat_template_new("auto", t, &own), 0);
        assert_int_equal(tt_chat_template_compare(named, own, &same), 0);
        assert_true(same);
        assert_int_equal(tt_chat_template_end(own), tt_chat_template_end(named));
        assert_int_equal(tt_chat_template_new(names[(i + 1) % 3], plain, &other), 0);
        assert_int_equal(tt_chat_template_compare(other, own, &same), 0);
        assert_false(same);
        tt_chat_template_free(named);
        tt_chat_template_free(own);
        tt_chat_template_free(other);
        tt_tokenizer_free(plain);
        tt_tokenizer_free(t);
        tt_text_release(&text);
        json_decref(json);
    }
}

/* The learned passages of a line, each followed by a bar. */
static void add_learned(struct tt_tokenizer *t, const char *line, struct tt_text *text)
{
    struct tt_chat_ids found = {0};
    struct tt_chat *chat = NULL;

    assert_int_equal(tt_chat_new(t, "auto", &chat), 0);
    tt_text_add_bytes(text, "", 0);
    if (tt_chat_read(chat, line, strlen(line), &found) < 0)
        fail_msg("%s", tt_error_message());
    for (size_t i = 0; i < found.ids.n; i++) {
        if (found.counts.id[i])
            assert_int_equal(tt_tokenizer_decode(t, &found.ids.id[i], 1, text), 0);
        if (found.counts.id[i] && (i + 1 == found.ids.n || !found.counts.id[i + 1]))
            tt_text_add(text, "|");
    }
    tt_chat_ids_release(&found);
    tt_chat_free(chat);
}

/* Templates with constructs that models' own templates use; the tokens are in chat.json. */
#define EACH        "{% for m in messages %}"
#define START(name) "{{ '<|im_start|>" name "\n' }}"

static void answers_are_found_in_templates_that_mark_none(void **state)
{
    static const char line[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Why\"}, {\"role\": \"assistant\", "
        "\"content\": \" So \", \"thinking\": \"hm\"}, {\"role\": \"user\", \"content\": \"How\"}, "
        "{\"role\": \"assistant\", \"content\": \"\"}]}";
    static const char *const rows[][3] = {
        /* one that always adds the prompt for an answer, as phi-3-small's does */
        {EACH "<|im_start|>{{ m.role ~ '\n' ~ m.content }}<|im_end|>{{ '\n' }}{% endfor %}" START("assistant"),
         " So <|im_end|>|<|im_end|>|"},
        /* an end marker that only the last turn has, as in gpt-oss, and reasoning before the content */
        {EACH "<|im_start|>{{ m.role }}{{ '\\n' }}"
              "{% if m.thinking %}<|start_header_id|>{{ m.thinking }}<|end_header_id|>{% endif %}"
              "{{ m.content }}{{ '<|eot_id|>' if loop.last else '<|im_end|>' }}{% endfor %}"
              "{% if add_generation_prompt %}" START("assistant") "{% endif %}",
         "<|start_header_id|>hm<|end_header_id|> So <|im_end|>|<|eot_id|>|"},
        /* an answer that begins with reasoning only when it is prompted for, as in DeepSeek-R1 */
        {EACH "<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant<think>{{ '\n' }}{% endif %}",
         " So <|im_end|>|<|im_end|>|"},
        /* trimmed content, an end marker after a space, and the next turn's token after that, as in Llama 2 */
        {EACH "{% if m.role == 'user' %}{{ bos_token ~ '[INST] ' ~ m.content ~ ' [/INST]' }}{% else %}"
              "{{ ' ' ~ m.content.strip() ~ ' ' ~ eos_token }}{% endif %}{% endfor %}",
         " So <|end_of_text|>|  <|end_of_text|>|"},
        /* no end marker but the next turn's token, as in GLM-4 */
        {EACH "{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}{{ m.content }}{% endfor %}"
              "{% if add_generation_prompt %}<|im_end|>{% endif %}",
         " So <|im_start|>|"},
        /* the system's message moves into the last question, so earlier turns change, as in Mistral */
        {EACH "{% if m.role == 'user' %}[INST] {{ 'x' if loop.index > messages|length - 2 }}{{ m.content }}[/INST]"
              "{% else %}{{ m.content ~ eos_token }}{% endif %}{% endfor %}",
         " So <|end_of_text|>|<|end_of_text|>|"},
        /* white space that differs when an answer is prompted for */
        {EACH "\n\n  <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\n"
              "{% if add_generation_prompt %}\n <|im_start|>assistant\n{% endif %}\n",
         " So <|im_end|>|<|im_end|>|"},
        /* an answer that continues the turn before */
        {EACH "{% if m.role == 'user' or loop.previtem.role == 'user' %}<|im_start|>{{ m.role }}{{ '\\n' }}{% endif %}"
              "{{ m.content }}{{ '<|im_end|>' if loop.last or loop.nextitem.role == 'user' }}{% endfor %}"
              "{% if add_generation_prompt %}" START("assistant") "{% endif %}",
         "So it is<|im_end|>|",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"Why\"}, {\"role\": \"assistant\", \"content\": \"So\"}, "
         "{\"role\": \"assistant\", \"content\": \" it is\"}]}"},
        /* the prompt already writes the beginning of an answer, as in Phi-4, so the first message has none */
        {EACH "{% if m.role == 'user' %}" START("user") "{{ m.content }}<|im_end|>" START(
             "assistant") "{% else %}"
                          "{{ m.content }}<|im_end|>{% endif %}{% endfor %}",
         "So<|im_end|>|it is<|im_end|>|",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"So\"}, {\"role\": \"user\", \"content\": \"Why\"}, "
         "{\"role\": \"assistant\", \"content\": \"it is\"}]}"},
        /* the end of a turn is text, not a token */
        {EACH "{{ m.role ~ ': ' ~ m.content ~ ' ### ' }}{% endfor %}"
              "{% if add_generation_prompt %}assistant: {% endif %}",
         " So  ###| ###|"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *template = json_string(rows[i][0]);
        struct tt_tokenizer *t = make_tokenizer(template);
        struct tt_text text = {0};

        add_learned(t, rows[i][2] ? rows[i][2] : line, &text);
        if (strcmp(text.text, rows[i][1]) != 0)
            fail_msg("template %zu: '%s' is learned, wanted '%s'", i, text.text, rows[i][1]);
        tt_text_release(&text);
        tt_tokenizer_free(t);
        json_decref(template);
    }
}

static void a_conversation_that_a_template_refuses_is_the_datas_fault(void **state)
{
    static const char line[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}";
    json_t *template = json_string("{% if messages[0].role != 'user' %}{{ raise_exception('begin with a user') }}"
                                   "{% endif %}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
    struct tt_tokenizer *t = make_tokenizer(template);
    struct tt_chat_ids found = {0};
    struct tt_chat *chat = NULL;

    assert_int_equal(tt_chat_new(t, "auto", &chat), 0);
    expect_failure(tt_chat_read(chat, line, strlen(line), &found), TT_EDATA,
                   "the chat template of tokenizer_config.json, line 1: the template refuses the conversation: begin "
                   "with a user");
    tt_chat_ids_release(&found);
    tt_chat_free(chat);
    tt_tokenizer_free(t);
    json_decref(template);
}

static void expect_no_template(struct tt_tokenizer *t, const char *name, const char *message)
{
    struct tt_chat_template *found = NULL;

    expect_failure(tt_chat_template_new(name, t, &found), TT_EUSAGE, message);
    assert_null(found);
    tt_tokenizer_free(t);
}

static void templates_that_are_not_understood_are_refused(void **state)
{
    static const char *const others[][2] = {
        {"{{ messages }\n", "tokenizer_config.json, line 1: "},
        {"{% for message in messages %}\n{{ message.content | wordwrap }}{% endfor %}",
         "tokenizer_config.json, line 2: the filter 'wordwrap' is not supported\nhelp: titan cannot write this chat "
         "template; if one of llama3, qwen3, chatml writes the same text, set "},
        {"{% for message in messages %}\n\n{% include 'x' %}{% endfor %}", "line 3: the tag {% include %} is not"},
        {"{{ messages[0].content.swapcase() }}", "line 1: the method 'swapcase' is not supported"},
        {"{{ now() }}", "line 1: the function 'now' is not supported"},
        {"{{ raise_exception('never') }}", "line 1: the template refuses the conversation: never"},
        {"{{ bos_token }}", "leaves out the text of message 2"}};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        json_t *text = json_string(others[i][0]);

        expect_no_template(make_tokenizer(text), "auto", others[i][1]);
        json_decref(text);
    }
    expect_no_template(make_tokenizer(NULL), "auto", "t.json has no chat template\nhelp: set ");
    expect_no_template(make_tokenizer(NULL), "mine", "chat template 'mine' is not one of auto, llama3, qwen3, chatml");
    expect_no_template(make_tokenizer_with(NULL, NULL), "llama3", "needs a token that begins a document");
}

static void templates_of_the_table_need_their_tokens(void **state)
{
    struct tt_tokenizer *t = NULL;

    assert_int_equal(tt_tokenizer_load(NULL, &t), 0);
    expect_no_template(t, "qwen3", "needs the token <|im_start|>");
}

static void bad_lines_say_what_is_wrong(void **state)
{
    static const char *const bad[][2] = {
        {"{\"messages\": [}", "column 15: invalid JSON: "},
        {"[1]", "the line is an array, wanted an object"},
        {"{\"text\": \"a\"}", "the line has neither 'messages' nor 'prompt' nor 'instruction'\nhelp: a line is "},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}", "rename 'conversations', 'from'"},
        {"{\"messages\": null}", "neither 'messages' nor"},
        {"{\"messages\": \"a\"}", "'messages' is a string, wanted a list of objects"},
        {"{\"messages\": []}", "'messages' is empty"},
        {"{\"messages\": [\"a\"]}", "message 1 is a string, wanted an object"},
        {"{\"messages\": [{\"content\": \"a\"}]}", "message 1 has no 'role'"},
        {"{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}", "'role' of message 1 is a number, wanted a string"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "message 1 has no 'content'"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "message 1 has no 'content'"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
         "[{\"type\": \"text\"}]}]}",
         "'content' of message 2 is an array, wanted a string"},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}",
         "message 1 has the role 'tool'\nhelp: roles are"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{}]}]}",
         "message 1 calls tools, which is not supported"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "no message has the role assistant"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}]}", "and a weight other than 0"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]}",
         "message 1 has a weight other than 0 and 1, which is not supported"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": true}]}",
         "message 1 has a weight other than 0 and 1"},
        {"{\"tools\": [{}], \"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", "the line has 'tools'"},
        {"{\"prompt\": \"a\"}", "the line has no 'completion'"},
        {"{\"prompt\": [], \"completion\": \"b\"}", "'prompt' of the line is an array, wanted a string"},
        {"{\"prompt\": \"a\", \"completion\": \"\"}", "'completion' is empty, so there is nothing to learn"},
        {"{\"instruction\": \"a\", \"response\": \"b\"}", "the line has no 'output'"},
        {"{\"instruction\": \"a\", \"input\": {\"b\": 1}, \"output\": \"b\"}", "'input' of the line is an object"},
        {"{\"instruction\": \"a\", \"input\": 7, \"output\": \"b\"}", "'input' of the line is a number"},
    };
    struct tt_tokenizer *t = make_tokenizer(NULL);
    struct tt_chat_ids found = {0};
    struct tt_chat *chat = NULL;

    assert_int_equal(tt_chat_new(t, "chatml", &chat), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_failure(tt_chat_read(chat, bad[i][0], strlen(bad[i][0]), &found), TT_EDATA, bad[i][1]);
    tt_chat_ids_release(&found);
    tt_chat_free(chat);
    tt_tokenizer_free(t);
}

/* A tokenizer of chat_tokenizers.json: the base, with the members that a variant replaces. */
static struct tt_tokenizer *make_variant(const json_t *base, const json_t *variant)
{
    json_t *root = json_copy((json_t *)(uintptr_t)base);
    static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    struct tt_tokenizer *t = NULL;
    char *text;

    assert_int_equal(json_object_update(root, json_object_get(variant, "patch")), 0);
    assert_int_equal(json_object_set(root, "added_tokens", json_object_get(variant, "added")), 0);
    text = tt_json_text(root);
    if (tt_tokenizer_parse(text, strlen(text), config, strlen(config), "t.json", &t) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(text);
    json_decref(root);
    return t;
}

static void expect_variant(struct tt_tokenizer *t, const json_t *variant)
{
    struct tt_chat_ids found = {0};
    struct tt_chat *chat = NULL;
    const json_t *row;
    int32_t end = -1;
    size_t i;

    assert_int_equal(tt_chat_new(t, "chatml", &chat), 0);
    json_array_foreach(json_object_get(variant, "cases"), i, row)
    {
        const char *line = json_string_value(json_object_get(row, "line"));

        if (tt_chat_read(chat, line, strlen(line), &found) < 0)
            fail_msg("%s: %s", line, tt_error_message());
        expect_list("ids", line, &found.ids, json_object_get(row, "ids"));
        expect_list("learned", line, &found.counts, json_object_get(row, "learned"));
    }
    json_array_foreach(json_object_get(variant, "questions"), i, row)
    {
        const char *system = json_string_value(json_object_get(row, "system"));
        const char *question = json_string_value(json_object_get(row, "question"));

        ask(chat, system, question, &found);
        assert_int_equal(tt_chat_end(chat, &end), 0);
        expect_list("ids", question, &found.ids, json_object_get(row, "ids"));
        assert_int_equal(end, json_integer_value(json_object_get(row, "end")));
    }
    tt_chat_ids_release(&found);
    tt_chat_free(chat);
}

static void words_and_added_tokens_of_the_whole_text_are_those_of_transformers(void **state)
{
    json_t *file = NULL;
    const json_t *variant;
    size_t i;

    assert_int_equal(tt_json_load(TT_SOURCE_DIR "/tests/unit/data/chat_tokenizers.json", &file), 0);
    assert_true(json_array_size(json_object_get(file, "variants")) > 20);
    json_array_foreach(json_object_get(file, "variants"), i, variant)
    {
        struct tt_tokenizer *t = make_variant(json_object_get(file, "base"), variant);

        expect_variant(t, variant);
        tt_tokenizer_free(t);
    }
    json_decref(file);
}

static void the_template_is_only_asked_for_messages(void **state)
{
    static const char pair[] = "{\"prompt\": \"a\", \"completion\": \"b\"}",
                      messages[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}";
    struct tt_tokenizer *t = make_tokenizer(NULL);
    struct tt_chat_ids found = {0};
    struct tt_chat *chat = NULL;

    assert_int_equal(tt_chat_new(t, "auto", &chat), 0);
    assert_int_equal(tt_chat_read(chat, pair, strlen(pair), &found), 0);
    expect_failure(tt_chat_read(chat, messages, strlen(messages), &found), TT_EUSAGE, "has no chat template");
    tt_chat_ids_release(&found);
    tt_chat_free(chat);
    tt_tokenizer_free(t);
}

static int64_t learned_of(struct tt_chat *chat, const char *line, struct tt_chat_ids *found)
{
    int64_t n = 0;

    if (tt_chat_read(chat, line, strlen(line), found) < 0)
        fail_msg("%s: %s", line, tt_error_message());
    for (size_t i = 0; i < found->counts.n; i++)
        n += found->counts.id[i];
    return n;
}

static void answers_of_weight_0_are_not_learned(void **state)
{
    static const char both[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"one two\", \"weight\": 1}, "
                               "{\"role\": \"assistant\", \"content\": \"three\"}]}",
                      last[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"one two\", \"weight\": 0}, "
                               "{\"role\": \"assistant\", \"content\": \"three\"}]}",
                      real[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"one two\", \"weight\": 0.0}, "
                               "{\"role\": \"assistant\", \"content\": \"three\", \"weight\": 1.0, "
                               "\"tool_calls\": []}]}",
                      alone[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"three\"}]}";
    struct tt_tokenizer *t = make_tokenizer(NULL);
    struct tt_chat_ids found = {0};
    struct tt_chat *chat = NULL;
    int64_t of_last;
    size_t n;

    assert_int_equal(tt_chat_new(t, "chatml", &chat), 0);
    of_last = learned_of(chat, alone, &found);
    assert_true(learned_of(chat, both, &found) > of_last);
    n = found.ids.n;
    assert_int_equal(learned_of(chat, last, &found), of_last);
    assert_int_equal(found.ids.n, n);
    assert_int_equal(learned_of(chat, real, &found), of_last);
    tt_chat_ids_release(&found);
    tt_chat_free(chat);
    tt_tokenizer_free(t);
}

static void questions_are_those_of_transformers(void **state)
{
    struct tt_tokenizer *t = make_tokenizer(NULL);
    const json_t *row;
    size_t i;

    assert_true(json_array_size(json_object_get(golden, "questions")) > 5);
    json_array_foreach(json_object_get(golden, "questions"), i, row)
    {
        const char *system = json_string_value(json_object_get(row, "system"));
        const char *question = json_string_value(json_object_get(row, "question"));
        struct tt_chat_ids found = {0};
        struct tt_chat *chat = NULL;
        int32_t end = -1;

        assert_int_equal(tt_chat_new(t, json_string_value(json_object_get(row, "template")), &chat), 0);
        ask(chat, system, question, &found);
        assert_int_equal(tt_chat_end(chat, &end), 0);
        expect_list("ids", question, &found.ids, json_object_get(row, "ids"));
        assert_int_equal(end, json_integer_value(json_object_get(row, "end")));
        expect_failure(tt_chat_add(NULL, "user", "\xff", 1), TT_EDATA, "the text of role user is not valid UTF-8");
        tt_chat_ids_release(&found);
        tt_chat_free(chat);
    }
    tt_tokenizer_free(t);
}

/* --- templates of families, as texts --- */

static void expect_bytes(const char *name, size_t row, const char *text, size_t size, const json_t *want)
{
    if (size != json_string_length(want) || memcmp(text, json_string_value(want), size) != 0)
        fail_msg("%s, case %zu: '%.*s', wanted '%s'", name, row, (int)size, text, json_string_value(want));
}

static void expect_learned(const char *name, size_t row, const struct tt_text *text, const struct tt_passages *learned,
                           const json_t *want)
{
    if (learned->n != json_array_size(want))
        fail_msg("%s, case %zu: %zu answers, wanted %zu", name, row, (size_t)learned->n, json_array_size(want));
    for (size_t i = 0; i < json_array_size(want); i++) {
        struct tt_passage part = learned->item[i];

        expect_bytes(name, row, text->text + part.begin, part.end - part.begin, json_array_get(want, i));
    }
}

/* One conversation: its text and the learned passages, or a refusal; and the question, if an answer may follow. */
static void check_case(const struct tt_chat_template *chat, const char *name, size_t row, const json_t *of)
{
    const json_t *messages = json_object_get(of, "messages"), *want = json_object_get(of, "text");
    const json_t *asked = json_object_get(of, "asked"), *message;
    struct tt_passages learned = {0};
    struct tt_text text = {0};
    bool is_answer[8] = {false};
    size_t i;

    json_array_foreach(messages, i, message)
    {
        is_answer[i] = strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
    }
    if (want && tt_chat_template_write(chat, messages, is_answer, &text, &learned) < 0)
        fail_msg("%s, case %zu: %s", name, row, tt_error_message());
    if (want) {
        expect_bytes(name, row, text.text, text.size, want);
        expect_learned(name, row, &text, &learned, json_object_get(of, "learned"));
    } else if (!asked) {
        assert_int_equal(tt_chat_template_write(chat, messages, is_answer, &text, &learned), TT_EDATA);
    }
    text.size = 0;
    if (asked) {
        assert_int_equal(tt_chat_template_ask(chat, messages, &text), 0);
        expect_bytes(name, row, text.text, text.size, asked);
    }
    tt_passages_release(&learned);
    tt_text_release(&text);
}

static void templates_of_families_give_the_texts_of_transformers(void **state)
{
    json_t *all = NULL, *of, *row;
    size_t i, n;

    assert_int_equal(tt_json_load(TT_SOURCE_DIR "/tests/unit/data/chat_families.json", &all), 0);
    assert_true(json_array_size(all) > 8);
    json_array_foreach(all, i, of)
    {
        const char *name = json_string_value(json_object_get(of, "name"));
        struct tt_tokenizer *t =
            make_tokenizer_of(json_object_get(of, "added"), json_object_get(of, "template"), "<|begin_of_text|>");
        struct tt_chat_template *chat = NULL;

        if (tt_chat_template_new("auto", t, &chat) < 0)
            fail_msg("%s: %s", name, tt_error_message());
        assert_int_equal(tt_chat_template_end(chat),
                         tt_tokenizer_token_to_id(t, json_string_value(json_object_get(of, "end"))));
        json_array_foreach(json_object_get(of, "cases"), n, row)
        {
            check_case(chat, name, n, row);
        }
        tt_chat_template_free(chat);
        tt_tokenizer_free(t);
    }
    json_decref(all);
}

static int set_up(void **state)
{
    return tt_json_load(TT_SOURCE_DIR "/tests/unit/data/chat.json", &golden);
}

static int tear_down(void **state)
{
    json_decref(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_and_learned_ones_are_those_of_transformers),
        cmocka_unit_test(templates_of_tokenizers_are_evaluated),
        cmocka_unit_test(what_other_programs_read_writes_the_same_tokens),
        cmocka_unit_test(answers_are_found_in_templates_that_mark_none),
        cmocka_unit_test(a_conversation_that_a_template_refuses_is_the_datas_fault),
        cmocka_unit_test(templates_that_are_not_understood_are_refused),
        cmocka_unit_test(templates_of_the_table_need_their_tokens),
        cmocka_unit_test(bad_lines_say_what_is_wrong),
        cmocka_unit_test(words_and_added_tokens_of_the_whole_text_are_those_of_transformers),
        cmocka_unit_test(the_template_is_only_asked_for_messages),
        cmocka_unit_test(answers_of_weight_0_are_not_learned),
        cmocka_unit_test(questions_are_those_of_transformers),
        cmocka_unit_test(templates_of_families_give_the_texts_of_transformers),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("chat", tests, set_up, tear_down);
}
