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
#include "parallel/layout/init.h"
#include "parallel/layout/units.h"
#include "trainer/job/adapter.h"
#include "trainer/job/job.h"

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

bool tt_job_is_default(const struct tt_config *cfg, enum tt_key key)
{
    const char *origin = tt_config_origin(cfg, key);

    return strcmp(origin, "default") == 0 || strncmp(origin, "builtin:", strlen("builtin:")) == 0;
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
        return tt_job_adopt_adapter(cfg);
    if (cfg->lora.base_dtype != TT_PACKING_NONE && !cfg->lora.rank)
        return tt_fail_key(TT_EUSAGE, TT_KEY(lora.base_dtype),
                           "only frozen weights can be packed, and '%s' is no folder of adapters, so with %s 0 all "
                           "weights are trained\nhelp: set %s, or %s to default",
                           path, TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.base_dtype));
    if (cfg->lora.dora && !cfg->lora.rank)
        return tt_fail_key(TT_EUSAGE, TT_KEY(lora.dora),
                           "magnitudes (DoRA) are of weights with adapters, and '%s' is no folder of adapters\n"
                           "help: set %s, or %s to false",
                           path, TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.dora));
    if (cfg->lora.dropout > 0.0 && !cfg->lora.rank)
        return tt_fail_key(TT_EUSAGE, TT_KEY(lora.dropout),
                           "dropout is for adapters, and '%s' is no folder of adapters\nhelp: set %s, or %s to 0", path,
                           TT_KEY_NAME(lora.rank), TT_KEY_NAME(lora.dropout));
    TT_TRY(is_hf_folder(path, &is_hf));
    if (!is_hf)
        goto out;
    TT_TRY(has_file(path, "tokenizer.json", &has_tokenizer));
    if (assets)
        TT_TRY(has_file(assets, "config.json", &has_config));
    if (tt_job_is_default(cfg, TT_KEY(checkpoint.initial_load_in_hf)))
        TT_TRY(tt_config_adopt(cfg, TT_KEY(checkpoint.initial_load_in_hf), "true", origin));
    if (has_config && tt_job_is_default(cfg, TT_KEY(model.flavor)))
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

    if (strcmp(cfg->model.flavor, "hf") != 0 || !folder || !tt_job_is_default(cfg, TT_KEY(model.name)))
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

int tt_job_make_model(const struct tt_config *cfg, struct tt_model **ret_model)
{
    struct tt_model_dims over = tt_job_model_overrides(cfg);
    struct tt_model *model = NULL;
    int rc = 0;

    TT_TRY(tt_model_new(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path, &model));
    TT_TRY(tt_init_rules_apply(model, cfg->model.init_std, cfg->model.init_rules));
    TT_TRY(tt_param_groups_apply(model, cfg->optimizer.no_decay, cfg->optimizer.lr_factors));
    tt_param_groups_set_optim(model, (enum tt_optim_choice)cfg->optimizer.name);
    *ret_model = model;
    model = NULL;
out:
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
