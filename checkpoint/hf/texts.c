/* SPDX-License-Identifier: MIT
 *
 * The small files of an export that say how texts and conversations become tokens.
 */
#include "checkpoint/hf/texts.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf/folder.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/data/chat_template.h"
#include "core/os/file.h"
#include "core/tokenizer/tokenizer.h"

/* Enough for the numbers in a config.json, and 1e-05 stays 1e-05. */
enum { REAL_DIGITS = 15 };

const char *const tt_hf_text_names[TT_HF_N_TEXTS] = {
    [TT_HF_TOKENIZER] = "tokenizer.json",
    [TT_HF_TOKENIZER_CONFIG] = "tokenizer_config.json",
    [TT_HF_SPECIAL_TOKENS] = "special_tokens_map.json",
    [TT_HF_CHAT_TEMPLATE] = "chat_template.jinja",
    [TT_HF_GENERATION] = "generation_config.json",
};

char *tt_hf_json_text(const json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(REAL_DIGITS));
    char *copy = tt_strdup(text ? text : "null");

    free(text);
    return copy;
}

/* --- what training did --- */

struct training {
    bool adds_bos;             /* documents began with it */
    bool chats;                /* there were conversations */
    const char *template_name; /* that wrote them */
};

static const json_t *run_config(const struct tt_source *source)
{
    return json_object_get(source->manifest.meta, "config");
}

int64_t tt_hf_trained_length(const struct tt_source *source)
{
    return json_integer_value(json_object_get(json_object_get(run_config(source), "training"), "seq_len"));
}

/* Packed tokens are titan's if their tokenizer is known, and conversations if some are not learned. */
static void add_dataset(const json_t *meta, const char *name, bool is_named, struct training *training)
{
    const json_t *data = json_object_get(meta, "data");
    const char *tokenizer = json_string_value(json_object_get(data, "tokenizer"));
    bool is_masked = json_is_true(json_object_get(data, "masked"));
    bool is_known = tokenizer && strspn(tokenizer, "0") < strlen(tokenizer);

    if (strcmp(name, "tokens_u16") == 0)
        return;
    if (strcmp(name, "jsonl_sft") == 0 || (strcmp(name, "tokens") == 0 && (is_masked || is_named)))
        training->chats = true;
    else if (strcmp(name, "tokens") != 0 || is_known)
        training->adds_bos = true;
}

static void find_training(const struct tt_source *source, struct training *ret_training)
{
    const json_t *keys = json_object_get(run_config(source), "training"), *datasets = json_object_get(keys, "dataset");
    const char *name = json_string_value(json_object_get(keys, "chat_template"));
    const json_t *entry;
    bool is_named = name && strcmp(name, "auto") != 0;
    size_t i;

    *ret_training = (struct training){.template_name = name ? name : "auto"};
    if (json_is_string(datasets))
        add_dataset(source->manifest.meta, json_string_value(datasets), is_named, ret_training);
    json_array_foreach(datasets, i, entry)
    {
        const char *dataset = json_string_value(json_object_get(entry, "dataset"));

        if (dataset)
            add_dataset(source->manifest.meta, dataset, is_named, ret_training);
    }
}

/* --- reading --- */

int tt_hf_object(const char *folder, const char *name, json_t **ret_json)
{
    char *path = tt_format("%s/%s", folder, name);
    bool exists = false;
    int rc = 0;

    *ret_json = NULL;
    TT_TRY(tt_path_exists(path, &exists));
    rc = exists ? tt_json_load(path, ret_json) : 0;
    if (rc == TT_EDATA) {
        tt_note("not used for the export: %s", tt_error_message());
        rc = 0;
    }
    if (!json_is_object(*ret_json)) {
        json_decref(*ret_json);
        *ret_json = NULL;
    }
out:
    tt_free(path);
    return rc;
}

struct making {
    struct tt_hf_texts *texts;
    char *assets;
    struct tt_tokenizer *tokenizer; /* NULL: none */
    struct training training;
    int64_t trained_length;
    json_t *config, *special, *generation; /* of the tokenizer, its map of special tokens; NULL: no such file */
    bool config_changed;
};

static int read_file(struct making *m, enum tt_hf_text which)
{
    char *path = tt_format("%s/%s", m->assets, tt_hf_text_names[which]);
    bool exists = false;
    int rc = tt_path_exists(path, &exists);

    if (rc == 0 && exists)
        rc = tt_file_read(path, &m->texts->text[which], &m->texts->size[which]);
    tt_free(path);
    return rc;
}

/* The object of a file that was read; NULL: there is none. The tokenizer's reader says what is wrong with it. */
static json_t *object_of(const struct making *m, enum tt_hf_text which)
{
    const char *text = m->texts->text[which];
    json_t *json = NULL;

    if (text && tt_json_parse(text, m->texts->size[which], tt_hf_text_names[which], &json) < 0)
        return NULL;
    if (json_is_object(json))
        return json;
    json_decref(json);
    return NULL;
}

static int read_all(const struct tt_source *source, struct making *m)
{
    int rc = 0;

    m->assets = tt_source_assets(source);
    m->trained_length = tt_hf_trained_length(source);
    find_training(source, &m->training);
    for (int i = 0; i < TT_HF_GENERATION; i++)
        TT_TRY(read_file(m, (enum tt_hf_text)i));
    TT_TRY(tt_hf_object(m->assets, "hf_generation_config.json", &m->generation));
    if (!m->generation && source->assets) /* of the Hugging Face folder that a user names */
        TT_TRY(tt_hf_object(m->assets, "generation_config.json", &m->generation));
    m->config = object_of(m, TT_HF_TOKENIZER_CONFIG);
    m->special = object_of(m, TT_HF_SPECIAL_TOKENS);
    if (!m->texts->text[TT_HF_TOKENIZER])
        goto out;
    TT_TRY(tt_tokenizer_load(m->assets, &m->tokenizer));
    m->texts->bos = tt_tokenizer_bos(m->tokenizer);
    m->texts->eos = tt_tokenizer_eos(m->tokenizer);
out:
    return rc;
}

/* --- changing --- */

static void put_text(struct making *m, enum tt_hf_text which, const char *text, size_t size)
{
    tt_free(m->texts->text[which]);
    m->texts->text[which] = tt_strndup(text, size);
    m->texts->size[which] = size;
}

static void put_json(struct making *m, enum tt_hf_text which, const json_t *json)
{
    char *text = tt_hf_json_text(json);

    put_text(m, which, text, strlen(text));
    tt_free(text);
}

/* tokenizer_config.json, which may be missing; NULL: it is no JSON, and stays as it is. */
static json_t *config_of(struct making *m)
{
    if (!m->config && !m->texts->text[TT_HF_TOKENIZER_CONFIG])
        m->config = json_pack("{s:s}", "tokenizer_class", "PreTrainedTokenizerFast");
    return m->config;
}

/* The token as tokenizer.json writes it; NULL: none. The caller frees. */
static char *name_of(const struct making *m, int32_t id)
{
    size_t size = 0;
    const char *bytes = tt_tokenizer_id_to_token(m->tokenizer, id, &size);
    char *name = tt_strndup(bytes, size);

    if (size && tt_tokenizer_token_to_id(m->tokenizer, name) == id)
        return name;
    tt_free(name);
    return NULL;
}

/* Names a token in tokenizer_config.json, and in special_tokens_map.json if there is one. */
static void name_token(struct making *m, const char *key, int32_t id)
{
    char *name = name_of(m, id);
    json_t *config = name ? config_of(m) : NULL;

    if (config) {
        (void)json_object_set_new(config, key, json_string(name));
        m->config_changed = true;
        if (m->special)
            (void)json_object_set_new(m->special, key, json_string(name));
    }
    tt_free(name);
}

static bool has_token(const struct making *m, const char *key)
{
    const json_t *value = json_object_get(m->config, key);

    return value && !json_is_null(value);
}

/* The id of a token that tokenizer_config.json names; -1: it names none. */
static int32_t named_token(const struct making *m, const char *key)
{
    const json_t *value = json_object_get(m->config, key);
    const char *name = tt_json_plain_string(json_is_object(value) ? json_object_get(value, "content") : value);

    return name ? tt_tokenizer_token_to_id(m->tokenizer, name) : -1;
}

/*
 * Tokenizers cut, or warn of, texts that are longer than model_max_length. One below what the model was trained with is
 * no longer true. Files in which it is no integer (1e30 means no limit) stay as they are.
 */
static void lengthen(struct making *m)
{
    const json_t *most = json_object_get(m->config, "model_max_length");

    if (!json_is_integer(most) || json_integer_value(most) >= m->trained_length)
        return;
    (void)json_object_set_new(m->config, "model_max_length", json_integer(m->trained_length));
    m->config_changed = true;
}

/* Older versions of transformers heed add_bos_token instead of the post-processor. */
static void add_bos(struct making *m)
{
    struct tt_text text = {0};

    if (tt_tokenizer_json_with_bos(m->tokenizer, &text)) {
        put_text(m, TT_HF_TOKENIZER, text.text, text.size);
        if (!has_token(m, "bos_token"))
            name_token(m, "bos_token", tt_tokenizer_bos(m->tokenizer));
        if (config_of(m)) {
            (void)json_object_set_new(m->config, "add_bos_token", json_true());
            m->config_changed = true;
        }
    }
    tt_text_release(&text);
}

static bool has_id(const json_t *ids, int32_t id)
{
    const json_t *each;
    size_t i;

    if (json_is_integer(ids))
        return json_integer_value(ids) == id;
    json_array_foreach(ids, i, each)
    {
        if (json_integer_value(each) == id)
            return true;
    }
    return false;
}

/* The end of a turn comes first, as in Qwen's files: transformers pads with the first one if nothing says with what. */
static void add_stop(struct making *m)
{
    const json_t *ids = json_object_get(m->generation, "eos_token_id");
    json_t *stops, *each;
    size_t i;

    if (has_id(ids, m->texts->end))
        return;
    stops = json_pack("[i]", m->texts->end);
    if (json_is_integer(ids))
        (void)json_array_append(stops, (json_t *)(uintptr_t)ids);
    else if (!json_is_array(ids) && m->texts->eos >= 0 && m->texts->eos != m->texts->end)
        (void)json_array_append_new(stops, json_integer(m->texts->eos));
    json_array_foreach((json_t *)(uintptr_t)ids, i, each)(void) json_array_append(stops, each);
    m->texts->stops = stops;
    (void)json_object_set(m->generation, "eos_token_id", stops);
}

/*
 * The end of a turn as the tokenizer's EOS, as in the files of chat models: programs that know one token only stop
 * there. Padding is the former EOS then, so that the end of a turn is never taken for padding and left out of a loss.
 * A template that writes eos_token would write another text.
 */
static void add_end(struct making *m)
{
    bool has_pad = named_token(m, "pad_token") >= 0;
    int32_t eos = m->texts->eos, end = m->texts->end;

    if (!has_pad)
        name_token(m, "pad_token", eos >= 0 ? eos : end);
    if (end != eos && !strstr(m->texts->template, "eos_token"))
        name_token(m, "eos_token", end);
    else if (eos >= 0 && !has_token(m, "eos_token"))
        name_token(m, "eos_token", eos);
    add_stop(m);
    (void)json_object_del(m->generation, "_from_model_config"); /* config.json does not say as much */
    if (!json_is_integer(json_object_get(m->generation, "pad_token_id")) && named_token(m, "pad_token") >= 0)
        (void)json_object_set_new(m->generation, "pad_token_id", json_integer(named_token(m, "pad_token")));
}

/* Whether the files of the base model, which had the template, say that the end of a turn ends an answer. */
static bool ends_answers(const struct making *m)
{
    return has_id(json_object_get(m->generation, "eos_token_id"), m->texts->end) && has_token(m, "eos_token");
}

/* What the template does not say is not an error of the export. */
static int as_note(int rc)
{
    if (rc != TT_EUSAGE && rc != TT_EDATA)
        return rc;
    tt_note("the export has no chat template: %s", tt_error_message());
    return 0;
}

/* Sets ret_chat to the template that wrote the conversations, and ret_is_own to whether the tokenizer's files have it,
 * in these or other words; NULL: there were none. */
static int find_template(const struct making *m, struct tt_chat_template **ret_chat, bool *ret_is_own)
{
    bool is_auto = strcmp(m->training.template_name, "auto") == 0;
    struct tt_chat_template *own = NULL;
    int rc = 0;

    *ret_is_own = is_auto;
    if (is_auto && !tt_tokenizer_chat_template(m->tokenizer))
        return 0; /* all data were prompts with their answers */
    TT_TRY(as_note(tt_chat_template_new(m->training.template_name, m->tokenizer, ret_chat)));
    if (!*ret_chat || is_auto || !tt_tokenizer_chat_template(m->tokenizer))
        goto out;
    rc = tt_chat_template_new("auto", m->tokenizer, &own);
    rc = rc == TT_EUSAGE || rc == TT_EDATA ? 0 : rc; /* it is not the one that wrote them, then */
    if (rc == 0 && own)
        rc = tt_chat_template_compare(*ret_chat, own, ret_is_own);
out:
    tt_chat_template_free(own);
    return rc;
}

static void put_template(struct making *m, const struct tt_chat_template *chat)
{
    struct tt_text text = {0};

    tt_chat_template_text(chat, &text);
    put_text(m, TT_HF_CHAT_TEMPLATE, text.text, text.size);
    if (config_of(m)) {
        (void)json_object_set_new(m->config, "chat_template", json_stringn(text.text, text.size));
        m->config_changed = true;
    }
    tt_free(m->texts->template);
    m->texts->template = text.text;
}

static int add_chat(struct making *m)
{
    struct tt_chat_template *chat = NULL;
    bool is_own = false;
    int rc = 0;

    TT_TRY(find_template(m, &chat, &is_own));
    if (!chat) {
        m->training.adds_bos = true;
        goto out;
    }
    if (!is_own)
        put_template(m, chat);
    if (!has_token(m, "bos_token") && m->texts->bos >= 0)
        name_token(m, "bos_token", m->texts->bos);
    m->texts->end = tt_chat_template_end(chat);
    if (m->texts->end >= 0 && !(is_own && ends_answers(m)))
        add_end(m);
out:
    tt_chat_template_free(chat);
    return rc;
}

static int change_tokenizer(struct making *m)
{
    const char *template = tt_tokenizer_chat_template(m->tokenizer);
    int rc = 0;

    m->texts->template = template ? tt_strdup(template) : NULL;
    if (m->training.chats)
        TT_TRY(add_chat(m));
    if (m->training.adds_bos)
        add_bos(m);
out:
    return rc;
}

static json_t *new_generation(const struct tt_hf_texts *texts)
{
    json_t *generation = json_pack("{s:b}", "_from_model_config", true);

    if (texts->bos >= 0)
        (void)json_object_set_new(generation, "bos_token_id", json_integer(texts->bos));
    if (texts->eos >= 0)
        (void)json_object_set_new(generation, "eos_token_id", json_integer(texts->eos));
    return generation;
}

int tt_hf_texts_make(const struct tt_source *source, struct tt_hf_texts *ret_texts)
{
    struct making m = {.texts = ret_texts};
    int rc = 0;

    ret_texts->bos = ret_texts->eos = ret_texts->end = -1;
    TT_TRY(read_all(source, &m));
    if (!m.generation)
        m.generation = new_generation(ret_texts);
    if (m.tokenizer)
        TT_TRY(change_tokenizer(&m));
    lengthen(&m);
    if (m.config_changed)
        put_json(&m, TT_HF_TOKENIZER_CONFIG, m.config);
    if (m.config_changed && m.special)
        put_json(&m, TT_HF_SPECIAL_TOKENS, m.special);
    put_json(&m, TT_HF_GENERATION, m.generation);
out:
    json_decref(m.config);
    json_decref(m.special);
    json_decref(m.generation);
    tt_tokenizer_free(m.tokenizer);
    tt_free(m.assets);
    return rc;
}

void tt_hf_texts_release(struct tt_hf_texts *texts)
{
    for (int i = 0; i < TT_HF_N_TEXTS; i++)
        tt_free(texts->text[i]);
    tt_free(texts->template);
    json_decref(texts->stops);
    *texts = (struct tt_hf_texts){0};
}
