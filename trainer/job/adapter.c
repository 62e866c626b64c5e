/* SPDX-License-Identifier: MIT
 *
 * Adapters in PEFT's format as the beginning of a run: what adapter_config.json says becomes the keys lora.*.
 */
#include "trainer/job/adapter.h"

#include <math.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/lora.h"
#include "core/os/file.h"
#include "trainer/job/job.h"

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
            return tt_fail(TT_EDATA, "'%s': %s is no list of %s", file, key, names ? "names" : "numbers of layers");
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
                       "'%s' has layers_to_transform, but its target_modules is no list\n"
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

/* Sets a key that the user did not set. Returns whether the user did. */
static int adopt(struct tt_config *cfg, enum tt_key key, const char *value, const char *file, bool *ret_is_set)
{
    *ret_is_set = !tt_job_is_default(cfg, key);
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
                           "the adapters in '%s' belong to '%s', which is no folder here\n"
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

int tt_job_adopt_adapter(struct tt_config *cfg)
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

const char *tt_job_initial_weights(const struct tt_config *cfg)
{
    const char *path = cfg->checkpoint.initial_load_path;

    if (path && tt_job_is_adapter(path))
        return cfg->model.hf_assets_path;
    return cfg->checkpoint.initial_load_in_hf && !path ? cfg->model.hf_assets_path : path;
}
