/* SPDX-License-Identifier: MIT
 *
 * Sizes as values of a GGUF file, and back: a row for each architecture of llama.cpp. When a file is written, models
 * that llama.cpp would run but compute differently are refused.
 */
#include "core/models/gguf.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/hf.h"
#include "core/models/internal.h"
#include "core/models/model_json.h"

/* --- values that are not sizes: rows of keys, with the values that have no effect --- */

/* The first row that matches counts: that of the key, and of the architecture or of all (NULL). */
static const struct key_row {
    const char *key, *arch;
    enum { ANY, OFF, UNIT, TRUTH } harmless; /* ANY: it is read elsewhere, or changes nothing; UNIT: 0 or 1 */
} key_rows[] = {
    {"context_length", NULL, ANY},
    {"vocab_size", NULL, ANY},
    {"tensor_data_layout", NULL, ANY},
    {"pooling_type", NULL, ANY},
    {"rope.scale_linear", NULL, ANY},
    {"rope.scaling.type", NULL, ANY},
    {"rope.scaling.factor", NULL, ANY},
    {"rope.scaling.finetuned", NULL, ANY},
    {"rope.scaling.original_context_length", NULL, ANY},
    {"rope.scaling.attn_factor", NULL, ANY},
    {"rope.scaling.yarn_log_multiplier", "deepseek2", ANY},
    {"rope.scaling.yarn_ext_factor", NULL, ANY},
    {"rope.scaling.yarn_attn_factor", NULL, ANY},
    {"rope.scaling.yarn_beta_fast", NULL, ANY},
    {"rope.scaling.yarn_beta_slow", NULL, ANY},
    {"rope.scaling.alpha", NULL, OFF},
    {"attention.head_count_kv", NULL, ANY},
    {"attention.key_length", NULL, ANY},
    {"attention.value_length", NULL, ANY},
    {"attention.causal", NULL, TRUTH},
    {"attention.scale", NULL, OFF},
    {"attention.clamp_kqv", NULL, OFF},
    {"attention.max_alibi_bias", NULL, OFF},
    {"attention.sliding_window", NULL, OFF},
    {"attention.sliding_window_pattern", NULL, ANY}, /* check_windows */
    {"rope.freq_base_swa", "gemma3", ANY},
    {"rope.freq_base_swa", "olmo2", ANY},
    {"attention.temperature_scale", NULL, OFF},
    {"attn_logit_softcapping", NULL, OFF},
    {"final_logit_softcapping", NULL, OFF},
    {"expert_gating_func", NULL, ANY},
    {"expert_weights_norm", NULL, ANY},
    {"expert_group_count", "deepseek2", ANY},
    {"expert_group_count", NULL, UNIT},
    {"expert_group_used_count", "deepseek2", ANY},
    {"expert_group_used_count", NULL, UNIT},
    {"expert_count", NULL, OFF}, /* in models without experts */
    {"expert_used_count", NULL, OFF},
    {"expert_shared_count", NULL, OFF},
    {"expert_weights_scale", NULL, UNIT},
    {"leading_dense_block_count", NULL, OFF},
    {"nextn_predict_layers", NULL, OFF},
    {"logit_scale", NULL, UNIT},
    {"residual_scale", NULL, UNIT},
    {"embedding_scale", NULL, UNIT},
    {"use_parallel_residual", NULL, OFF}, /* where it is not a size */
};

static const struct key_row *find_key(const char *arch, const char *rest)
{
    for (size_t i = 0; i < sizeof key_rows / sizeof *key_rows; i++)
        if (strcmp(key_rows[i].key, rest) == 0 && (!key_rows[i].arch || strcmp(key_rows[i].arch, arch) == 0))
            return &key_rows[i];
    return NULL;
}

static int check_key_value(const struct tt_gguf *file, const struct tt_gguf_value *value, const struct key_row *row)
{
    const double none = 0.0;
    double real = 0.0;
    bool flag = false;
    int rc = 0;

    if (row->harmless == ANY)
        return 0;
    if (value->kind == TT_GGUF_BOOL) {
        TT_TRY(tt_gguf_bool(file, value->key, NULL, &flag));
        real = flag;
    } else {
        TT_TRY(tt_gguf_real(file, value->key, &none, &real));
    }
    if (real == (row->harmless == TRUTH ? 1.0 : 0.0) || (real == 1.0 && row->harmless == UNIT))
        return 0;
    rc = tt_fail(TT_EDATA, "'%s': '%s' is %g; titan supports this model only with %s", file->path, value->key, real,
                 row->harmless == TRUTH  ? "true"
                 : row->harmless == UNIT ? "1"
                                         : "0");
out:
    return rc;
}

static bool is_size(const struct tt_gguf_arch *arch, const char *rest)
{
    for (int i = 0; i < arch->n_sizes; i++)
        if (strcmp(arch->size[i].key, rest) == 0)
            return true;
    return false;
}

/*
 * Looks at the values of an architecture that are not sizes, so that none is left out in silence. TT_EDATA names one
 * that changes what the model computes and that titan does not support. A note names the keys that titan does not know.
 */
static int check_keys(const struct tt_gguf *file, const struct tt_gguf_arch *arch)
{
    char *prefix = tt_format("%s.", arch->name);
    struct tt_text unused = {0};
    int rc = 0;

    for (int i = 0; i < file->n_values; i++) {
        const struct tt_gguf_value *value = &file->value[i];
        const char *rest = value->key + strlen(prefix);
        const struct key_row *row;

        if (!tt_text_begins(value->key, prefix) || is_size(arch, rest))
            continue;
        row = find_key(arch->name, rest);
        if (row)
            TT_TRY(check_key_value(file, value, row));
        else
            tt_text_add(&unused, "%s%s", unused.size ? ", " : "", value->key);
    }
    if (unused.size)
        tt_note("%s: not used, since titan does not know them: %s", file->path, unused.text);
out:
    tt_text_release(&unused);
    tt_free(prefix);
    return rc;
}

/* --- sizes --- */

static const struct tt_gguf_arch *arch_of(const struct tt_model *model)
{
    const struct tt_model_row *row = model->row;
    const struct tt_layers *bare = &model->dims.unrotated;
    bool windows = model->dims.sliding_window > 0 || bare->every || bare->bits;

    for (int i = 0; i < row->n_archs; i++)
        if (row->archs[i].experts == (model->dims.moe.experts > 0) && !(row->archs[i].windowless && windows))
            return &row->archs[i];
    return NULL;
}

/* The elements of a head that RoPE turns. */
static int64_t rotated(const struct tt_model_dims *d)
{
    return d->rotary_dim ? d->rotary_dim : d->head_dim;
}

/* --- what llama.cpp does not compute --- */

static int fail(const struct tt_model *model, const char *what)
{
    return tt_fail(TT_EDATA, "llama.cpp cannot run this %s model: %s\nhelp: --format hf writes it for transformers",
                   model->row->name, what);
}

static bool is_yarn(const struct tt_rope *rope)
{
    return rope->factor != 0.0 && rope->beta_fast > 0.0;
}

static bool is_llama3(const struct tt_rope *rope)
{
    return rope->factor != 0.0 && !rope->linear && !rope->dynamic && !is_yarn(rope) && !tt_rope_is_long(rope);
}

static int check_rope(const struct tt_model *model, const struct tt_gguf_arch *arch)
{
    const struct tt_rope *rope = &model->dims.rope;

    if (model->row->learned_positions)
        return 0;
    if (tt_rope_is_long(rope) && !arch->long_factors)
        return fail(model, "it knows LongRoPE for Phi-3 only");
    if (is_llama3(rope) && !arch->rope_factors)
        return fail(model, "it knows Llama 3.1's scaling of RoPE (low_freq_factor, high_freq_factor) for Llama only");
    if (!is_yarn(rope))
        return 0;
    if (rope->beta_fast != 32.0 || rope->beta_slow != 1.0)
        return fail(model, "its YaRN works with beta_fast 32 and beta_slow 1 only");
    if (rope->attention_factor != 0.0)
        return fail(model, "its YaRN knows no attention_factor");
    if (arch->latents && (rope->mscale == 0.0 || rope->mscale != rope->mscale_all_dim))
        return fail(model, "its YaRN needs equal mscale and mscale_all_dim");
    if (rope->fractional)
        tt_note("llama.cpp rounds the limits of YaRN to whole pairs, which %s %s does not: its logits differ a little",
                model->row->name, model->flavor);
    return 0;
}

static int check_deepseek(const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    bool is_lite = d->n_layers == 26 || d->n_layers == 27 || (d->n_layers == 48 && d->vocab_size == 128256);

    if (d->moe.groups > 1 && d->moe.group_rule != TT_GROUP_TWO_BEST)
        return fail(model, "it chooses groups of experts by the two best of each, but this model by the best one");
    if (d->moe.shared == 0)
        return fail(model,
                    "its DeepSeek needs experts that see all tokens (n_shared_experts), but this model has none");
    if (is_lite && d->mla.q_rank)
        return fail(model, "its DeepSeek with so many layers has no latent of queries (q_lora_rank)");
    if (d->norm_eps != 1e-6F)
        tt_note("llama.cpp uses one epsilon, %g, for all norms; this model uses 1e-06 in those of latents",
                (double)d->norm_eps);
    return 0;
}

static int check_experts(const struct tt_model *model, const struct tt_gguf_arch *arch)
{
    const struct tt_moe *moe = &model->dims.moe;

    if (!moe->experts)
        return 0;
    if (moe->dense_set || (moe->dense_layers && !arch->latents))
        return fail(model, arch->latents ? "only its first layers can be without experts"
                                         : "all its layers have experts, but some layers of this model have none");
    if (moe->gates_as_scored != arch->gates_as_scored && !arch->latents)
        return fail(model, arch->gates_as_scored
                               ? "it does not divide the gates of a token by their sum, but this model "
                                 "does (norm_topk_prob)"
                               : "it divides the gates of a token by their sum (norm_topk_prob), which "
                                 "this model does not");
    if (moe->biased && !arch->latents)
        tt_note("the biases of experts (moe.expert_bias) are left out: llama.cpp's %s has none, so its routers choose "
                "experts by their scores alone",
                arch->name);
    return arch->latents ? check_deepseek(model) : 0;
}

static int check_biases(const struct tt_model *model, const struct tt_gguf_arch *arch)
{
    const struct tt_model_dims *d = &model->dims;
    bool qkv = d->qkv_bias || (model->row->decoder && model->row->decoder->qkv_bias);

    switch (arch->biases) {
    case TT_GGUF_ANY_BIAS:
        return 0;
    case TT_GGUF_NO_BIAS:
        return qkv || d->out_bias || d->mlp_bias ? fail(model, "its linear layers have no biases in llama.cpp") : 0;
    case TT_GGUF_QKV_BIAS:
        return d->out_bias || d->mlp_bias ? fail(model, "only q, k and v have biases in llama.cpp") : 0;
    case TT_GGUF_ALL_BIASES:
        return qkv && d->out_bias && d->mlp_bias ? 0 : fail(model, "all linear layers have biases in llama.cpp");
    }
    return 0;
}

/* Windows, and RoPE of the layers that have one or have none of it. */
static int check_layers(const struct tt_model *model, const struct tt_gguf_arch *arch)
{
    const struct tt_model_dims *d = &model->dims;
    int64_t period = arch->window_period, bare = arch->unrotated_every;

    for (int64_t l = 0; l < d->n_layers && period && d->sliding_window; l++)
        if (tt_model_is_windowed(d, l) != ((l + 1) % period != 0))
            return fail(model, "in llama.cpp the layers with a window are different ones");
    for (int64_t l = 0; l < d->n_layers; l++)
        if (tt_layers_have(&d->unrotated, l) != (bare && (l + 1) % bare == 0))
            return fail(model,
                        bare ? "in llama.cpp the layers without RoPE are different ones" : "all its layers have RoPE");
    if (!arch->local_rope)
        return d->local_theta != 0.0 && d->sliding_window
                   ? fail(model, "all its layers share one RoPE, but in this model those with a window have their own")
                   : 0;
    if (!d->sliding_window)
        return arch->needs_window ? fail(model, "in llama.cpp some of its layers have a window and their own RoPE") : 0;
    if (arch->local_theta == 0.0 && d->local_theta != d->rope.theta)
        return fail(model, "llama.cpp uses one RoPE base for the layers with a window and the others");
    if (arch->local_theta != 0.0 && d->local_theta != arch->local_theta)
        tt_note("older versions of llama.cpp rotate layers with a window by the base %g, whatever the file says; it is "
                "%g here",
                arch->local_theta, d->local_theta);
    return 0;
}

static int check_attention(const struct tt_model *model, const struct tt_gguf_arch *arch)
{
    const struct tt_model_dims *d = &model->dims;
    double plain = 1.0 / sqrt((double)d->head_dim), own = d->multipliers.attention;
    double scale = own != 0.0 ? own : plain, theirs = arch->score_scale ? arch->score_scale(d) : plain;

    if (d->rotary_dim && !arch->part_rotated)
        return fail(model, "it rotates whole heads, but in this model only a part of each head is rotated");
    if (d->parallel != arch->parallel && !is_size(arch, "use_parallel_residual"))
        return fail(model, arch->parallel ? "attention and feed-forward read the same x in llama.cpp"
                                          : "the feed-forward reads the sum with attention in llama.cpp");
    if (d->head_norms != (arch->plain_layers && d->n_layers > arch->plain_layers))
        return fail(model, d->head_norms ? "q and k have no norms in llama.cpp"
                                         : "with so many layers, q and k have norms in llama.cpp");
    if (arch->tanh_gelu && !d->tanh_gelu)
        tt_note("llama.cpp computes GELU in its tanh form, but %s %s in the exact one: its logits differ a little",
                model->row->name, model->flavor);
    if (arch->full_heads && d->n_heads * d->head_dim != d->dim)
        return fail(model, "in llama.cpp its heads together are as wide as the model");
    if (arch->equal_heads && d->n_kv_heads != d->n_heads)
        return fail(model, "in llama.cpp it has as many heads of keys as of queries");
    if (!arch->latents && !is_size(arch, "attention.scale") && fabs(scale - theirs) > 1e-6 * theirs)
        return fail(model, "it multiplies the scores of attention by another number");
    if (is_size(arch, "attn_logit_softcapping") ? !(d->score_cap > 0.0) || !(d->logit_cap > 0.0)
                                                : d->score_cap > 0.0 || d->logit_cap > 0.0)
        return fail(model,
                    "in llama.cpp every Gemma 2 has soft caps of scores and logits, and no other model has them");
    if (arch->tied && d->tied != 1)
        return fail(model, "in llama.cpp its output is the embedding");
    return 0;
}

/* --- writing --- */

/* Adds values of an architecture, whose name is the beginning of their keys. */
struct putting {
    const struct tt_gguf_arch *arch;
    struct tt_gguf_values *values;
};

static void put_u32(const struct putting *p, const char *rest, int64_t value)
{
    char *key = tt_format("%s.%s", p->arch->name, rest);

    tt_gguf_put_u32(p->values, key, value);
    tt_free(key);
}

static void put_f32(const struct putting *p, const char *rest, double value)
{
    char *key = tt_format("%s.%s", p->arch->name, rest);

    tt_gguf_put_f32(p->values, key, value);
    tt_free(key);
}

static void put_bool(const struct putting *p, const char *rest, bool value)
{
    char *key = tt_format("%s.%s", p->arch->name, rest);

    tt_gguf_put_bool(p->values, key, value);
    tt_free(key);
}

static void put_size(const struct putting *p, const struct tt_gguf_size *row, const struct tt_model_dims *dims)
{
    const void *at = (const char *)dims + row->at;

    if (row->kind == TT_GGUF_SIZE_INT)
        put_u32(p, row->key, *(const int64_t *)at);
    else if (row->kind == TT_GGUF_SIZE_BOOL)
        put_bool(p, row->key, *(const bool *)at);
    else if (row->kind == TT_GGUF_SIZE_DIVISOR)
        put_f32(p, row->key, *(const double *)at != 0.0 ? 1.0 / *(const double *)at : 1.0);
    else
        put_f32(p, row->key, row->kind == TT_GGUF_SIZE_FLOAT ? (double)*(const float *)at : *(const double *)at);
}

static void put_rope(const struct putting *p, const struct tt_rope *rope)
{
    char *key = tt_format("%s.rope.scaling.type", p->arch->name);
    const char *type = is_yarn(rope)                         ? "yarn"
                       : tt_rope_is_long(rope)               ? "longrope"
                       : rope->factor != 0.0 && rope->linear ? "linear"
                                                             : "none";
    double usual = 0.1 * log(rope->factor > 1.0 ? rope->factor : 1.0) + 1.0, scale = tt_rope_table_scale(rope);

    tt_gguf_put_string(p->values, key, type, strlen(type));
    tt_free(key);
    if (strcmp(type, "none") == 0)
        return;
    if (tt_rope_is_long(rope)) {
        put_u32(p, "rope.scaling.original_context_length", (int64_t)rope->original_max);
        put_f32(p, "rope.scaling.attn_factor", scale);
        return;
    }
    put_f32(p, "rope.scaling.factor", rope->factor);
    if (!is_yarn(rope))
        return;
    put_u32(p, "rope.scaling.original_context_length", (int64_t)rope->original_max);
    put_f32(p, "rope.scaling.yarn_beta_fast", rope->beta_fast);
    put_f32(p, "rope.scaling.yarn_beta_slow", rope->beta_slow);
    if (p->arch->latents)
        put_f32(p, "rope.scaling.yarn_log_multiplier", 0.1 * rope->mscale_all_dim);
    else if (scale != usual) /* which llama.cpp computes by itself */
        put_f32(p, "rope.scaling.attn_factor", scale / usual);
}

/* The values that are not in the rows of sizes. */
static void put_deepseek(const struct putting *p, const struct tt_model_dims *d)
{
    put_u32(p, "attention.head_count_kv", 1); /* llama.cpp attends on the latents */
    put_u32(p, "attention.key_length", d->mla.kv_rank + d->mla.rope_dim);
    put_u32(p, "attention.value_length", d->mla.kv_rank);
    put_u32(p, "expert_gating_func", d->moe.score == TT_SCORE_SIGMOID ? 2 : 1);
    put_bool(p, "expert_weights_norm", !d->moe.gates_as_scored);
    if (d->moe.groups > 1 && d->moe.kept_groups < d->moe.groups) {
        put_u32(p, "expert_group_count", d->moe.groups);
        put_u32(p, "expert_group_used_count", d->moe.kept_groups);
    }
}

/* The model as the file has it: adapters are merged into the weights. */
static void put_titan(const struct tt_model *model, const struct tt_gguf_arch *arch, struct tt_gguf_values *values)
{
    struct tt_model as_written = {.row = model->row, .flavor = model->flavor, .dims = model->dims};
    char *text;

    as_written.dims.lora = (struct tt_lora){0};
    as_written.dims.moe.biased = model->dims.moe.biased && arch->latents;
    as_written.dims.moe.balanced = false;
    text = tt_model_json_text(&as_written);
    tt_gguf_put_string(values, "titan.model", text, strlen(text));
    tt_free(text);
}

/*
 * The context that the file promises. llama.cpp has no sliding window in some models: within the window the results are
 * the same, so the context ends there.
 */
static int64_t context_of(const struct tt_model *model, const struct tt_gguf_arch *arch, int64_t context)
{
    const struct tt_model_dims *d = &model->dims;
    int64_t most = context > 0 ? context : d->max_positions > 0 ? d->max_positions : 2048;

    if (model->row->learned_positions)
        return d->max_positions;
    if (d->rope.dynamic && (double)most > d->rope.original_max) {
        tt_note(
            "llama.cpp has no dynamic scaling of RoPE: the file's context is %g, up to which there is none here either",
            d->rope.original_max);
        most = (int64_t)d->rope.original_max;
    }
    if (d->sliding_window && !arch->window_period && most > d->sliding_window) {
        tt_note("llama.cpp has no sliding window in %s: the file's context is %lld, the window, within which there is "
                "no difference",
                arch->name, (long long)d->sliding_window);
        most = d->sliding_window;
    }
    return most;
}

/* Changes the sizes that llama.cpp counts in another way. */
static void set_as_written(const struct tt_gguf_arch *arch, struct tt_model_dims *d)
{
    d->moe.route_scale = d->moe.route_scale > 0.0 ? d->moe.route_scale : 1.0;
    d->rotary_dim = rotated(d);
    if (arch->ffn_is_expert)
        d->ffn_dim = d->moe.ffn_dim;
}

int tt_gguf_put_model(const struct tt_model *model, int64_t context, struct tt_gguf_values *values)
{
    const struct tt_gguf_arch *arch = arch_of(model);
    struct tt_model_dims d = model->dims;
    const struct putting p = {arch, values};
    int rc = 0;

    if (!arch)
        return fail(model, "it does not know such a model");
    TT_TRY(check_rope(model, arch));
    TT_TRY(check_experts(model, arch));
    TT_TRY(check_biases(model, arch));
    TT_TRY(check_layers(model, arch));
    TT_TRY(check_attention(model, arch));
    tt_gguf_put_string(values, "general.architecture", arch->name, strlen(arch->name));
    put_u32(&p, "context_length", context_of(model, arch, context));
    put_u32(&p, "vocab_size", d.vocab_size);
    put_titan(model, arch, values);
    set_as_written(arch, &d);
    if (arch->needs_window && !d.sliding_window) /* it must have one: this one hides nothing */
        d.sliding_window = context_of(model, arch, context);
    for (int i = 0; i < arch->n_sizes; i++)
        put_size(&p, &arch->size[i], &d);
    if (!model->row->learned_positions)
        put_rope(&p, &d.rope);
    if (arch->local_rope && d.sliding_window)
        put_f32(&p, "rope.freq_base_swa", d.local_theta);
    if (arch->latents)
        put_deepseek(&p, &d);
out:
    return rc;
}

bool tt_gguf_copies_head(const struct tt_model *model)
{
    const struct tt_gguf_arch *arch = arch_of(model);

    return arch && arch->own_head && model->dims.tied == 1;
}

bool tt_gguf_has_rope_factors(const struct tt_model *model)
{
    const struct tt_gguf_arch *arch = arch_of(model);

    return arch && arch->rope_factors && is_llama3(&model->dims.rope);
}

static const char long_factors[] = "rope_factors_long.weight", short_factors[] = "rope_factors_short.weight";

bool tt_gguf_reads_rope_factors(const struct tt_model *model, const char *name)
{
    const struct tt_gguf_arch *arch = arch_of(model);

    return arch && ((arch->rope_factors && strcmp(name, "rope_freqs.weight") == 0) ||
                    (arch->long_factors && (strcmp(name, long_factors) == 0 || strcmp(name, short_factors) == 0)));
}

float tt_gguf_rope_factor(const struct tt_model *model, int64_t i)
{
    struct tt_rope plain = model->dims.rope;

    plain.factor = 0.0;
    return (float)(tt_rope_frequency(&plain, rotated(&model->dims), i) /
                   tt_rope_frequency(&model->dims.rope, rotated(&model->dims), i));
}

/* --- reading --- */

/* Reads values of an architecture, whose name is the beginning of their keys. */
struct reading {
    const struct tt_gguf *file;
    const struct tt_model_row *row;
    const struct tt_gguf_arch *arch;
};

/* Whether a family before `model` has an architecture of that name. */
static bool is_repeated(int model, const char *name)
{
    for (int m = 0; m < model; m++)
        for (int i = 0; i < tt_model_rows[m]->n_archs; i++)
            if (strcmp(tt_model_rows[m]->archs[i].name, name) == 0)
                return true;
    return false;
}

/* Finds the architecture of a file by its name and by whether the file has experts; lists all names in `known`. */
static void look_up(struct reading *r, const char *name, bool experts, struct tt_text *known)
{
    for (int m = 0; m < tt_model_n_rows; m++) {
        for (int i = 0; i < tt_model_rows[m]->n_archs; i++) {
            const struct tt_gguf_arch *arch = &tt_model_rows[m]->archs[i];

            if (!is_repeated(m, arch->name))
                tt_text_add(known, "%s%s", known->text ? ", " : "", arch->name);
            if (r->arch || !name || strcmp(arch->name, name) != 0 || (arch->experts != experts && !arch->latents))
                continue;
            r->row = tt_model_rows[m];
            r->arch = arch;
        }
    }
}

static int find_arch(const struct tt_gguf *file, struct reading *ret_reading)
{
    const int64_t none = 0;
    struct tt_text known = {0};
    char *name = NULL, *key = NULL;
    int64_t experts = 0, parts = 0;
    int rc = 0;

    *ret_reading = (struct reading){.file = file};
    TT_TRY(tt_gguf_int(file, "split.count", &none, &parts));
    if (parts > 1)
        return tt_fail(TT_EDATA,
                       "'%s' is one of %lld files that are a model together\nhelp: join them: llama-gguf-split "
                       "--merge FIRST OUT",
                       file->path, (long long)parts);
    TT_TRY(tt_gguf_string(file, "general.architecture", &name));
    key = tt_format("%s.expert_count", name ? name : "");
    TT_TRY(tt_gguf_int(file, key, &none, &experts));
    look_up(ret_reading, name, experts > 0, &known);
    if (!ret_reading->arch)
        rc = tt_fail(TT_EDATA, "'%s': the architecture '%s' is not supported\nhelp: supported are %s", file->path,
                     name ? name : "(none)", known.text);
out:
    tt_text_release(&known);
    tt_free(name);
    tt_free(key);
    return rc;
}

int tt_gguf_model_name(const struct tt_gguf *file, const char **ret_name)
{
    struct reading r;
    int rc = find_arch(file, &r);

    *ret_name = rc == 0 ? r.row->name : NULL;
    return rc;
}

static int get_int(const struct reading *r, const char *rest, int64_t absent, int64_t *ret_value)
{
    char *key = tt_format("%s.%s", r->arch->name, rest);
    int rc = tt_gguf_int(r->file, key, &absent, ret_value);

    tt_free(key);
    return rc;
}

static int get_real(const struct reading *r, const char *rest, double absent, double *ret_value)
{
    char *key = tt_format("%s.%s", r->arch->name, rest);
    int rc = tt_gguf_real(r->file, key, &absent, ret_value);

    tt_free(key);
    return rc;
}

/* The rows that have one member must agree, as head_dim's do. */
static int get_size(const struct reading *r, const struct tt_gguf_size *row, struct tt_model_dims *dims)
{
    char *at = (char *)dims + row->at, *key = tt_format("%s.%s", r->arch->name, row->key);
    const int64_t no_int = 0;
    const double no_real = 0.0;
    const bool no_flag = false;
    int64_t count = 0;
    double real = 0.0;
    int rc = 0;

    if (row->kind == TT_GGUF_SIZE_INT) {
        int64_t *to = (int64_t *)(void *)at;

        TT_TRY(tt_gguf_int(r->file, key, row->may_lack ? &no_int : NULL, &count));
        if (*to && count && *to != count)
            rc = tt_fail(TT_EDATA, "'%s': '%s' is %lld, and %lld is wanted for this model", r->file->path, key,
                         (long long)count, (long long)*to);
        *to = count ? count : *to;
        goto out;
    }
    if (row->kind == TT_GGUF_SIZE_BOOL) {
        TT_TRY(tt_gguf_bool(r->file, key, row->may_lack ? &no_flag : NULL, (bool *)at));
        goto out;
    }
    TT_TRY(tt_gguf_real(r->file, key, row->may_lack ? &no_real : NULL, &real));
    real = (double)(float)real == real ? tt_hf_decimal((float)real) : real; /* 0.22, not the float nearest to it */
    if (row->kind == TT_GGUF_SIZE_DIVISOR)
        *(double *)(void *)at = real != 0.0 ? 1.0 / real : 1.0;
    else if (row->kind == TT_GGUF_SIZE_REAL)
        *(double *)(void *)at = real;
    else
        *(float *)(void *)at = (float)real;
out:
    tt_free(key);
    return rc;
}

/* llama.cpp stores Llama 3.1's scaling as a tensor of factors. The factors of the published models are known. */
static int read_factors(const struct reading *r, struct tt_model_dims *d)
{
    static const double published[] = {8.0, 32.0, 16.0};
    const struct tt_gguf_tensor *t = tt_gguf_find_tensor(r->file, "rope_freqs.weight");
    struct tt_model model = {.dims = *d};

    if (!t)
        return 0;
    if (d->rope.factor != 0.0 && d->rope.factor != 1.0)
        return tt_fail(TT_EDATA,
                       "'%s' has factors of RoPE, 'rope_freqs.weight', and scales it by %g too, which titan does "
                       "not do",
                       r->file->path, d->rope.factor);
    if (t->type->type != TT_GGML_F32 || t->ndim != 1 || t->shape[0] != rotated(d) / 2)
        return tt_fail(TT_EDATA, "'%s' is damaged: tensor '%s' is not %lld floats", r->file->path, t->name,
                       (long long)rotated(d) / 2);
    for (size_t k = 0; k < sizeof published / sizeof *published; k++) {
        const struct tt_gguf_value factors = {.data = r->file->bytes + t->begin};
        bool same = true;

        model.dims.rope = (struct tt_rope){.theta = d->rope.theta,
                                           .factor = published[k],
                                           .low_freq_factor = 1.0,
                                           .high_freq_factor = 4.0,
                                           .original_max = 8192.0};
        for (int64_t i = 0; i < t->shape[0] && same; i++)
            same = fabsf(tt_gguf_f32_at(&factors, i) / tt_gguf_rope_factor(&model, i) - 1.0F) < 1e-4F;
        if (!same)
            continue;
        d->rope = model.dims.rope;
        return 0;
    }
    return tt_fail(
        TT_EDATA,
        "'%s': the factors of RoPE in 'rope_freqs.weight' are not those of Llama 3.1, 3.2 or 3.3, and a file "
        "of llama.cpp's does not say from which numbers they were made\n"
        "help: take the model in Hugging Face's format",
        r->file->path);
}

/* A tensor of LongRoPE's factors; ret_list stays 0 if there is none. */
static int read_list(const struct reading *r, const char *name, int64_t pairs, float *ret_list)
{
    const struct tt_gguf_tensor *t = tt_gguf_find_tensor(r->file, name);
    struct tt_gguf_value factors;

    if (!t)
        return 0;
    if (t->type->type != TT_GGML_F32 || t->ndim != 1 || t->shape[0] != pairs || pairs > TT_ROPE_PAIRS)
        return tt_fail(TT_EDATA, "'%s' is damaged: tensor '%s' is not %lld floats (at most %d)", r->file->path, name,
                       (long long)pairs, TT_ROPE_PAIRS);
    factors = (struct tt_gguf_value){.data = r->file->bytes + t->begin};
    for (int64_t i = 0; i < pairs; i++)
        ret_list[i] = tt_gguf_f32_at(&factors, i);
    return 0;
}

/* LongRoPE: without its tensors there is no scaling. */
static int read_long(const struct reading *r, struct tt_model_dims *d)
{
    double scale = 0.0, follows;
    int64_t original = 0;
    int rc = 0;

    TT_TRY(read_list(r, short_factors, rotated(d) / 2, d->rope.short_factor));
    TT_TRY(read_list(r, long_factors, rotated(d) / 2, d->rope.long_factor));
    if (!tt_rope_is_long(&d->rope) && d->rope.long_factor[0] == 0.0F)
        return 0;
    TT_TRY(get_int(r, "rope.scaling.original_context_length", d->max_positions, &original));
    d->rope.original_max = (double)original;
    d->rope.factor = original > 0 ? fmax((double)d->max_positions / (double)original, 1.0) : 0.0;
    follows = tt_rope_table_scale(&d->rope);
    TT_TRY(get_real(r, "rope.scaling.attn_factor", follows, &scale));
    d->rope.attention_factor = fabs(scale - follows) > 1e-6 * follows ? scale : 0.0;
out:
    return rc;
}

/* Numbers that titan computes by itself: a file with a different number contains a different model. */
static int must_be(const struct reading *r, const char *rest, double wanted)
{
    double value = wanted;
    int rc = get_real(r, rest, wanted, &value);

    if (rc == 0 && !(fabs(value - wanted) <= 1e-4 * fabs(wanted)))
        rc = tt_fail(TT_EDATA, "'%s': '%s.%s' is %g; only %g is supported", r->file->path, r->arch->name, rest, value,
                     wanted);
    return rc;
}

static int read_yarn(const struct reading *r, struct tt_model_dims *d)
{
    double log_scale = 0.0;
    int64_t original = 0;
    int rc = 0;

    TT_TRY(get_int(r, "rope.scaling.original_context_length", d->max_positions, &original));
    TT_TRY(get_real(r, "rope.scaling.yarn_beta_fast", 32.0, &d->rope.beta_fast));
    TT_TRY(get_real(r, "rope.scaling.yarn_beta_slow", 1.0, &d->rope.beta_slow));
    if (r->arch->latents)
        TT_TRY(get_real(r, "rope.scaling.yarn_log_multiplier", 0.0, &log_scale));
    d->rope.original_max = (double)original;
    d->rope.mscale = d->rope.mscale_all_dim = round(log_scale * 1e6) / 1e5; /* a tenth of it is stored */
    d->rope.fractional = r->arch->exact_yarn;
    TT_TRY(must_be(r, "rope.scaling.attn_factor", 1.0));
    TT_TRY(must_be(r, "rope.scaling.yarn_ext_factor", 1.0));
    TT_TRY(must_be(r, "rope.scaling.yarn_attn_factor", tt_rope_table_scale(&d->rope)));
    if (!(d->rope.beta_fast > 0.0))
        rc = tt_fail(TT_EDATA, "'%s': '%s.rope.scaling.yarn_beta_fast' is %g; it must be positive", r->file->path,
                     r->arch->name, d->rope.beta_fast);
out:
    return rc;
}

static int read_rope(const struct reading *r, struct tt_model_dims *d)
{
    char *key = tt_format("%s.rope.scaling.type", r->arch->name), *type = NULL;
    double older = 0.0;
    int rc = 0;

    d->rope.theta = d->rope.theta > 0.0 ? d->rope.theta : 10000.0;
    TT_TRY(tt_gguf_string(r->file, key, &type));
    TT_TRY(get_real(r, "rope.scale_linear", 0.0, &older));
    TT_TRY(get_real(r, "rope.scaling.factor", older, &d->rope.factor));
    if (r->arch->long_factors && (!type || strcmp(type, "longrope") == 0)) {
        d->rope.factor = 0.0;
        TT_TRY(read_long(r, d));
        goto out;
    }
    if (!type || strcmp(type, "none") == 0)
        d->rope.factor = type ? 0.0 : d->rope.factor;
    else if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        rc = tt_fail(TT_EDATA, "'%s': RoPE scaling '%s' is not supported; linear and yarn are", r->file->path, type);
    TT_TRY(rc);
    d->rope.linear = d->rope.factor != 0.0 && (!type || strcmp(type, "linear") == 0);
    if (d->rope.factor != 0.0 && !d->rope.linear)
        TT_TRY(read_yarn(r, d));
    if (rc == 0 && r->arch->rope_factors)
        rc = read_factors(r, d);
out:
    tt_free(key);
    tt_free(type);
    return rc;
}

static int read_deepseek(const struct reading *r, struct tt_model_dims *d)
{
    int64_t score = 0;
    bool normalized = false;
    int rc = 0;

    TT_TRY(get_int(r, "expert_gating_func", 1, &score));
    if (score != 1 && score != 2)
        return tt_fail(TT_EDATA, "'%s': experts are chosen in a way that titan does not know (%lld)", r->file->path,
                       (long long)score);
    TT_TRY(tt_gguf_bool(r->file, "deepseek2.expert_weights_norm", &normalized, &normalized));
    TT_TRY(get_int(r, "expert_group_count", 0, &d->moe.groups));
    TT_TRY(get_int(r, "expert_group_used_count", 0, &d->moe.kept_groups));
    if (d->moe.groups <= 1)
        d->moe.groups = d->moe.kept_groups = 0;
    else
        d->moe.group_rule = TT_GROUP_TWO_BEST;
    d->moe.score = score == 2 ? TT_SCORE_SIGMOID : TT_SCORE_SOFTMAX;
    d->moe.gates_as_scored = !normalized;
    d->moe.biased = d->moe.experts && d->moe.dense_layers < TT_MOST_LAYERS;
    for (int64_t l = d->moe.dense_layers; d->moe.biased && l < d->moe.dense_layers + 1; l++) {
        char *name = tt_format("blk.%lld.exp_probs_b.bias", (long long)l);

        d->moe.biased = tt_gguf_find_tensor(r->file, name) != NULL;
        tt_free(name);
    }
    d->n_kv_heads = d->n_heads;
out:
    return rc;
}

/* The layers with a window must be those that llama.cpp takes by itself, if the file names them: a period or a list. */
static int check_windows(const struct reading *r, const struct tt_model_dims *d)
{
    char *key = tt_format("%s.attention.sliding_window_pattern", r->arch->name);
    const struct tt_gguf_value *value = tt_gguf_find(r->file, key);
    int64_t period = r->arch->window_period, found = period;
    bool same = true;
    int rc = 0;

    if (value && value->kind == TT_GGUF_ARRAY && value->item == TT_GGUF_BOOL) {
        for (int64_t l = 0; l < value->n && same; l++)
            same = (value->data[l] != 0) == (period && (l + 1) % period != 0);
        same = same && value->n == d->n_layers;
    } else if (value) {
        TT_TRY(tt_gguf_int(r->file, key, &period, &found));
        same = found == period;
    }
    if (!same)
        rc = tt_fail(TT_EDATA, "'%s': '%s' is not supported: only %s", r->file->path, key,
                     period ? "a window in all layers but every n-th is, with llama.cpp's n" : "no windows are");
out:
    tt_free(key);
    return rc;
}

/* Sizes that follow from the architecture, or from the tensors that exist. */
static int settle(const struct reading *r, struct tt_model_dims *d)
{
    const struct tt_gguf_arch *arch = r->arch;
    double theta = arch->local_theta != 0.0 ? arch->local_theta : d->rope.theta;
    int rc = 0;

    if (r->row->decoder && !arch->latents) {
        d->qkv_bias = !r->row->decoder->qkv_bias && (tt_gguf_find_tensor(r->file, "blk.0.attn_q.bias") ||
                                                     tt_gguf_find_tensor(r->file, "blk.0.attn_qkv.bias"));
        d->out_bias = tt_gguf_find_tensor(r->file, "blk.0.attn_output.bias") != NULL;
        d->mlp_bias = tt_gguf_find_tensor(r->file, "blk.0.ffn_down.bias") != NULL;
    }
    d->unrotated.every = arch->unrotated_every;
    d->tied = arch->tied ? 1 : d->tied;
    d->parallel = arch->parallel || d->parallel;
    d->tanh_gelu = arch->tanh_gelu;
    if (!arch->latents)
        d->moe.gates_as_scored = arch->gates_as_scored;
    if (arch->score_scale)
        d->multipliers.attention = arch->score_scale(d);
    TT_TRY(check_windows(r, d));
    if (!d->sliding_window)
        return 0;
    d->window_from = arch->window_period == 0;
    d->full.every = arch->window_period > 2 ? arch->window_period : 0;
    if (arch->local_rope)
        TT_TRY(get_real(r, "rope.freq_base_swa", theta, &d->local_theta));
out:
    return rc;
}

/* Whether a file has the sizes of a model: llama.cpp's tools, for instance, can change them. */
static bool agrees(const struct reading *r, const struct tt_model_dims *own)
{
    struct tt_model_dims wanted = *own, found;
    bool same = true;

    set_as_written(r->arch, &wanted);
    found = wanted;
    for (int i = 0; i < r->arch->n_sizes && same; i++) {
        const struct tt_gguf_size *row = &r->arch->size[i];
        const char *a = (const char *)&wanted + row->at, *b = (const char *)&found + row->at;

        same = get_size(r, row, &found) == 0; /* which compares integers */
        if (row->kind == TT_GGUF_SIZE_BOOL)
            same = same && *(const bool *)a == *(const bool *)b;
        else if (row->kind == TT_GGUF_SIZE_FLOAT)
            same = same && *(const float *)(const void *)a == *(const float *)(const void *)b;
        else if (row->kind == TT_GGUF_SIZE_DIVISOR)
            same = same &&
                   (float)(1.0 / *(const double *)(const void *)a) == (float)(1.0 / *(const double *)(const void *)b);
        else if (row->kind == TT_GGUF_SIZE_REAL)
            same = same && (float)*(const double *)(const void *)a == (float)*(const double *)(const void *)b;
    }
    return same;
}

/* The model as a file that titan wrote describes it. */
static int read_titan(const struct reading *r, struct tt_model_dims *ret_dims, bool *ret_is)
{
    char *text = NULL, *where = tt_format("%s: titan.model", r->file->path);
    struct tt_model *model = NULL;
    int rc = 0;

    TT_TRY(tt_gguf_string(r->file, "titan.model", &text));
    *ret_is = text != NULL;
    if (!text)
        goto out;
    TT_TRY(tt_model_json_parse(text, strlen(text), where, &model));
    if (arch_of(model) != r->arch) {
        rc = tt_fail(TT_EDATA, "%s: it is a %s, but the file says '%s'", where, model->row->name, r->arch->name);
    } else if (!agrees(r, &model->dims)) {
        tt_note("'%s': another program has changed its values, so those of llama.cpp count, not titan.model",
                r->file->path);
        *ret_is = false;
    } else {
        *ret_dims = model->dims;
    }
out:
    tt_model_free(model);
    tt_free(text);
    tt_free(where);
    return rc;
}

/* The elements of a head that are rotated: all, or in some architectures the first ones. */
static int settle_rotated(const struct reading *r, struct tt_model_dims *d)
{
    int64_t found = d->rotary_dim;

    d->rotary_dim = found == d->head_dim ? 0 : found;
    return d->rotary_dim && !r->arch->part_rotated
               ? tt_fail(TT_EDATA, "'%s': '%s.rope.dimension_count' is %lld, and %lld is wanted for this model",
                         r->file->path, r->arch->name, (long long)found, (long long)d->head_dim)
               : 0;
}

int tt_gguf_read_dims(const struct tt_gguf *file, struct tt_model_dims *ret_dims)
{
    const struct tt_gguf_tensor *embedding = tt_gguf_find_tensor(file, "token_embd.weight");
    struct tt_model_dims d = {.tied = !tt_gguf_find_tensor(file, "output.weight")};
    struct reading r;
    bool is_own = false;
    int rc = 0;

    TT_TRY(find_arch(file, &r));
    TT_TRY(read_titan(&r, ret_dims, &is_own));
    if (is_own)
        goto out;
    TT_TRY(check_keys(file, r.arch));
    if (!embedding || embedding->ndim != 2)
        return tt_fail(TT_EDATA, "'%s' has no tensor 'token_embd.weight' of two dimensions", file->path);
    d.vocab_size = embedding->shape[0];
    for (int i = 0; i < r.arch->n_sizes; i++)
        TT_TRY(get_size(&r, &r.arch->size[i], &d));
    TT_TRY(get_int(&r, "context_length", 0, &d.max_positions));
    if (!d.head_dim && d.n_heads > 0)
        d.head_dim = d.dim / d.n_heads;
    TT_TRY(settle_rotated(&r, &d));
    if (d.moe.experts && !d.moe.ffn_dim)
        d.moe.ffn_dim = d.ffn_dim;
    if (!d.ffn_dim)
        d.ffn_dim = r.row->learned_positions ? 4 * d.dim : d.moe.ffn_dim;
    if (r.arch->latents)
        TT_TRY(read_deepseek(&r, &d));
    if (!r.row->learned_positions)
        TT_TRY(read_rope(&r, &d));
    TT_TRY(settle(&r, &d));
    *ret_dims = d;
out:
    return rc;
}
