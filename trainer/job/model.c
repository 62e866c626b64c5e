/* SPDX-License-Identifier: MIT
 *
 * The model that a configuration describes: what a Hugging Face folder says, the sizes that replace the flavor's, and
 * the consequences for the configuration.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/steps/steps.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/round.h"
#include "core/models/hf.h"
#include "core/models/lora.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/tokenizer.h"
#include "trainer/job/job.h"

/* Adapters in PEFT's format as the beginning of a run: what adapter_config.json says becomes the keys lora.*. */

static char *config_path(const char *folder)
{
    return tt_format("%s/adapter_config.json", folder);
}

bool tt_job_is_adapter(const char *path)
{
    char *file = path ? config_path(path) : NULL;
    bool exists = false;

    if (file && tt_path_exists(file, &exists) < 0)
        exists = false; /* whoever reads the weights reports that */
    tt_free(file);
    return exists;
}

/* Options of PEFT that change what the adapters compute, with the values that titan computes. */
static const struct {
    const char *key;
    const char *means;
} refused[] = {
    {"modules_to_save", "other trained modules"},
    {"rank_pattern", "ranks by layer"},
    {"alpha_pattern", "factors by layer"},
    {"exclude_modules", "layers without adapters"},
    {"target_parameters", "adapters of parameters"},
    {"trainable_token_indices", "trained rows of the embedding"},
    {"alora_invocation_tokens", "adapters from some tokens on"},
    {"layer_replication", "repeated layers"},
    {"use_qalora", "quantized adapters (QALoRA)"},
    {"lora_bias", "biases of adapters"},
};

static bool is_unset(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           ((json_is_object(value) || json_is_array(value)) && json_object_size(value) == 0 &&
            json_array_size(value) == 0);
}

static int check(const json_t *json, const char *file)
{
    const char *type = json_string_value(json_object_get(json, "peft_type"));
    const char *bias = json_string_value(json_object_get(json, "bias"));

    if (!type || strcmp(type, "LORA") != 0)
        return tt_fail(TT_EDATA, "'%s': peft_type is '%s'; titan reads LORA", file, type ? type : "missing");
    if (bias && strcmp(bias, "none") != 0)
        return tt_fail(TT_EDATA, "'%s': bias is '%s'; titan trains no biases with adapters, and reads none", file,
                       bias);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!is_unset(json_object_get(json, refused[i].key)))
            return tt_fail(
                TT_EDATA,
                "'%s' has %s: %s, which titan does not have\n"
                "help: merge the adapter into the model with PEFT (merge_and_unload), and begin from the result",
                file, refused[i].key, refused[i].means);
    return 0;
}

/* Adds a word to a list in the form of a flag, which takes what is in quotes as it is. */
static int add_word(struct tt_text *list, const char *word, const char *file)
{
    if (!word || !*word || strchr(word, '"'))
        return tt_fail(TT_EDATA, "'%s': target_modules has %s%s%s, which is no name of a layer", file,
                       word ? "'" : "a member", word ? word : " that is no text", word ? "'" : "");
    tt_text_add(list, "%s\"%s\"", list->size > 1 ? "," : "", word);
    return 0;
}

/* "a|b" of a list of names or of numbers, or of one of them. TT_EDATA: it is something else. */
static int alternatives(const json_t *value, const char *key, bool names, const char *file, struct tt_text *text)
{
    size_t n = json_is_array(value) ? json_array_size(value) : 1;

    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;

        if (!names && json_is_integer(item))
            tt_text_add(text, "%s%lld", i ? "|" : "", (long long)json_integer_value(item));
        else if (names && json_is_string(item))
            tt_text_add(text, "%s%s", i ? "|" : "", json_string_value(item));
        else
            return tt_fail(TT_EDATA, "'%s': %s is not a list of %s", file, key, names ? "names" : "numbers of layers");
    }
    return 0;
}

/*
 * With layers_to_transform, PEFT takes only the layers of these numbers. A number is the first one that follows a name
 * (of layers_pattern, if it is there). ret_before is an expression for what comes before the name of a module; NULL:
 * there is no such option.
 */
static int layers_text(const json_t *json, const char *file, char **ret_before)
{
    const json_t *numbers = json_object_get(json, "layers_to_transform");
    const json_t *pattern = json_object_get(json, "layers_pattern");
    struct tt_text number = {0}, name = {0};
    int rc = 0;

    *ret_before = NULL;
    if (is_unset(numbers))
        return 0;
    TT_TRY(alternatives(numbers, "layers_to_transform", false, file, &number));
    if (!is_unset(pattern) && !(json_is_string(pattern) && !*json_string_value(pattern)))
        TT_TRY(alternatives(pattern, "layers_pattern", true, file, &name));
    *ret_before =
        tt_format("(?=(?:.*?\\.)?(?:%s)\\.(?:%s)\\.)(?:.*\\.)?", name.size ? name.text : "[^.]*", number.text);
out:
    tt_text_release(&number);
    tt_text_release(&name);
    return rc;
}

/* A name as part of an expression; the caller frees it. */
static char *escaped(const char *name)
{
    struct tt_text text = {0};

    for (; name && *name; name++)
        tt_text_add(&text, "%s%c", strchr("\\^$.|?*+()[]{}", *name) ? "\\" : "", *name);
    return text.text;
}

/* The value of lora.target_modules, as a flag: "[q_proj,v_proj]"; the caller frees it. */
static int modules_text(const json_t *json, const char *file, char **ret_text)
{
    const json_t *modules = json_object_get(json, "target_modules"), *name;
    struct tt_text text = {0};
    char *before = NULL;
    size_t i;
    int rc = 0;

    if (json_is_string(modules) ? !*json_string_value(modules) : json_array_size(modules) == 0)
        return tt_fail(TT_EDATA, "'%s': target_modules names no layer", file);
    TT_TRY(layers_text(json, file, &before));
    tt_text_add(&text, "[");
    if (json_is_string(modules) && before)
        TT_TRY(tt_fail(TT_EDATA,
                       "'%s' has layers_to_transform, but its target_modules is not a list\n"
                       "help: write the names of the layers as a list, such as [\"q_proj\", \"v_proj\"]",
                       file));
    if (json_is_string(modules))
        TT_TRY(add_word(&text, json_string_value(modules), file));
    json_array_foreach((json_t *)(uintptr_t)modules, i, name)
    {
        char *part = before ? escaped(json_string_value(name)) : NULL;
        char *word = part ? tt_format("%s%s", before, part) : NULL;

        rc = add_word(&text, word ? word : json_string_value(name), file);
        tt_free(part);
        tt_free(word);
        TT_TRY(rc);
    }
    tt_text_add(&text, "]");
    *ret_text = text.text;
    text = (struct tt_text){0};
out:
    tt_text_release(&text);
    tt_free(before);
    return rc;
}

/* Whether nobody set the value: it is a default, or comes from the built-in run. */
static bool has_default(const struct tt_config *cfg, enum tt_key key)
{
    const char *origin = tt_config_origin(cfg, key);

    return strcmp(origin, "default") == 0 || strncmp(origin, "builtin:", strlen("builtin:")) == 0;
}

/* Sets a key that the user did not set. Returns whether the user did. */
static int adopt(struct tt_config *cfg, enum tt_key key, const char *value, const char *file, bool *ret_is_set)
{
    *ret_is_set = !has_default(cfg, key);
    return *ret_is_set ? 0 : tt_config_adopt(cfg, key, value, file);
}

static int adopt_values(struct tt_config *cfg, const json_t *json, const char *file)
{
    bool rslora = json_is_true(json_object_get(json, "use_rslora")), is_set;
    bool dora = json_is_true(json_object_get(json, "use_dora"));
    const json_t *share = json_object_get(json, "lora_dropout");
    char rank[32], alpha[32], dropout[32], *modules = NULL;
    double factor = 0.0;
    int64_t r = 0;
    int rc = 0;

    TT_TRY(tt_json_get_int(json, "r", file, &r));
    TT_TRY(tt_json_get_real(json, "lora_alpha", file, &factor));
    TT_TRY(modules_text(json, file, &modules));
    (void)snprintf(rank, sizeof rank, "%lld", (long long)r);
    (void)tt_text_real(alpha, sizeof alpha, factor);
    TT_TRY(adopt(cfg, TT_KEY(lora.rank), rank, file, &is_set));
    TT_TRY(adopt(cfg, TT_KEY(lora.target_modules), modules, file, &is_set));
    (void)tt_text_real(dropout, sizeof dropout, json_number_value(share));
    if (!is_unset(share)) /* it says how PEFT trained them; this run may differ */
        TT_TRY(adopt(cfg, TT_KEY(lora.dropout), dropout, file, &is_set));
    TT_TRY(adopt(cfg, TT_KEY(lora.alpha), alpha, file, &is_set));
    if (is_set && cfg->lora.alpha != factor)
        TT_TRY(tt_fail_key(TT_EDATA, TT_KEY(lora.alpha),
                           "'%s' has lora_alpha %s; this run has lora.alpha %g\nhelp: leave out lora.alpha", file,
                           alpha, cfg->lora.alpha));
    TT_TRY(adopt(cfg, TT_KEY(lora.rslora), rslora ? "true" : "false", file, &is_set));
    if (is_set && cfg->lora.rslora != rslora)
        TT_TRY(tt_fail_key(TT_EDATA, TT_KEY(lora.rslora),
                           "'%s' has use_rslora %s; this run has lora.rslora %s\nhelp: leave out lora.rslora", file,
                           rslora ? "true" : "false", rslora ? "false" : "true"));
    TT_TRY(adopt(cfg, TT_KEY(lora.dora), dora ? "true" : "false", file, &is_set));
    if (is_set && cfg->lora.dora != dora)
        TT_TRY(tt_fail_key(TT_EDATA, TT_KEY(lora.dora),
                           "'%s' has use_dora %s; this run has lora.dora %s\nhelp: leave out lora.dora", file,
                           dora ? "true" : "false", dora ? "false" : "true"));
    if (cfg->lora.rank != r)
        rc = tt_fail_key(TT_EDATA, TT_KEY(lora.rank),
                         "the adapters in '%s' have rank %lld; this run has lora.rank %lld\nhelp: leave out lora.rank",
                         file, (long long)r, (long long)cfg->lora.rank);
out:
    tt_free(modules);
    return rc;
}

/* The weights to which the adapters belong. */
static int adopt_base(struct tt_config *cfg, const json_t *json, const char *file)
{
    const char *base = json_string_value(json_object_get(json, "base_model_name_or_path"));
    bool exists = false, is_set;
    int rc = 0;

    if (!cfg->model.hf_assets_path && base)
        TT_TRY(tt_path_exists(base, &exists));
    if (!cfg->model.hf_assets_path && !exists)
        return tt_fail_key(TT_EDATA, TT_KEY(model.hf_assets_path),
                           "the adapters in '%s' belong to '%s', which is not a folder here\n"
                           "help: set %s to the folder or GGUF file of these weights",
                           file, base ? base : "weights that it does not name", TT_KEY_NAME(model.hf_assets_path));
    if (!cfg->model.hf_assets_path)
        TT_TRY(tt_config_adopt(cfg, TT_KEY(model.hf_assets_path), base, file));
    TT_TRY(adopt(cfg, TT_KEY(checkpoint.initial_load_in_hf), "true", file, &is_set));
    if (!cfg->checkpoint.initial_load_in_hf)
        TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(checkpoint.initial_load_in_hf),
                           "'%s' is a folder of PEFT, whose adapters belong to weights in Hugging Face's format\n"
                           "help: leave it out",
                           cfg->checkpoint.initial_load_path));
    rc = adopt(cfg, TT_KEY(model.flavor), "hf", file, &is_set);
out:
    return rc;
}

/* If checkpoint.initial_load_path is such a folder, sets the keys that the user did not set: lora.*, the weights to
 * which the adapters belong, and their format. TT_EDATA: the file is damaged, it has an option that titan does not
 * have, the user set another rank or factor, or the weights are not there. */
static int adopt_adapter(struct tt_config *cfg)
{
    char *file = config_path(cfg->checkpoint.initial_load_path);
    json_t *json = NULL;
    int rc = 0;

    TT_TRY(tt_json_load(file, &json));
    TT_TRY(check(json, file));
    TT_TRY(adopt_values(cfg, json, file));
    rc = adopt_base(cfg, json, file);
out:
    json_decref(json);
    tt_free(file);
    return rc;
}

static int64_t or_zero(int64_t nullable)
{
    return nullable == TT_NULL_INT ? 0 : nullable;
}

static double or_zero_real(double nullable)
{
    return isnan(nullable) ? 0.0 : nullable;
}

struct tt_model_dims tt_job_model_overrides(const struct tt_config *cfg)
{
    struct tt_lora lora = {.rank = cfg->lora.rank,
                           .alpha = cfg->lora.alpha,
                           .rslora = cfg->lora.rslora,
                           .dora = cfg->lora.dora,
                           .dropout = cfg->lora.dropout,
                           .packing = cfg->lora.base_dtype};

    tt_lora_set_targets(&lora, (const char *const *)cfg->lora.target_modules.word, cfg->lora.target_modules.n);
    return (struct tt_model_dims){
        .dim = or_zero(cfg->model.dim),
        .n_layers = or_zero(cfg->model.n_layers),
        .n_heads = or_zero(cfg->model.n_heads),
        .n_kv_heads = or_zero(cfg->model.n_kv_heads),
        .head_dim = or_zero(cfg->model.head_dim),
        .ffn_dim = or_zero(cfg->model.ffn_dim),
        .vocab_size = or_zero(cfg->model.vocab_size),
        .max_positions = or_zero(cfg->model.max_position_embeddings),
        .norm_eps = (float)or_zero_real(cfg->model.norm_eps),
        .rope = {.theta = or_zero_real(cfg->model.rope_theta),
                 .factor = or_zero_real(cfg->model.rope_scaling.factor),
                 .low_freq_factor = or_zero_real(cfg->model.rope_scaling.low_freq_factor),
                 .high_freq_factor = or_zero_real(cfg->model.rope_scaling.high_freq_factor),
                 .original_max = (double)or_zero(cfg->model.rope_scaling.original_max)},
        .moe = {.biased = cfg->training.load_balance_coeff > 0.0, .balanced = cfg->debug.moe_force_load_balance},
        .tied = cfg->model.tie_embeddings == TT_NULL_BOOL ? -1 : cfg->model.tie_embeddings,
        .lora = lora,
    };
}

/* Weights and a tokenizer may be one file instead of a folder. A GGUF file also contains the small files of such a
 * folder. */
static int has_file(const char *folder, const char *name, bool *ret_has)
{
    char *path = tt_format("%s/%s", folder, name);
    bool is_folder = false;
    int rc = tt_path_is_folder(folder, &is_folder);

    *ret_has = false;
    if (rc == 0 && tt_gguf_is_path(folder)) {
        rc = strcmp(name, "tokenizer.json") == 0 ? tt_gguf_has_tokenizer(folder, ret_has) : 0;
        *ret_has = *ret_has || strcmp(name, "config.json") == 0;
    }
    if (rc == 0 && is_folder)
        rc = tt_path_exists(path, ret_has);
    tt_free(path);
    return rc;
}

/* Whether a path is a folder of safetensors files with Hugging Face's config.json, or a GGUF file. Other code reports a
 * path that cannot be used. */
static int is_hf_folder(const char *path, bool *ret_is)
{
    enum tt_path_kind kind = TT_PATH_PLAIN;
    bool has_config = false, has_model = false;
    char *folder = NULL;
    int rc = 0;

    *ret_is = false;
    TT_TRY(has_file(path, "config.json", &has_config));
    TT_TRY(has_file(path, "model.json", &has_model)); /* with a model.json, the folder is titan's */
    *ret_is = has_config && !has_model && tt_path_find(path, &kind, &folder) == 0 && kind == TT_PATH_PLAIN;
out:
    tt_free(folder);
    return rc;
}

int tt_job_adopt_folder(struct tt_config *cfg)
{
    const char *assets = cfg->model.hf_assets_path, *path = cfg->checkpoint.initial_load_path;
    const char *origin = path ? TT_KEY_NAME(checkpoint.initial_load_path) : TT_KEY_NAME(model.hf_assets_path);
    bool is_hf = false, has_config = true, has_tokenizer = false;
    int rc = 0;

    if (!path && cfg->checkpoint.initial_load_in_hf)
        path = assets;
    if (!path)
        return 0;
    if (tt_job_is_adapter(path))
        return adopt_adapter(cfg);
    if (cfg->lora.base_dtype != TT_PACKING_NONE && !cfg->lora.rank)
        return tt_fail_key(TT_EUSAGE, TT_KEY(lora.base_dtype),
                           "only frozen weights can be packed, and '%s' is not a folder of adapters, so with %s 0 all "
                           "weights are trained\nhelp: set %s, or %s to default",
                           path, TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.base_dtype));
    if (cfg->lora.dora && !cfg->lora.rank)
        return tt_fail_key(TT_EUSAGE, TT_KEY(lora.dora),
                           "magnitudes (DoRA) need adapters, and '%s' is not a folder of adapters\n"
                           "help: set %s, or %s to false",
                           path, TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.dora));
    if (cfg->lora.dropout > 0.0 && !cfg->lora.rank)
        return tt_fail_key(TT_EUSAGE, TT_KEY(lora.dropout),
                           "dropout is for adapters, and '%s' is not a folder of adapters\nhelp: set %s, or %s to 0",
                           path, TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.dropout));
    TT_TRY(is_hf_folder(path, &is_hf));
    if (!is_hf)
        goto out;
    TT_TRY(has_file(path, "tokenizer.json", &has_tokenizer));
    if (assets)
        TT_TRY(has_file(assets, "config.json", &has_config));
    if (has_default(cfg, TT_KEY(checkpoint.initial_load_in_hf)))
        TT_TRY(tt_config_adopt(cfg, TT_KEY(checkpoint.initial_load_in_hf), "true", origin));
    if (has_config && has_default(cfg, TT_KEY(model.flavor)))
        TT_TRY(tt_config_adopt(cfg, TT_KEY(model.flavor), "hf", origin));
    if (!assets && (has_tokenizer || strcmp(cfg->model.flavor, "hf") == 0))
        TT_TRY(tt_config_adopt(cfg, TT_KEY(model.hf_assets_path), path, origin));
out:
    return rc;
}

int tt_job_adopt_family(struct tt_config *cfg)
{
    const char *folder = cfg->model.hf_assets_path, *name = NULL;
    char *origin;
    int rc;

    if (strcmp(cfg->model.flavor, "hf") != 0 || !folder || !has_default(cfg, TT_KEY(model.name)))
        return 0;
    if ((rc = tt_model_hf_name(folder, &name)) < 0)
        return rc;
    origin = tt_format("%s%s", folder, tt_gguf_is_path(folder) ? "" : "/config.json");
    rc = tt_config_adopt(cfg, TT_KEY(model.name), name, origin);
    tt_free(origin);
    return rc;
}

/* Whether a folder's tokenizer.json defines the same tokenizer. */
static bool has_tokenizer(const char *folder, const struct tt_tokenizer *tokenizer)
{
    const struct tt_tokenizer_info *files = tt_tokenizer_info(tokenizer);
    char *path = tt_format("%s/tokenizer.json", folder), *text = NULL;
    size_t size = 0;
    bool is_same =
        tt_file_read(path, &text, &size) == 0 && size == files->json_size && memcmp(text, files->json, size) == 0;

    tt_free(text);
    tt_free(path);
    return is_same;
}

/*
 * The number of rows of the embedding in a titan checkpoint. 0: there is no checkpoint or, if a tokenizer is given, its
 * tokenizer differs. If the checkpoint cannot be read, the code that loads it reports that.
 */
static int64_t checkpoint_rows(const char *path, const struct tt_tokenizer *tokenizer, char **ret_path)
{
    enum tt_path_kind kind = TT_PATH_PLAIN;
    char *step = NULL, *assets = NULL, *file = NULL;
    json_t *json = NULL;
    bool is_folder = false, exists = false;
    int64_t rows = 0;

    if (tt_path_is_folder(path, &is_folder) < 0 || !is_folder || tt_path_resolve(path, false, &kind, &step, NULL) < 0)
        goto out;
    assets = tt_format("%s%s", step, kind == TT_PATH_STEP ? "/assets" : "");
    file = tt_format("%s/model.json", assets);
    if (tt_path_exists(file, &exists) == 0 && exists && tt_json_load(file, &json) == 0 &&
        (!tokenizer || has_tokenizer(assets, tokenizer)))
        rows = json_integer_value(json_object_get(json, "vocab_size"));
    *ret_path = rows > 0 ? tt_strdup(step) : NULL;
out:
    json_decref(json);
    tt_free(step);
    tt_free(assets);
    tt_free(file);
    return rows;
}

/* The number of rows of a vocabulary is a multiple of this, for fast kernels and so that any usual number of ranks can
 * share them. Weights from other programs, however, have one row per token. */
enum { VOCABULARY_STEP = 64 };

static int adopt_rows(struct tt_config *cfg, int64_t rows, const struct tt_tokenizer *tokenizer)
{
    int64_t tokens = tt_tokenizer_info(tokenizer)->vocab_size, present = 0;
    const char *initial = cfg->checkpoint.initial_load_path;
    bool has_weights = initial || cfg->checkpoint.initial_load_in_hf;
    char *folder = tt_format("%s/%s", cfg->job.dump_folder, cfg->checkpoint.folder);
    char *from = NULL, *origin, size[32], count[32];
    int rc;

    if (cfg->checkpoint.enable) /* a checkpoint from which the run resumes or begins */
        present = checkpoint_rows(folder, tokenizer, &from);
    if (present <= 0 && initial)
        present = checkpoint_rows(initial, NULL, &from);
    tt_free(folder);
    if (present >= tokens) {
        rows = present;
        origin = tt_strdup(from);
        /* flavors have a few more rows than their tokenizers have tokens; in gpt_oss, which has the most, one row in
         * 190 has no token */
    } else if ((tokens <= rows && tokens > rows - rows / 50) || (has_weights && tokens <= rows)) {
        tt_free(from);
        return 0;
    } else {
        rows = has_weights && !cfg->checkpoint.initial_load_extend_vocabulary
                   ? tokens
                   : tt_div_up(tokens, VOCABULARY_STEP) * VOCABULARY_STEP;
        origin =
            tt_format("%s: %s tokens%s", tt_tokenizer_info(tokenizer)->where,
                      tt_text_count(count, sizeof count, tokens), rows > tokens ? ", padded to a multiple of 64" : "");
    }
    (void)snprintf(size, sizeof size, "%lld", (long long)rows);
    rc = tt_config_adopt(cfg, TT_KEY(model.vocab_size), size, origin);
    tt_free(origin);
    tt_free(from);
    return rc;
}

int tt_job_adopt_vocabulary(struct tt_config *cfg)
{
    struct tt_model_dims over = tt_job_model_overrides(cfg);
    const char *folder = cfg->model.hf_assets_path;
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_model *model = NULL;
    bool exists = false;
    int rc = 0;

    if (!folder || strcmp(cfg->model.flavor, "hf") == 0 || cfg->model.vocab_size != TT_NULL_INT ||
        tt_model_new(cfg->model.name, cfg->model.flavor, &over, NULL, &model) < 0)
        return 0;
    /* if there is no tokenizer, or it cannot be read, the code that needs it reports that */
    if (has_file(folder, "tokenizer.json", &exists) == 0 && exists && tt_tokenizer_load(folder, &tokenizer) == 0)
        rc = adopt_rows(cfg, model->dims.vocab_size, tokenizer);
    tt_tokenizer_free(tokenizer);
    tt_model_free(model);
    return rc;
}

/* Stores the dims that the flavor gave, so that run.yaml and the manifest contain all of them. */
int tt_job_resolve_model(struct tt_config *cfg, const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    const struct tt_rope *r = &d->rope;
    bool rope = !model->row->learned_positions, scales = rope && r->factor > 0.0;
    /* other kinds of RoPE scaling use other numbers, or none */
    bool llamas = scales && r->beta_fast == 0.0 && !r->linear && !r->dynamic && !tt_rope_is_long(r);
    const struct {
        enum tt_key key;
        double value;
        bool stays_null;
    } values[] = {
        {TT_KEY(model.dim), (double)d->dim, false},
        {TT_KEY(model.n_layers), (double)d->n_layers, false},
        {TT_KEY(model.n_heads), (double)d->n_heads, false},
        {TT_KEY(model.n_kv_heads), (double)d->n_kv_heads, false},
        {TT_KEY(model.head_dim), (double)d->head_dim, false},
        {TT_KEY(model.ffn_dim), (double)d->ffn_dim, false},
        {TT_KEY(model.vocab_size), (double)d->vocab_size, false},
        {TT_KEY(model.tie_embeddings), d->tied == 1, false},
        {TT_KEY(model.norm_eps), tt_hf_decimal(d->norm_eps), false},
        {TT_KEY(model.rope_theta), r->theta, !rope},
        {TT_KEY(model.rope_scaling.factor), r->factor > 0.0 ? r->factor : 1.0, !rope},
        {TT_KEY(model.rope_scaling.low_freq_factor), r->low_freq_factor, !llamas},
        {TT_KEY(model.rope_scaling.high_freq_factor), r->high_freq_factor, !llamas},
        {TT_KEY(model.rope_scaling.original_max), r->original_max, !scales || r->linear},
    };
    int rc = 0;

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (!values[i].stays_null)
            TT_TRY(tt_config_set_flavor(cfg, values[i].key, values[i].value));
out:
    return rc;
}
