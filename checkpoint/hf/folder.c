/* SPDX-License-Identifier: MIT
 *
 * config.json, generation_config.json and the tokenizer files of an exported folder, and what is kept of
 * an imported one.
 */
#include "checkpoint/hf/folder.h"

#include <string.h>

#include "checkpoint/hf/texts.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/model_json.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"

char *tt_source_assets(const struct tt_source *source)
{
    const char *slash = strrchr(source->path, '/');

    if (source->assets)
        return tt_strdup(source->assets);
    if (source->kind == TT_PATH_STEP)
        return tt_format("%s/assets", source->path);
    if (tt_source_is_gguf(source))
        return tt_strdup(source->path);
    if (source->is_folder)
        return tt_strdup(source->path);
    return slash ? tt_strndup(source->path, (size_t)(slash - source->path)) : tt_strdup(".");
}

int tt_source_is_hf(const struct tt_source *source, bool *ret_is_hf)
{
    char *assets = tt_source_assets(source), *config = tt_format("%s/config.json", assets);
    char *ours = tt_format("%s/model.json", assets);
    bool has_config = false, has_ours = false;
    int rc = 0;

    if (tt_source_is_gguf(source)) /* which is no folder */
        goto out;
    TT_TRY(tt_path_exists(config, &has_config));
    TT_TRY(tt_path_exists(ours, &has_ours));
out:
    *ret_is_hf = source->kind == TT_PATH_PLAIN && has_config && !has_ours;
    tt_free(assets);
    tt_free(config);
    tt_free(ours);
    return rc;
}

/* Which model the folder says it is, in model.json or config.json; NULL if it says nothing. */
static int model_of_assets(const char *folder, struct tt_model **ret_model)
{
    char *ours = tt_format("%s/model.json", folder), *theirs = tt_format("%s/config.json", folder);
    bool has_ours = false, has_theirs = false;
    int rc = 0;

    TT_TRY(tt_path_exists(ours, &has_ours));
    TT_TRY(tt_path_exists(theirs, &has_theirs));
    if (has_ours)
        rc = tt_model_json_load(ours, ret_model);
    else if (has_theirs)
        rc = tt_model_from_hf(folder, ret_model);
out:
    tt_free(ours);
    tt_free(theirs);
    return rc;
}

/* The model that the user names. Flavors have a vocabulary, but torchtitan takes it from the tokenizer. */
static int told_model(const struct tt_source *source, const struct tt_told *told, struct tt_model **ret_model)
{
    const struct tt_manifest_tensor *embedding =
        tt_manifest_find(&source->manifest, TT_CKPT_MODEL, "tok_embeddings.weight");
    struct tt_model_dims overrides = {.tied = -1};
    int rc = 0;

    if (told->assets)
        TT_TRY(model_of_assets(told->assets, ret_model));
    if (*ret_model && told->model) {
        rc = tt_fail(TT_EUSAGE, "'%s' says which model it is, so --model %s is not needed", told->assets, told->model);
    } else if (!*ret_model && told->model) {
        overrides.vocab_size = embedding && embedding->ndim == 2 ? embedding->shape[0] : 0;
        rc = tt_model_new(told->model, told->flavor ? told->flavor : "", &overrides, NULL, ret_model);
    } else if (!*ret_model) {
        rc =
            tt_fail(TT_EDATA,
                    "'%s' does not say which model it is%s%s%s\n"
                    "help: --assets DIR (a folder with config.json and the tokenizer), or --model NAME --flavor FLAVOR",
                    source->path, told->assets ? ", nor does '" : "", told->assets ? told->assets : "",
                    told->assets ? "'" : "");
    }
out:
    return rc;
}

int tt_source_model(struct tt_source *source, const struct tt_told *told, struct tt_model **ret_model)
{
    char *assets = tt_source_assets(source), *path = tt_format("%s/model.json", assets);
    bool is_hf = false, exists = false, is_gguf = tt_source_is_gguf(source);
    int rc = 0;

    *ret_model = NULL;
    TT_TRY(tt_source_is_hf(source, &is_hf));
    TT_TRY(is_gguf ? 0 : tt_path_exists(path, &exists));
    if (is_hf || is_gguf) {
        rc = tt_fail(TT_EUSAGE, "'%s' is already a %s\nhelp: titan ckpt convert makes a titan checkpoint of it",
                     source->path, is_hf ? "Hugging Face folder" : "GGUF file");
    } else if (exists && (told->assets || told->model)) {
        rc = tt_fail(TT_EUSAGE, "'%s' says itself which model it is\nhelp: leave out --%s", source->path,
                     told->assets ? "assets" : "model");
    } else if (exists) {
        rc = tt_model_json_load(path, ret_model);
    } else {
        rc = told_model(source, told, ret_model);
        source->assets = rc == 0 && told->assets ? tt_strdup(told->assets) : NULL;
    }
out:
    tt_free(assets);
    tt_free(path);
    return rc;
}

/*
 * Keys that are about another dtype, place or version, or that spell a written key in another way: there they would
 * count instead of it.
 */
static bool is_stale(const char *key)
{
    static const char *const stale[] = {"dtype",
                                        "torch_dtype",
                                        "quantization_config",
                                        "transformers_version",
                                        "_name_or_path",
                                        "rope_parameters",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "num_mtp_layers",
                                        "hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "max_position_embeddings"};

    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++)
        if (strcmp(stale[i], key) == 0)
            return true;
    return false;
}

static bool is_token_id(const char *key)
{
    size_t n = strlen(key);

    return n > 9 && strcmp(key + n - 9, "_token_id") == 0;
}

/* A null is what the model has, as in rope_scaling; only the ids of tokens are null where titan does not know them. */
static bool is_open(const json_t *config, const char *key)
{
    const json_t *ours = json_object_get(config, key);

    return !ours || (json_is_null(ours) && is_token_id(key));
}

/* layer_types of as many layers as the model had when it was imported say nothing about another number of layers. */
static bool is_of_other_layers(const json_t *config, const char *key, const json_t *value)
{
    return strcmp(key, "layer_types") == 0 &&
           (json_int_t)json_array_size(value) != json_integer_value(json_object_get(config, "num_hidden_layers"));
}

/* Adds the keys of an imported config.json that the new one lacks: of another class, as Llama is that of an exported
 * Mistral, only the ids of tokens. */
static void add_kept(json_t *config, const json_t *kept)
{
    const char *type = json_string_value(json_object_get(config, "model_type")), *key;
    const char *kept_type = json_string_value(json_object_get(kept, "model_type"));
    json_t *value;
    bool is_same = type && kept_type && strcmp(type, kept_type) == 0;

    json_object_foreach((json_t *)(uintptr_t)kept, key, value)
    {
        if ((is_same || is_token_id(key)) && is_open(config, key) && !is_stale(key) &&
            !is_of_other_layers(config, key, value))
            (void)json_object_set(config, key, value);
    }
}

static const char *hf_dtype(enum tt_dtype dtype)
{
    return dtype == TT_BF16 ? "bfloat16" : dtype == TT_F16 ? "float16" : "float32";
}

static void set_id(json_t *config, const char *key, int32_t id)
{
    if (id >= 0)
        (void)json_object_set_new(config, key, json_integer(id));
}

static int put_json(const struct tt_output *output, const char *name, json_t *json)
{
    char *text = tt_hf_json_text(json);
    int rc = tt_output_put(output, name, text, strlen(text));

    tt_free(text);
    return rc;
}

/* Whether a file of the assets is copied to an export: not those that belong to titan or are written anew. */
static bool travels_to_hf(const char *name)
{
    static const char *const ours[] = {"model.json",  "hf_config.json",         "hf_generation_config.json",
                                       "config.json", "generation_config.json", "model.safetensors.index.json"};
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strcmp(ours[i], name) == 0)
            return false;
    return !(n > 12 && strcmp(name + n - 12, ".safetensors") == 0);
}

/*
 * Whether the run alone decides the longest sequence of a model: it began with random weights, nobody set a limit, and
 * its RoPE does not depend on one.
 */
static bool is_as_long_as_trained(const struct tt_source *source, const struct tt_model *model, const json_t *kept)
{
    const json_t *config = json_object_get(source->manifest.meta, "config");
    const json_t *checkpoint = json_object_get(config, "checkpoint"), *keys = json_object_get(config, "model");
    const struct tt_rope *rope = &model->dims.rope;

    return tt_hf_trained_length(source) > 0 && !kept &&
           !json_is_string(json_object_get(checkpoint, "initial_load_path")) &&
           !json_is_true(json_object_get(checkpoint, "initial_load_in_hf")) &&
           !json_is_integer(json_object_get(keys, "max_position_embeddings")) && !rope->dynamic &&
           rope->beta_fast == 0.0;
}

/* kept: config.json of the imported model; may be NULL. */
static json_t *make_config(const struct tt_source *source, const struct tt_model *model, const json_t *kept,
                           enum tt_dtype dtype)
{
    json_t *config = model->row->write_hf_config(model);
    int64_t seq_len = tt_hf_trained_length(source);

    (void)json_object_set_new(config, "torch_dtype", json_string(hf_dtype(dtype)));
    if (kept)
        add_kept(config, kept);
    if (!model->row->learned_positions &&
        (seq_len > json_integer_value(json_object_get(config, "max_position_embeddings")) ||
         is_as_long_as_trained(source, model, kept)))
        (void)json_object_set_new(config, "max_position_embeddings", json_integer(seq_len));
    return config;
}

/* config.json of the imported model, from the assets, or from the Hugging Face folder that a user names; or NULL. */
static int kept_config(const struct tt_source *source, const char *assets, json_t **ret_kept)
{
    int rc = tt_hf_object(assets, "hf_config.json", ret_kept);

    return rc == 0 && !*ret_kept && source->assets ? tt_hf_object(assets, "config.json", ret_kept) : rc;
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

/* The tokens that begin and end texts, where the imported config.json does not say them; after training on
 * conversations the end of a turn ends them too. */
static void add_ids(json_t *config, const struct tt_hf_texts *texts)
{
    if (!json_is_integer(json_object_get(config, "bos_token_id")))
        set_id(config, "bos_token_id", texts->bos);
    if (texts->stops)
        (void)json_object_set(config, "eos_token_id", texts->stops);
    else if (json_is_null(json_object_get(config, "eos_token_id")))
        set_id(config, "eos_token_id", texts->eos);
}

/* The small files that transformers knows; a downloaded folder also holds pictures and other copies of the weights. */
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
        /* renamed, since transformers would try to load a folder that has a config.json */
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

/* Puts the tokenizer's files of a folder, and with_config its configuration, into the output's folder `to`. */
static int put_side_files(const struct tt_output *output, const char *folder, bool with_config, const char *to)
{
    struct tt_hf_file *files = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_hf_files_read(folder, with_config, &files, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *name = tt_format("%s%s", to, files[i].name);

        rc = tt_output_put(output, name, files[i].text, files[i].size);
        tt_free(name);
    }
out:
    tt_hf_files_free(files, n);
    return rc;
}

/* A checkpoint's assets are copied whole. A folder that the user names may hold anything else too. */
static int copy_assets(const struct tt_output *output, const struct tt_source *source, const char *assets)
{
    if (source->assets || source->kind == TT_PATH_DCP)
        return put_side_files(output, assets, false, "");
    return tt_output_copy(output, assets, "", travels_to_hf);
}

static int put_texts(const struct tt_output *output, const struct tt_hf_texts *texts)
{
    int rc = 0;

    for (int i = 0; i < TT_HF_N_TEXTS; i++)
        if (texts->text[i])
            TT_TRY(tt_output_put(output, tt_hf_text_names[i], texts->text[i], texts->size[i]));
out:
    return rc;
}

int tt_hf_folder_finish(const struct tt_output *output, const struct tt_source *source, const struct tt_model *model,
                        enum tt_dtype dtype)
{
    char *assets = tt_source_assets(source);
    json_t *config = NULL, *kept = NULL;
    struct tt_hf_texts texts = {0};
    int rc = 0;

    TT_TRY(kept_config(source, assets, &kept));
    TT_TRY(tt_hf_texts_make(source, &texts));
    config = make_config(source, model, kept, dtype);
    add_ids(config, &texts);
    TT_TRY(put_json(output, "config.json", config));
    TT_TRY(copy_assets(output, source, assets));
    TT_TRY(put_texts(output, &texts));
out:
    json_decref(config);
    json_decref(kept);
    tt_hf_texts_release(&texts);
    tt_free(assets);
    return rc;
}

int tt_hf_folder_keep(const struct tt_output *output, const struct tt_source *source, const struct tt_model *model,
                      const char *to)
{
    char *folder = tt_source_assets(source), *name = tt_format("%smodel.json", to), *text = tt_model_json_text(model);
    int rc = 0;

    TT_TRY(put_side_files(output, folder, true, to));
    TT_TRY(tt_output_put(output, name, text, strlen(text)));
out:
    tt_free(folder);
    tt_free(name);
    tt_free(text);
    return rc;
}
