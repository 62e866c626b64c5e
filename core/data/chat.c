/* SPDX-License-Identifier: MIT
 *
 * Reads lines of chat data and turns them into tokens.
 */
#include "core/data/chat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/data/chat_template.h"

struct tt_chat {
    const struct tt_tokenizer *tokenizer;
    struct tt_encoder *encoder;
    struct tt_chat_template *chat; /* NULL: not needed so far */
    char *template_name;
    json_t *messages;
    bool *is_answer; /* for each message: whether it is an assistant's answer to be learned */
    size_t n_answers, cap_answers;
    struct tt_text text; /* text of the line */
    struct tt_passages learned;
};

int tt_chat_new(const struct tt_tokenizer *tokenizer, const char *template_name, struct tt_chat **ret_chat)
{
    struct tt_chat *c = tt_calloc(1, sizeof *c);
    int rc = 0;

    c->tokenizer = tokenizer;
    c->template_name = tt_strdup(template_name);
    c->messages = json_array();
    TT_TRY(tt_encoder_new(tokenizer, &c->encoder));
    *ret_chat = c;
    c = NULL;
out:
    tt_chat_free(c);
    return rc;
}

static void clear_messages(struct tt_chat *c)
{
    (void)json_array_clear(c->messages);
    c->n_answers = 0;
}

static void add_message(struct tt_chat *c, json_t *message, bool is_answer)
{
    (void)json_array_append(c->messages, message);
    TT_PUSH(c->is_answer, c->n_answers, c->cap_answers) = is_answer;
}

void tt_chat_free(struct tt_chat *chat)
{
    if (!chat)
        return;
    json_decref(chat->messages);
    tt_free(chat->is_answer);
    tt_chat_template_free(chat->chat);
    tt_encoder_free(chat->encoder);
    tt_free(chat->template_name);
    tt_text_release(&chat->text);
    tt_passages_release(&chat->learned);
    tt_free(chat);
}

void tt_chat_ids_release(struct tt_chat_ids *ids)
{
    tt_ids_release(&ids->ids);
    tt_ids_release(&ids->counts);
}

/* --- writing tokens --- */

static void clear_text(struct tt_chat *c)
{
    c->text.size = 0;
    c->learned.n = 0;
    tt_text_add_bytes(&c->text, "", 0);
}

/* Completes the counts for the ids that were added. */
static void set_counts(struct tt_chat_ids *to, int counts)
{
    while (to->counts.n < to->ids.n)
        tt_ids_add(&to->counts, counts);
}

static int need_template(struct tt_chat *c)
{
    return c->chat ? 0 : tt_chat_template_new(c->template_name, c->tokenizer, &c->chat);
}

static int write_conversation(struct tt_chat *c, bool asks, struct tt_chat_ids *to)
{
    int rc = 0;

    to->ids.n = to->counts.n = 0;
    TT_TRY(need_template(c));
    clear_text(c);
    if (asks)
        TT_TRY(tt_chat_template_ask(c->chat, c->messages, &c->text));
    else
        TT_TRY(tt_chat_template_write(c->chat, c->messages, c->is_answer, &c->text, &c->learned));
    /* encodes the text as a whole, since a tokenizer may split parts of it differently */
    TT_TRY(tt_encoder_encode_marked(c->encoder, c->text.text, c->text.size, &c->learned, &to->ids, &to->counts));
out:
    return rc;
}

/* Writes a text that consists of a prompt and its answer. */
static int write_pair(struct tt_chat *c, struct tt_chat_ids *to)
{
    int32_t eos = tt_tokenizer_info(c->tokenizer)->eos;
    int rc = 0;

    tt_tokenizer_begin(c->tokenizer, &to->ids);
    set_counts(to, 0);
    TT_TRY(tt_encoder_encode_marked(c->encoder, c->text.text, c->text.size, &c->learned, &to->ids, &to->counts));
    if (eos >= 0)
        tt_ids_add(&to->ids, eos);
    set_counts(to, 1);
out:
    return rc;
}

/* --- reading a line --- */

/* A null member counts as missing. */
static int read_fields(const char *line, size_t size, struct tt_json_field *field, int n)
{
    struct tt_json_problem problem;
    json_type kind;

    if (!tt_json_fields(line, size, field, n, &kind, &problem))
        return tt_fail(TT_EDATA, "column %zu: invalid JSON: %s", problem.column, problem.what);
    if (kind != JSON_OBJECT)
        return tt_fail(TT_EDATA, "the line is %s, wanted an object", tt_json_kind_name(kind));
    for (int i = 0; i < n; i++)
        if (field[i].kind == JSON_NULL)
            field[i].value = NULL;
    return 0;
}

/* Appends the text of a member. */
static int add_text(const struct tt_json_field *f, struct tt_text *text)
{
    if (!f->value)
        return tt_fail(TT_EDATA, "the line has no '%s'", f->name);
    if (f->kind != JSON_STRING)
        return tt_fail(TT_EDATA, "'%s' of the line is %s, wanted a string", f->name, tt_json_kind_name(f->kind));
    tt_text_add_bytes(text, "", 0);
    tt_json_add_string(f->value, f->size, text);
    return 0;
}

/* --- reading messages --- */

static int check_text(const json_t *message, const char *name, bool may_lack, const char *where)
{
    const json_t *value = json_object_get(message, name);

    if (!value && !may_lack)
        return tt_fail(TT_EDATA, "%s has no '%s'", where, name);
    if (value && !json_is_string(value))
        return tt_fail(TT_EDATA, "'%s' of %s is %s, wanted a string", name, where,
                       tt_json_kind_name(json_typeof(value)));
    return 0;
}

static int check_role(const char *role, const char *where)
{
    if (strcmp(role, "system") == 0 || strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0)
        return 0;
    return tt_fail(TT_EDATA,
                   "%s has the role '%.40s'\nhelp: roles are system, user and assistant; calls of tools are "
                   "not supported",
                   where, role);
}

/* Reads the weight of a message: 1 or 0, as an integer or a real. Refuses other values. */
static int read_weight(const json_t *value, const char *where, bool *ret_learned)
{
    double weight = value ? json_is_number(value) ? json_number_value(value) : NAN : 1.0;

    if (weight != 0.0 && weight != 1.0)
        return tt_fail(TT_EDATA, "%s has a weight other than 0 and 1, which is not supported", where);
    *ret_learned = weight != 0.0;
    return 0;
}

/* Removes null members and stores reasoning under the names that templates read, as transformers does. */
static void complete_message(json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *value, *reasoning = NULL;
    const char *key;
    void *next;

    json_object_foreach_safe(message, next, key, value)
    {
        if (json_is_null(value))
            (void)json_object_del(message, key);
    }
    for (int i = 0; i < 3 && !reasoning; i++)
        reasoning = json_object_get(message, names[i]);
    if (!reasoning)
        return;
    if (!json_object_get(message, "thinking"))
        (void)json_object_set(message, "thinking", reasoning);
    (void)json_object_set(message, "reasoning_content", reasoning);
}

/* Adds message number n. */
static int read_message(struct tt_chat *c, json_t *message, size_t n)
{
    const json_t *calls;
    const char *role;
    bool is_answer = false;
    char where[40];
    int rc = 0;

    (void)snprintf(where, sizeof where, "message %zu", n);
    if (!json_is_object(message))
        return tt_fail(TT_EDATA, "%s is %s, wanted an object", where, tt_json_kind_name(json_typeof(message)));
    complete_message(message);
    TT_TRY(check_text(message, "role", false, where));
    role = json_string_value(json_object_get(message, "role"));
    TT_TRY(check_role(role, where));
    TT_TRY(read_weight(json_object_get(message, "weight"), where, &is_answer));
    calls = json_object_get(message, "tool_calls");
    if (calls && (!json_is_array(calls) || json_array_size(calls)))
        return tt_fail(TT_EDATA, "%s calls tools, which is not supported", where);
    TT_TRY(check_text(message, "content", false, where));
    TT_TRY(check_text(message, "reasoning_content", true, where));
    add_message(c, message, is_answer && strcmp(role, "assistant") == 0);
    (void)json_object_del(message, "weight"); /* templates must not see the weight */
out:
    return rc;
}

static int read_messages(struct tt_chat *c, const struct tt_json_field *f)
{
    json_t *list = NULL, *message;
    bool answers = false;
    size_t i;
    int rc = 0;

    clear_messages(c);
    if (f->kind != JSON_ARRAY)
        return tt_fail(TT_EDATA, "'messages' is %s, wanted a list of objects with role and content",
                       tt_json_kind_name(f->kind));
    if (!(list = tt_json_value_tree(f->value, f->size)))
        return tt_fail(TT_EDATA, "'messages' is nested too deeply, or has a number that is too large");
    json_array_foreach(list, i, message)
    {
        TT_TRY(read_message(c, message, i + 1));
        answers = answers || c->is_answer[i];
    }
    if (!i)
        rc = tt_fail(TT_EDATA, "'messages' is empty");
    else if (!answers)
        rc = tt_fail(TT_EDATA,
                     "no message has the role assistant and a weight other than 0, so there is nothing to learn");
out:
    json_decref(list);
    return rc;
}

/* Makes the text of a prompt and its answer. */
static int read_pair(struct tt_chat *c, const struct tt_json_field *prompt, const struct tt_json_field *input,
                     const struct tt_json_field *answer)
{
    size_t begin;
    int rc = 0;

    clear_text(c);
    TT_TRY(add_text(prompt, &c->text));
    if (input && input->value && !(input->kind == JSON_STRING && input->size == 2)) { /* not "" */
        tt_text_add(&c->text, "\n\n");
        TT_TRY(add_text(input, &c->text));
    }
    begin = c->text.size;
    TT_TRY(add_text(answer, &c->text));
    if (begin == c->text.size)
        return tt_fail(TT_EDATA, "'%s' is empty, so there is nothing to learn", answer->name);
    tt_passages_add(&c->learned, begin, c->text.size);
out:
    return rc;
}

int tt_chat_read(struct tt_chat *chat, const char *line, size_t size, struct tt_chat_ids *ret_ids)
{
    enum { MESSAGES, TOOLS, PROMPT, COMPLETION, RESPONSE, INSTRUCTION, INPUT, OUTPUT, SHARED, N_FIELDS };
    struct tt_json_field f[N_FIELDS] = {{.name = "messages"},   {.name = "tools"},    {.name = "prompt"},
                                        {.name = "completion"}, {.name = "response"}, {.name = "instruction"},
                                        {.name = "input"},      {.name = "output"},   {.name = "conversations"}};
    int rc = 0;

    ret_ids->ids.n = ret_ids->counts.n = 0;
    TT_TRY(read_fields(line, size, f, N_FIELDS));
    /* datasets in which all lines have the same members use an empty list for "no tools" */
    if (f[MESSAGES].value && f[TOOLS].value && !(f[TOOLS].kind == JSON_ARRAY && f[TOOLS].size == 2))
        return tt_fail(TT_EDATA, "the line has 'tools', which are not supported");
    if (f[MESSAGES].value) {
        TT_TRY(read_messages(chat, &f[MESSAGES]));
        return write_conversation(chat, false, ret_ids);
    }
    if (f[PROMPT].value) {
        TT_TRY(read_pair(chat, &f[PROMPT], NULL, f[RESPONSE].value ? &f[RESPONSE] : &f[COMPLETION]));
    } else if (f[INSTRUCTION].value) {
        TT_TRY(read_pair(chat, &f[INSTRUCTION], &f[INPUT], &f[OUTPUT]));
    } else {
        return tt_fail(TT_EDATA,
                       "the line has neither 'messages' nor 'prompt' nor 'instruction'\nhelp: a line is "
                       "{\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, {\"prompt\": ..., \"completion\": "
                       "...} or {\"instruction\": ..., \"output\": ...}%s",
                       f[SHARED].value ? "; rename 'conversations', 'from' and 'value', and the roles" : "");
    }
    TT_TRY(write_pair(chat, ret_ids));
out:
    return rc;
}

/* --- the beginning of an answer --- */

int tt_chat_end(struct tt_chat *chat, int32_t *ret_end)
{
    int rc = need_template(chat);

    if (rc == 0)
        *ret_end = tt_chat_template_end(chat->chat);
    return rc;
}

int tt_chat_add(json_t *messages, const char *role, const char *text, size_t size)
{
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, size);

    if (!message)
        return tt_fail(TT_EDATA, "the text of role %s is not valid UTF-8", role);
    (void)json_array_append_new(messages, message);
    return 0;
}

int tt_chat_ask(struct tt_chat *chat, const json_t *messages, struct tt_chat_ids *ret_ids)
{
    clear_messages(chat);
    for (size_t i = 0; i < json_array_size(messages); i++)
        add_message(chat, json_array_get(messages, i), false);
    return write_conversation(chat, true, ret_ids);
}
