/* SPDX-License-Identifier: MIT
 *
 * The prompt of `titan generate`: from an option, a file, standard input, or as token ids.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/generate/generate.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/gguf/gguf.h"
#include "core/os/file.h"

enum { BLOCK = 65536 };

/* The text of the prompt and its size; NULL if no text was given. */
static int read_text(const struct tt_args *args, char **ret_text, size_t *ret_size)
{
    const char *prompt = tt_args_last(args, "prompt"), *file = tt_args_last(args, "prompt_file");
    bool from_stdin = (prompt && strcmp(prompt, "-") == 0) || (file && strcmp(file, "-") == 0);
    struct tt_text text = {0};
    char *block;
    size_t n;

    if (!from_stdin && file)
        return tt_file_read_any(file, TT_FILE_MOST, ret_text, ret_size);
    if (!from_stdin && !prompt)
        return 0;
    block = tt_calloc(1, BLOCK);
    while (from_stdin && (n = fread(block, 1, BLOCK, stdin)) > 0)
        tt_text_add_bytes(&text, block, n);
    tt_free(block);
    if (!from_stdin)
        tt_text_add(&text, "%s", prompt);
    *ret_size = text.size;
    *ret_text = text.text ? text.text : tt_strdup("");
    return from_stdin && ferror(stdin)
               ? tt_fail(TT_EIO, "cannot read the prompt from standard input: %s", strerror(errno))
               : 0;
}

static int read_tokens(const char *text, struct tt_ids *ids)
{
    const char *at = text;

    while (*at) {
        char *end = NULL;
        long value;

        errno = 0;
        value = strtol(at, &end, 10);
        if (errno || end == at || value < 0 || value > INT32_MAX || (*end && (*end != ',' || !end[1])))
            return tt_fail(TT_EUSAGE,
                           "generate: --prompt-tokens '%s' is not a list of token ids\nhelp: for instance "
                           "--prompt-tokens 1,306,42",
                           text);
        tt_ids_add(ids, (int32_t)value);
        at = *end ? end + 1 : end;
    }
    return 0;
}

bool tt_prompt_is_conversation(const struct tt_args *args)
{
    return tt_args_has(args, "chat") && !tt_args_has(args, "prompt") && !tt_args_has(args, "prompt_file") &&
           !tt_args_has(args, "prompts");
}

static int check_given(const struct tt_args *args)
{
    static const char *const ways[] = {"prompt", "prompt_file", "prompt_tokens"};
    int given = 0;

    if (tt_args_has(args, "chat") && tt_args_has(args, "prompt_tokens"))
        return tt_fail(TT_EUSAGE, "generate: --chat writes a text as a message, and --prompt-tokens gives no text\n"
                                  "help: use --prompt");
    if (!tt_args_has(args, "chat") && (tt_args_has(args, "system") || tt_args_has(args, "chat_template")))
        return tt_fail(TT_EUSAGE, "generate: --system and --chat-template need --chat");

    for (int i = 0; i < 3; i++)
        given += tt_args_has(args, ways[i]);
    if (given == 1 || tt_prompt_is_conversation(args))
        return 0;
    if (given)
        return tt_fail(TT_EUSAGE, "generate takes one of --prompt, --prompt-file and --prompt-tokens, %d were given",
                       given);
    return tt_fail(TT_EUSAGE, "generate needs a prompt\nhelp: titan generate PATH --prompt \"In the beginning\"; "
                              "--prompt - reads standard input");
}

static int encode(const struct tt_pretrained *weights, size_t size, struct tt_prompt *prompt)
{
    bool begins = weights->is_hf ? tt_tokenizer_info(prompt->tokenizer)->adds_bos : true;
    struct tt_encoder *encoder = NULL;
    int rc = 0;

    TT_TRY(tt_encoder_new(prompt->tokenizer, &encoder));
    if (begins)
        tt_tokenizer_begin(prompt->tokenizer, &prompt->ids);
    rc = tt_encoder_encode(encoder, prompt->text, size, &prompt->ids);
    rc = rc < 0 ? tt_wrap(rc, "the prompt") : 0;
out:
    tt_encoder_free(encoder);
    return rc;
}

/* The chat template that the option names; otherwise the run's; otherwise the tokenizer's. ret_end: the token that ends
 * an answer. */
static int open_chat(const struct tt_args *args, const struct tt_pretrained *weights, struct tt_prompt *prompt,
                     int32_t *ret_end)
{
    const json_t *training = json_object_get(weights->config, "training");
    const char *option = tt_args_last(args, "chat_template");
    const char *trained = json_string_value(json_object_get(training, "chat_template"));
    const char *name = option ? option : trained ? trained : "auto";
    int rc = 0;
    if (strcmp(name, "auto") == 0 && !tt_tokenizer_info(prompt->tokenizer)->chat_template)
        return tt_fail(TT_EUSAGE,
                       "%s has no chat template, so titan does not know how this model was taught to answer\n"
                       "help: if it was trained on conversations, name their template: --chat-template llama3, qwen3 "
                       "or chatml; if it was not, continue a text: --prompt TEXT without --chat",
                       tt_tokenizer_info(prompt->tokenizer)->where);
    TT_TRY(tt_chat_new(prompt->tokenizer, name, &prompt->chat));
    TT_TRY(tt_chat_end(prompt->chat, ret_end));
out:
    return rc;
}

/* Encodes the text as the user's turn. */
static int encode_message(const struct tt_args *args, size_t size, struct tt_prompt *prompt)
{
    const char *system = tt_args_last(args, "system");
    json_t *messages = json_array();
    struct tt_chat_ids found = {0};
    int rc = system ? tt_chat_add(messages, "system", system, strlen(system)) : 0;

    if (rc == 0)
        rc = tt_chat_add(messages, "user", prompt->text, size);
    if (rc == 0)
        rc = tt_chat_ask(prompt->chat, messages, &found);
    TT_TRY(rc == TT_EDATA ? tt_wrap(rc, "the prompt") : rc);
    prompt->ids = found.ids;
    found.ids = (struct tt_ids){0};
out:
    tt_chat_ids_release(&found);
    json_decref(messages);
    return rc;
}

int tt_prompt_check_ids(const struct tt_pretrained *weights, const struct tt_prompt *prompt, const struct tt_ids *ids)
{
    int64_t vocab = weights->model->dims.vocab_size;

    for (size_t i = 0; i < ids->n; i++) {
        if (ids->id[i] < vocab)
            continue;
        if (!prompt->text && !prompt->chat)
            return tt_fail(TT_EUSAGE, "generate: token %d is not in the model's vocabulary of %lld", ids->id[i],
                           (long long)vocab);
        return tt_fail(TT_EDATA, "the tokenizer %s turns the prompt into token %d, but the model's vocabulary has %lld",
                       tt_tokenizer_info(prompt->tokenizer)->where, ids->id[i], (long long)vocab);
    }
    return 0;
}

/* Adds eos_token_id of a Hugging Face file: a number or a list of numbers. A missing file is skipped, and so is one
 * that is not JSON, with a note. */
static int add_stops(const char *folder, const char *name, struct tt_ids *stop)
{
    char *path = tt_format("%s/%s", folder, name);
    json_t *json = NULL, *value;
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(path, &exists));
    if (!exists)
        goto out;
    rc = tt_json_load(path, &json);
    if (rc == TT_EDATA) {
        tt_note("not used: %s", tt_error_message());
        rc = 0;
    }
    if (rc < 0)
        goto out;
    value = json_object_get(json, "eos_token_id");
    if (json_is_integer(value))
        tt_ids_add(stop, (int32_t)json_integer_value(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        tt_ids_add(stop, (int32_t)json_integer_value(json_array_get(value, i)));
out:
    json_decref(json);
    tt_free(path);
    return rc;
}

/* The same for a GGUF file: the tokens that end a text and a turn. */
static int add_gguf_stops(const char *path, struct tt_ids *stop)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    const int64_t none = -1;
    struct tt_gguf file = {0};
    int64_t id = -1;
    int rc = tt_gguf_open(path, &file);

    for (size_t i = 0; i < sizeof keys / sizeof *keys && rc == 0; i++) {
        rc = tt_gguf_int(&file, keys[i], &none, &id);
        if (rc == 0 && id >= 0 && id <= INT32_MAX)
            tt_ids_add(stop, (int32_t)id);
    }
    tt_gguf_release(&file);
    return rc;
}

/* Finds the tokens that end a text as transformers does: in generation_config.json, or config.json, or the
 * tokenizer. */
static int find_stops(const struct tt_pretrained *weights, struct tt_prompt *prompt)
{
    int rc = 0;

    if (tt_gguf_is_path(weights->assets))
        return add_gguf_stops(weights->assets, &prompt->stop);
    if (weights->is_hf)
        TT_TRY(add_stops(weights->assets, "generation_config.json", &prompt->stop));
    if (weights->is_hf && prompt->stop.n == 0)
        TT_TRY(add_stops(weights->assets, "config.json", &prompt->stop));
    if (prompt->stop.n == 0 && prompt->tokenizer && tt_tokenizer_info(prompt->tokenizer)->eos >= 0)
        tt_ids_add(&prompt->stop, tt_tokenizer_info(prompt->tokenizer)->eos);
out:
    return rc;
}

/* All but the text and its tokens. needs_text: fails if there is no tokenizer. ret_end: the token that ends an
 * answer. */
static int open_prompt(const struct tt_args *args, const struct tt_pretrained *weights, bool needs_text,
                       struct tt_prompt *prompt, int32_t *ret_end)
{
    const char *folder = tt_args_last(args, "tokenizer");
    int rc = tt_pretrained_tokenizer(weights, folder, &prompt->tokenizer);

    *ret_end = -1;
    if (rc < 0 && !folder && !needs_text)
        rc = 0; /* tokens need no tokenizer, but one turns the answer into text */
    TT_TRY(rc);
    if (tt_args_has(args, "chat"))
        TT_TRY(open_chat(args, weights, prompt, ret_end));
out:
    return rc;
}

static int add_ends(const struct tt_pretrained *weights, struct tt_prompt *prompt, int32_t end)
{
    int rc = find_stops(weights, prompt);

    if (rc == 0 && end >= 0)
        tt_ids_add(&prompt->stop, end);
    return rc;
}

/* Turns the prompt's text into tokens. */
static int encode_text(const struct tt_args *args, const struct tt_pretrained *weights, size_t size,
                       struct tt_prompt *prompt)
{
    return prompt->chat ? encode_message(args, size, prompt) : encode(weights, size, prompt);
}

static int check_filled(const struct tt_prompt *prompt)
{
    return prompt->ids.n ? 0 : tt_fail(TT_EUSAGE, "generate: the prompt is empty");
}

int tt_prompt_read(const struct tt_args *args, const struct tt_pretrained *weights, struct tt_prompt *ret_prompt)
{
    struct tt_prompt prompt = {0};
    int32_t end;
    size_t size = 0;
    int rc = 0;

    TT_TRY(check_given(args));
    TT_TRY(read_text(args, &prompt.text, &size));
    if (prompt.text && size == 0)
        TT_TRY(check_filled(&prompt));
    TT_TRY(open_prompt(args, weights, !tt_args_has(args, "prompt_tokens"), &prompt, &end));
    if (prompt.text)
        TT_TRY(encode_text(args, weights, size, &prompt));
    else if (!prompt.chat)
        TT_TRY(read_tokens(tt_args_last(args, "prompt_tokens"), &prompt.ids));
    if (!tt_prompt_is_conversation(args))
        TT_TRY(check_filled(&prompt));
    TT_TRY(tt_prompt_check_ids(weights, &prompt, &prompt.ids));
    TT_TRY(add_ends(weights, &prompt, end));
    *ret_prompt = prompt;
    prompt = (struct tt_prompt){0};
out:
    tt_prompt_release(&prompt);
    return rc;
}

/* --- many prompts --- */

/* The members of a line of JSONL. ret_text: borrowed from the object. */
static int read_object(const json_t *object, const char **ret_text, struct tt_ids *ids, json_t **ret_id)
{
    const json_t *prompt = json_object_get(object, "prompt"), *tokens = json_object_get(object, "prompt_tokens");
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (strcmp(key, "prompt") != 0 && strcmp(key, "prompt_tokens") != 0 && strcmp(key, "id") != 0)
            return tt_fail(TT_EDATA,
                           "\"%s\" is not known; a line has \"prompt\" or \"prompt_tokens\", and may have an "
                           "\"id\"",
                           key);
    }
    if (json_is_string(prompt) == json_is_array(tokens) || (prompt && tokens))
        return tt_fail(TT_EDATA, "wanted an object with \"prompt\", a text, or \"prompt_tokens\", a list of token ids");
    *ret_text = json_string_value(prompt);
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *token = json_array_get(tokens, i);

        if (!json_is_integer(token) || json_integer_value(token) < 0 || json_integer_value(token) > INT32_MAX)
            return tt_fail(TT_EDATA, "element %zu of \"prompt_tokens\" is not a token id", i);
        tt_ids_add(ids, (int32_t)json_integer_value(token));
    }
    *ret_id = json_incref(json_object_get(object, "id"));
    return 0;
}

/* Adds a line of the file. */
static int add_line(const struct tt_args *args, const struct tt_pretrained *weights, bool is_json, const char *line,
                    size_t size, struct tt_prompts *prompts)
{
    struct tt_prompt one = {.tokenizer = prompts->common.tokenizer, .chat = prompts->common.chat};
    struct tt_prompts_line *added = &prompts->line[prompts->n - 1];
    const char *text = line;
    json_t *object = NULL;
    int rc = 0;

    if (is_json) {
        TT_TRY(tt_json_parse(line, size, "the line", &object));
        text = NULL;
        TT_TRY(read_object(object, &text, &one.ids, &added->id));
        size = text ? json_string_length(json_object_get(object, "prompt")) : 0;
    }
    if (text && !one.tokenizer)
        TT_TRY(tt_pretrained_tokenizer(weights, NULL, &one.tokenizer)); /* for its message */
    if (!text && one.chat)
        TT_TRY(tt_fail(TT_EDATA, "--chat writes a text as a message, and \"prompt_tokens\" gives no text"));
    if (text) {
        one.text = tt_strndup(text, size);
        TT_TRY(encode_text(args, weights, size, &one));
    }
    TT_TRY(check_filled(&one));
    TT_TRY(tt_prompt_check_ids(weights, &one, &one.ids));
    added->text = one.text;
    added->ids = one.ids;
    one.text = NULL;
    one.ids = (struct tt_ids){0};
out:
    json_decref(object);
    tt_free(one.text);
    tt_ids_release(&one.ids);
    return rc;
}

int tt_prompts_read(const struct tt_args *args, const struct tt_pretrained *weights, struct tt_prompts *ret_prompts)
{
    const char *path = tt_args_last(args, "prompts");
    bool is_json = tt_text_ends(path, ".jsonl");
    struct tt_prompts prompts = {0};
    char *text = NULL, *at;
    int64_t number = 1;
    int32_t end = -1;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_file_read_any(path, TT_FILE_MOST, &text, &size));
    TT_TRY(open_prompt(args, weights, !is_json, &prompts.common, &end));
    for (at = text; at < text + size; number++) {
        char *newline = memchr(at, '\n', (size_t)(text + size - at));
        size_t n = (size_t)((newline ? newline : text + size) - at);
        char *line = at;

        at += n + 1;
        if (n > 0 && line[n - 1] == '\r')
            n--;
        if (n == 0)
            continue;
        TT_PUSH(prompts.line, prompts.n, prompts.cap) = (struct tt_prompts_line){.number = number};
        rc = add_line(args, weights, is_json, line, n, &prompts);
        if (rc < 0)
            TT_TRY(tt_wrap(rc, "%s:%" PRId64, path, number));
    }
    if (prompts.n == 0)
        TT_TRY(tt_fail(TT_EUSAGE, "'%s' has no prompt", path));
    TT_TRY(add_ends(weights, &prompts.common, end));
    *ret_prompts = prompts;
    prompts = (struct tt_prompts){0};
out:
    tt_free(text);
    tt_prompts_release(&prompts);
    return rc;
}

void tt_prompts_release(struct tt_prompts *prompts)
{
    for (int i = 0; i < prompts->n; i++) {
        tt_free(prompts->line[i].text);
        tt_ids_release(&prompts->line[i].ids);
        json_decref(prompts->line[i].id);
    }
    tt_free(prompts->line);
    tt_prompt_release(&prompts->common);
    *prompts = (struct tt_prompts){.n = 0};
}

void tt_prompt_release(struct tt_prompt *prompt)
{
    tt_free(prompt->text);
    tt_ids_release(&prompt->ids);
    tt_ids_release(&prompt->stop);
    tt_chat_free(prompt->chat);
    tt_tokenizer_free(prompt->tokenizer);
    *prompt = (struct tt_prompt){0};
}
