/* SPDX-License-Identifier: MIT
 *
 * The small files of a Hugging Face folder. For an export: config.json, generation_config.json and the tokenizer files,
 * which say how texts and conversations become tokens. For an import: the files that titan keeps. And
 * adapter_config.json, with the members that PEFT itself writes for plain LoRA.
 */
#include "checkpoint/export/hf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/export/internal.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/data/chat_template.h"
#include "core/models/lora.h"
#include "core/models/model_json.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/tokenizer.h"

/* Digits of numbers in a config.json; 1e-05 stays 1e-05. */
enum { REAL_DIGITS = 15 };

const char *const tt_hf_text_names[TT_HF_N_TEXTS] = {
    [TT_HF_TOKENIZER] = "tokenizer.json",
    [TT_HF_TOKENIZER_CONFIG] = "tokenizer_config.json",
    [TT_HF_SPECIAL_TOKENS] = "special_tokens_map.json",
    [TT_HF_CHAT_TEMPLATE] = "chat_template.jinja",
    [TT_HF_GENERATION] = "generation_config.json",
};

/* The text of a JSON file for Hugging Face; the caller frees it with tt_free. */
static char *json_text(const json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(REAL_DIGITS));
    char *copy = tt_strdup(text ? text : "null");

    free(text);
    return copy;
}

/* --- the training --- */

struct training {
    bool adds_bos;             /* BOS was put before every document */
    bool chats;                /* some of the data were conversations */
    const char *template_name; /* name of the chat template that wrote them */
};

static const json_t *run_config(const struct tt_source *source)
{
    return json_object_get(source->manifest.meta, "config");
}

/* The sequence length with which the checkpoint was trained; 0: not recorded. */
static int64_t trained_length(const struct tt_source *source)
{
    return json_integer_value(json_object_get(json_object_get(run_config(source), "training"), "seq_len"));
}

/* Packed tokens count as written by titan if they record their tokenizer, and as conversations if the loss leaves some
 * of them out. */
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

static int load_object(const char *folder, const char *name, json_t **ret_json)
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
    /* config and special tokens map of the tokenizer, generation_config.json; NULL: no such file */
    json_t *config, *special, *generation;
    bool config_changed;
};

/* The object in a JSON file that was read; NULL: there is none. The tokenizer's reader reports a faulty file. */
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
    m->trained_length = trained_length(source);
    find_training(source, &m->training);
    for (int i = 0; i < TT_HF_GENERATION && rc == 0; i++) {
        char *path = tt_format("%s/%s", m->assets, tt_hf_text_names[i]);
        bool exists = false;

        rc = tt_path_exists(path, &exists);
        if (rc == 0 && exists)
            rc = tt_file_read(path, &m->texts->text[i], &m->texts->size[i]);
        tt_free(path);
    }
    TT_TRY(rc);
    TT_TRY(load_object(m->assets, "hf_generation_config.json", &m->generation));
    if (!m->generation && source->assets) /* files of the Hugging Face folder that the user names */
        TT_TRY(load_object(m->assets, "generation_config.json", &m->generation));
    m->config = object_of(m, TT_HF_TOKENIZER_CONFIG);
    m->special = object_of(m, TT_HF_SPECIAL_TOKENS);
    if (!m->texts->text[TT_HF_TOKENIZER])
        goto out;
    TT_TRY(tt_tokenizer_load(m->assets, &m->tokenizer));
    m->texts->bos = tt_tokenizer_info(m->tokenizer)->bos;
    m->texts->eos = tt_tokenizer_info(m->tokenizer)->eos;
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

static void put_json_text(struct making *m, enum tt_hf_text which, const json_t *json)
{
    char *text = json_text(json);

    put_text(m, which, text, strlen(text));
    tt_free(text);
}

/* tokenizer_config.json, which may be missing; NULL: it is not JSON, and stays unchanged. */
static json_t *config_of(struct making *m)
{
    if (!m->config && !m->texts->text[TT_HF_TOKENIZER_CONFIG])
        m->config = json_pack("{s:s}", "tokenizer_class", "PreTrainedTokenizerFast");
    return m->config;
}

/* The text of the token in tokenizer.json; NULL: none. The caller frees. */
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

/* Sets a member of tokenizer_config.json, unless that file is not JSON. Takes ownership of the value. */
static void set_config(struct making *m, const char *key, json_t *value)
{
    json_t *config = config_of(m);

    m->config_changed = m->config_changed || config;
    (void)json_object_set_new(config, key, value);
}

/* Names a token in tokenizer_config.json, and in special_tokens_map.json if there is one. */
static void name_token(struct making *m, const char *key, int32_t id)
{
    char *name = name_of(m, id);

    if (name && config_of(m)) {
        set_config(m, key, json_string(name));
        (void)json_object_set_new(m->special, key, json_string(name));
    }
    tt_free(name);
}

static bool has_token(const struct making *m, const char *key)
{
    const json_t *value = json_object_get(m->config, key);

    return value && !json_is_null(value);
}

/* The id of the token that tokenizer_config.json calls `name`; -1: there is none. */
static int32_t named_token(const struct making *m, const char *key)
{
    const json_t *value = json_object_get(m->config, key);
    const char *name = tt_json_plain_string(json_is_object(value) ? json_object_get(value, "content") : value);

    return name ? tt_tokenizer_token_to_id(m->tokenizer, name) : -1;
}

/*
 * Raises model_max_length to the length of the training sequences, since tokenizers cut longer texts or warn about
 * them. Leaves a limit that is not an integer as it is (1e30 means no limit).
 */
static void lengthen(struct making *m)
{
    const json_t *most = json_object_get(m->config, "model_max_length");

    if (!json_is_integer(most) || json_integer_value(most) >= m->trained_length)
        return;
    set_config(m, "model_max_length", json_integer(m->trained_length));
}

/* Older versions of transformers heed add_bos_token instead of the post-processor. */
static void add_bos(struct making *m)
{
    struct tt_text text = {0};

    if (tt_tokenizer_json_with_bos(m->tokenizer, &text)) {
        put_text(m, TT_HF_TOKENIZER, text.text, text.size);
        if (!has_token(m, "bos_token"))
            name_token(m, "bos_token", tt_tokenizer_info(m->tokenizer)->bos);
        set_config(m, "add_bos_token", json_true());
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

/* The end of a turn comes first, as in Qwen's files, because transformers pads with the first token if there is no
 * padding token. */
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
 * Makes the token that ends a turn the tokenizer's EOS, as in the files of chat models, because some programs stop only
 * at a single token. If there is no padding token, the former EOS becomes the padding token, so that no loss takes the
 * end of a turn for padding and leaves it out. If the chat template writes eos_token, EOS stays, because the text would
 * change.
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
    (void)json_object_del(m->generation, "_from_model_config"); /* the file no longer follows from config.json alone */
    if (!json_is_integer(json_object_get(m->generation, "pad_token_id")) && named_token(m, "pad_token") >= 0)
        (void)json_object_set_new(m->generation, "pad_token_id", json_integer(named_token(m, "pad_token")));
}

/* A template that cannot be used does not stop the export. */
static int as_note(int rc)
{
    if (rc != TT_EUSAGE && rc != TT_EDATA)
        return rc;
    tt_note("the export has no chat template: %s", tt_error_message());
    return 0;
}

/* Sets ret_chat to the template that wrote the conversations (NULL: there were no conversations), and ret_is_own to
 * whether the tokenizer's files contain a template that writes the same. */
static int find_template(const struct making *m, struct tt_chat_template **ret_chat, bool *ret_is_own)
{
    bool is_auto = strcmp(m->training.template_name, "auto") == 0;
    struct tt_chat_template *own = NULL;
    int rc = 0;

    *ret_is_own = is_auto;
    if (is_auto && !tt_tokenizer_info(m->tokenizer)->chat_template)
        return 0; /* all data were prompts with their answers */
    TT_TRY(as_note(tt_chat_template_new(m->training.template_name, m->tokenizer, ret_chat)));
    if (!*ret_chat || is_auto || !tt_tokenizer_info(m->tokenizer)->chat_template)
        goto out;
    rc = tt_chat_template_new("auto", m->tokenizer, &own);
    rc = rc == TT_EUSAGE || rc == TT_EDATA ? 0 : rc; /* then the tokenizer's own template did not write them */
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
    set_config(m, "chat_template", json_stringn(text.text, text.size));
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
    /* If the template came with the base model, its files may already list the end of a turn as an end token. */
    if (m->texts->end >= 0 &&
        !(is_own && has_token(m, "eos_token") && has_id(json_object_get(m->generation, "eos_token_id"), m->texts->end)))
        add_end(m);
out:
    tt_chat_template_free(chat);
    return rc;
}

static void set_id(json_t *config, const char *key, int32_t id)
{
    if (id >= 0)
        (void)json_object_set_new(config, key, json_integer(id));
}

int tt_hf_texts_make(const struct tt_source *source, struct tt_hf_texts *ret_texts)
{
    struct making m = {.texts = ret_texts};
    int rc = 0;

    ret_texts->bos = ret_texts->eos = ret_texts->end = -1;
    TT_TRY(read_all(source, &m));
    if (!m.generation) {
        m.generation = json_pack("{s:b}", "_from_model_config", true);
        set_id(m.generation, "bos_token_id", ret_texts->bos);
        set_id(m.generation, "eos_token_id", ret_texts->eos);
    }
    if (m.tokenizer && tt_tokenizer_info(m.tokenizer)->chat_template)
        ret_texts->template = tt_strdup(tt_tokenizer_info(m.tokenizer)->chat_template);
    if (m.tokenizer && m.training.chats)
        TT_TRY(add_chat(&m));
    if (m.tokenizer && m.training.adds_bos)
        add_bos(&m);
    lengthen(&m);
    if (m.config_changed)
        put_json_text(&m, TT_HF_TOKENIZER_CONFIG, m.config);
    if (m.config_changed && m.special)
        put_json_text(&m, TT_HF_SPECIAL_TOKENS, m.special);
    put_json_text(&m, TT_HF_GENERATION, m.generation);
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

/* --- the folder --- */

/*
 * Whether a key of the original file must not be copied: it is about another dtype, place or version, or is another
 * spelling of a key that titan writes and would override it.
 */
static bool is_stale(const char *key)
{
    return tt_text_is_one_of(key, "dtype|torch_dtype|quantization_config|transformers_version|_name_or_path|"
                                  "rope_parameters|original_max_position_embeddings|partial_rotary_factor|"
                                  "num_mtp_layers|hidden_size|num_hidden_layers|num_attention_heads|"
                                  "max_position_embeddings");
}

/* Adds the keys of an imported config.json that the new one lacks. If the classes differ (a Mistral is exported as a
 * Llama), adds only the ids of tokens. */
static void add_kept(json_t *config, const json_t *kept)
{
    const char *type = json_string_value(json_object_get(config, "model_type")), *key;
    const char *kept_type = json_string_value(json_object_get(kept, "model_type"));
    json_int_t n_layers = json_integer_value(json_object_get(config, "num_hidden_layers"));
    json_t *value;
    bool is_same = type && kept_type && strcmp(type, kept_type) == 0;

    json_object_foreach((json_t *)(uintptr_t)kept, key, value)
    {
        const json_t *ours = json_object_get(config, key);
        bool is_id = tt_text_ends(key, "_token_id");
        /* titan writes null as a value of the model, as for rope_scaling. Only the ids of tokens are null because titan
         * does not know them. */
        bool is_open = !ours || (json_is_null(ours) && is_id);
        /* The imported layer_types do not fit a model whose number of layers has changed. */
        bool is_of_other_layers = strcmp(key, "layer_types") == 0 && (json_int_t)json_array_size(value) != n_layers;

        if ((is_same || is_id) && is_open && !is_stale(key) && !is_of_other_layers)
            (void)json_object_set(config, key, value);
    }
}

/* Whether an export copies a file of the assets. It does not copy files that belong to titan or that it writes anew. */
static bool travels_to_hf(const char *name)
{
    return !tt_text_ends(name, ".safetensors") &&
           !tt_text_is_one_of(name, "model.json|" TT_RUN_FILE "|hf_config.json|hf_generation_config.json|config.json|"
                                    "generation_config.json|model.safetensors.index.json");
}

/*
 * Whether the training sequences alone determine the longest sequence of a model: the run began with random weights,
 * the user set no limit, and RoPE does not depend on one.
 */
static bool is_as_long_as_trained(const struct tt_source *source, const struct tt_model *model, const json_t *kept)
{
    const json_t *config = json_object_get(source->manifest.meta, "config");
    const json_t *checkpoint = json_object_get(config, "checkpoint"), *keys = json_object_get(config, "model");
    const struct tt_rope *rope = &model->dims.rope;

    return trained_length(source) > 0 && !kept && !json_is_string(json_object_get(checkpoint, "initial_load_path")) &&
           !json_is_true(json_object_get(checkpoint, "initial_load_in_hf")) &&
           !json_is_integer(json_object_get(keys, "max_position_embeddings")) && !rope->dynamic &&
           rope->beta_fast == 0.0 && !tt_rope_is_long(rope);
}

/* kept: config.json of the imported model; may be NULL. */
static json_t *make_config(const struct tt_source *source, const struct tt_model *model, const json_t *kept,
                           enum tt_dtype dtype)
{
    json_t *config = tt_model_hf_config(model);
    int64_t seq_len = trained_length(source);

    (void)json_object_set_new(config, "torch_dtype",
                              json_string(dtype == TT_BF16  ? "bfloat16"
                                          : dtype == TT_F16 ? "float16"
                                                            : "float32"));
    if (kept)
        add_kept(config, kept);
    if (!model->row->learned_positions && !tt_rope_is_long(&model->dims.rope) && /* LongRoPE's scale follows from it */
        (seq_len > json_integer_value(json_object_get(config, "max_position_embeddings")) ||
         is_as_long_as_trained(source, model, kept)))
        (void)json_object_set_new(config, "max_position_embeddings", json_integer(seq_len));
    return config;
}

/* config.json of the imported model: from the assets, or from the Hugging Face folder that the user names; or NULL. */
static int kept_config(const struct tt_source *source, const char *assets, json_t **ret_kept)
{
    int rc = load_object(assets, "hf_config.json", ret_kept);

    return rc == 0 && !*ret_kept && source->assets ? load_object(assets, "config.json", ret_kept) : rc;
}

int tt_hf_positions(const struct tt_source *source, const struct tt_model *model, int64_t *ret_positions)
{
    char *assets = tt_source_assets(source);
    json_t *config = NULL, *kept = NULL;
    int rc = kept_config(source, assets, &kept);

    if (rc == 0) {
        config = make_config(source, model, kept, TT_F32);
        *ret_positions = json_integer_value(json_object_get(config, "max_position_embeddings"));
    }
    json_decref(config);
    json_decref(kept);
    tt_free(assets);
    return rc;
}

/* The small files that transformers knows. A downloaded folder also holds pictures and other copies of the weights. */
static const char *const side_files[] = {"tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "config.json",
                                         "generation_config.json"};

enum { N_SIDE_FILES = sizeof side_files / sizeof *side_files, N_TOKENIZER_FILES = N_SIDE_FILES - 2 };

int tt_hf_files_read(const char *folder, bool with_config, struct tt_hf_file **ret_files, int *ret_n)
{
    struct tt_hf_file *files = tt_calloc(N_SIDE_FILES, sizeof *files);
    int n = 0, rc = 0;

    for (int i = 0; i < (with_config ? N_SIDE_FILES : N_TOKENIZER_FILES) && rc == 0; i++) {
        char *path = tt_format("%s/%s", folder, side_files[i]);
        struct tt_hf_file file = {0};
        bool exists = false, gguf = tt_gguf_is_path(folder);

        rc = gguf ? tt_gguf_tokenizer_load(folder, side_files[i], &file.text, &file.size)
                  : tt_path_exists(path, &exists);
        exists = gguf ? file.text != NULL : exists;
        if (rc == 0 && exists && !gguf)
            rc = tt_file_read(path, &file.text, &file.size);
        tt_free(path);
        if (rc < 0 || !exists)
            continue;
        /* renamed, because transformers tries to load any folder that contains a config.json */
        file.name = tt_format("%s%s", i < N_TOKENIZER_FILES ? "" : "hf_", side_files[i]);
        files[n++] = file;
    }
    if (rc < 0) {
        tt_hf_files_free(files, n);
        return rc;
    }
    *ret_files = files;
    *ret_n = n;
    return 0;
}

void tt_hf_files_free(struct tt_hf_file *files, int n)
{
    for (int i = 0; i < n; i++) {
        tt_free(files[i].name);
        tt_free(files[i].text);
    }
    tt_free(files);
}

/* Puts the tokenizer's files of a folder into the output's folder `to`, and with with_config its configuration too. */
static int put_side_files(const struct tt_output *output, const char *folder, bool with_config, const char *to)
{
    struct tt_hf_file *files = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_hf_files_read(folder, with_config, &files, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *name = tt_format("%s%s", to, files[i].name);

        rc = tt_durable_put(output->folder, name, files[i].text, files[i].size);
        tt_free(name);
    }
out:
    tt_hf_files_free(files, n);
    return rc;
}

int tt_hf_folder_finish(struct tt_copying *c)
{
    const struct tt_output *output = &c->output;
    const struct tt_source *source = c->source[0];
    char *assets = tt_source_assets(source), *text = NULL;
    json_t *config = NULL, *kept = NULL;
    struct tt_hf_texts texts = {0};
    int rc = 0;

    TT_TRY(kept_config(source, assets, &kept));
    TT_TRY(tt_hf_texts_make(source, &texts));
    config = make_config(source, c->model[0], kept, c->dtype[0]);
    if (!json_is_integer(json_object_get(config, "bos_token_id")))
        set_id(config, "bos_token_id", texts.bos);
    if (texts.stops) /* after training on conversations, the end of a turn also ends a text */
        (void)json_object_set(config, "eos_token_id", texts.stops);
    else if (json_is_null(json_object_get(config, "eos_token_id")))
        set_id(config, "eos_token_id", texts.eos);
    text = json_text(config);
    TT_TRY(tt_durable_put(output->folder, "config.json", text, strlen(text)));
    /* A checkpoint's assets are copied whole. A folder that the user names may hold anything else too. */
    TT_TRY(source->assets || source->kind == TT_PATH_DCP ? put_side_files(output, assets, false, "")
                                                         : tt_output_copy(output, assets, travels_to_hf));
    for (int i = 0; i < TT_HF_N_TEXTS; i++)
        if (texts.text[i])
            TT_TRY(tt_durable_put(output->folder, tt_hf_text_names[i], texts.text[i], texts.size[i]));
out:
    json_decref(config);
    json_decref(kept);
    tt_hf_texts_release(&texts);
    tt_free(assets);
    tt_free(text);
    return rc;
}

int tt_hf_folder_keep(const struct tt_copying *c, const char *to)
{
    char *folder = tt_source_assets(c->source[0]), *name = tt_format("%smodel.json", to);
    char *text = tt_model_json_text(c->model[0]);
    int rc = 0;

    TT_TRY(put_side_files(&c->output, folder, true, to));
    TT_TRY(tt_durable_put(c->output.folder, name, text, strlen(text)));
out:
    tt_free(folder);
    tt_free(name);
    tt_free(text);
    return rc;
}

/* --- adapters --- */

/* The weights from which the run began; null: not recorded. If it began from adapters of PEFT, the weights to which
 * these belong. */
static json_t *base_of(const json_t *meta)
{
    const json_t *config = json_object_get(meta, "config");
    json_t *path = json_object_get(json_object_get(config, "checkpoint"), "initial_load_path");
    char *adapter = json_is_string(path) ? tt_format("%s/adapter_config.json", json_string_value(path)) : NULL;
    bool is_adapter = false;

    if (adapter && tt_path_exists(adapter, &is_adapter) < 0)
        is_adapter = false; /* the path is only written, not used */
    tt_free(adapter);
    if (!json_is_string(path) || is_adapter)
        path = json_object_get(json_object_get(config, "model"), "hf_assets_path");
    return json_is_string(path) ? json_incref(path) : json_null();
}

int tt_hf_adapter_config(struct tt_copying *c)
{
    const struct tt_lora *lora = &c->model[0]->dims.lora;
    json_t *modules = json_array();
    bool is_whole = lora->alpha == floor(lora->alpha) && fabs(lora->alpha) < 1e15;
    json_t *alpha = is_whole ? json_integer((json_int_t)lora->alpha) : json_real(lora->alpha);
    json_t *config = json_pack(
        "{s:s, s:s, s:o, s:I, s:o, s:f, s:s, s:b, s:b, s:b, s:b, s:b, s:o, s:n, s:o, s:o, s:n, s:n, s:n}", "peft_type",
        "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", base_of(c->source[0]->manifest.meta), "r",
        (json_int_t)lora->rank, "lora_alpha", alpha, "lora_dropout", lora->dropout, "bias", "none", "fan_in_fan_out", 0,
        "inference_mode", 1, "init_lora_weights", 1, "use_dora", lora->dora, "use_rslora", lora->rslora,
        "target_modules", modules, "modules_to_save", "rank_pattern", json_object(), "alpha_pattern", json_object(),
        "layers_to_transform", "layers_pattern", "revision");
    char *text;
    int rc;

    tt_lora_peft_targets(c->model[0], modules);
    text = json_text(config);
    rc = tt_durable_put(c->output.folder, "adapter_config.json", text, strlen(text));
    tt_free(text);
    json_decref(config);
    return rc;
}
