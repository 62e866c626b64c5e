/* SPDX-License-Identifier: MIT
 *
 * The sizes of a model as a table: by it, titan writes and reads the model of a checkpoint, and replaces sizes.
 */
#include "core/models/model_json.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/internal.h"
#include "core/models/lora.h"
#include "core/os/file.h"

/* norm_eps is a float, tied an int (FLAG), a WORD an enum, a LIST TT_ROPE_PAIRS floats that end at the first 0; the
 * others are int64_t, bool or double. */
enum kind { INT, FLAG, BOOL, FLOAT, REAL, WORD, LIST };

/* Whether a member is in the file: always; always, but files of older versions lack it (0); or only if it is not 0. */
enum presence { NEEDED, WRITTEN, IF_SET };

/*
 * The sizes of a model, each with its place in the file: "object.key", or a key of the file itself. An object exists if
 * its first member is not 0.
 */
static const struct field {
    const char *object, *key;
    enum kind kind;
    enum presence presence;
    size_t at;                /* in struct tt_model_dims */
    const char *const *words; /* of a WORD, ended by NULL */
} fields[] = {
#define F(object, key, kind, presence, member) \
    {object, key, kind, presence, offsetof(struct tt_model_dims, member), NULL},
#define W(object, key, member, ...) \
    {object, key, WORD, WRITTEN, offsetof(struct tt_model_dims, member), (const char *const[]){__VA_ARGS__, NULL}},
    /* clang-format off */
    F(NULL, "dim", INT, NEEDED, dim)
    F(NULL, "n_layers", INT, NEEDED, n_layers)
    F(NULL, "n_heads", INT, NEEDED, n_heads)
    F(NULL, "n_kv_heads", INT, NEEDED, n_kv_heads)
    F(NULL, "head_dim", INT, NEEDED, head_dim)
    F(NULL, "ffn_dim", INT, NEEDED, ffn_dim)
    F(NULL, "vocab_size", INT, NEEDED, vocab_size)
    F(NULL, "norm_eps", FLOAT, NEEDED, norm_eps)
    F(NULL, "max_position_embeddings", INT, WRITTEN, max_positions)
    F(NULL, "rope_theta", REAL, NEEDED, rope.theta)
    F(NULL, "tie_embeddings", FLAG, NEEDED, tied)
    F("rope_scaling", "factor", REAL, NEEDED, rope.factor)
    F("rope_scaling", "low_freq_factor", REAL, NEEDED, rope.low_freq_factor)
    F("rope_scaling", "high_freq_factor", REAL, NEEDED, rope.high_freq_factor)
    F("rope_scaling", "original_max", REAL, NEEDED, rope.original_max)
    F("rope_scaling", "beta_fast", REAL, WRITTEN, rope.beta_fast)
    F("rope_scaling", "beta_slow", REAL, WRITTEN, rope.beta_slow)
    F("rope_scaling", "mscale", REAL, WRITTEN, rope.mscale)
    F("rope_scaling", "mscale_all_dim", REAL, WRITTEN, rope.mscale_all_dim)
    F("rope_scaling", "attention_factor", REAL, IF_SET, rope.attention_factor)
    F("rope_scaling", "linear", BOOL, IF_SET, rope.linear)
    F("rope_scaling", "dynamic", BOOL, IF_SET, rope.dynamic)
    F("rope_scaling", "fractional", BOOL, IF_SET, rope.fractional)
    F("rope_scaling", "short_factor", LIST, IF_SET, rope.short_factor)
    F("rope_scaling", "long_factor", LIST, IF_SET, rope.long_factor)
    F(NULL, "sliding_window", INT, IF_SET, sliding_window)
    F(NULL, "window_from", INT, IF_SET, window_from)
    F(NULL, "full_every", INT, IF_SET, full.every)
    F(NULL, "full_layers", INT, IF_SET, full.bits)
    F(NULL, "unrotated_every", INT, IF_SET, unrotated.every)
    F(NULL, "unrotated_layers", INT, IF_SET, unrotated.bits)
    F(NULL, "rotary_dim", INT, IF_SET, rotary_dim)
    F(NULL, "local_theta", REAL, IF_SET, local_theta)
    F(NULL, "qkv_bias", BOOL, IF_SET, qkv_bias)
    F(NULL, "out_bias", BOOL, IF_SET, out_bias)
    F(NULL, "mlp_bias", BOOL, IF_SET, mlp_bias)
    F(NULL, "parallel", BOOL, IF_SET, parallel)
    F(NULL, "head_norms", BOOL, IF_SET, head_norms)
    F(NULL, "tanh_gelu", BOOL, IF_SET, tanh_gelu)
    F(NULL, "embedding_multiplier", REAL, IF_SET, multipliers.embedding)
    F(NULL, "residual_multiplier", REAL, IF_SET, multipliers.residual)
    F(NULL, "attention_multiplier", REAL, IF_SET, multipliers.attention)
    F(NULL, "logits_multiplier", REAL, IF_SET, multipliers.logits)
    F(NULL, "score_cap", REAL, IF_SET, score_cap)
    F(NULL, "logit_cap", REAL, IF_SET, logit_cap)
    F("mla", "kv_rank", INT, NEEDED, mla.kv_rank)
    F("mla", "q_rank", INT, WRITTEN, mla.q_rank)
    F("mla", "rope_dim", INT, NEEDED, mla.rope_dim)
    F("mla", "value_dim", INT, NEEDED, mla.value_dim)
    F("moe", "experts", INT, NEEDED, moe.experts)
    F("moe", "top_k", INT, NEEDED, moe.top_k)
    F("moe", "ffn_dim", INT, NEEDED, moe.ffn_dim)
    F("moe", "shared", INT, WRITTEN, moe.shared)
    F("moe", "dense_layers", INT, NEEDED, moe.dense_layers)
    F("moe", "gates_as_scored", BOOL, NEEDED, moe.gates_as_scored)
    W("moe", "score", moe.score, [TT_SCORE_SOFTMAX] = "softmax", [TT_SCORE_SIGMOID] = "sigmoid")
    F("moe", "groups", INT, WRITTEN, moe.groups)
    F("moe", "kept_groups", INT, WRITTEN, moe.kept_groups)
    W("moe", "group_rule", moe.group_rule, [TT_GROUP_BEST] = "best", [TT_GROUP_TWO_BEST] = "two_best")
    F("moe", "route_scale", REAL, WRITTEN, moe.route_scale)
    F("moe", "biased", BOOL, WRITTEN, moe.biased)
    F("moe", "dense_set", INT, IF_SET, moe.dense_set)
    F("moe", "shared_dim", INT, IF_SET, moe.shared_dim)
    F("lora", "rank", INT, NEEDED, lora.rank)
    F("lora", "alpha", REAL, NEEDED, lora.alpha)
    F("lora", "rslora", BOOL, IF_SET, lora.rslora)
    F("lora", "dora", BOOL, IF_SET, lora.dora)
    F("lora", "dropout", REAL, IF_SET, lora.dropout)
/* clang-format on */
#undef F
#undef W
};

enum { N_FIELDS = sizeof fields / sizeof *fields };

/* The size of a member in memory. */
static size_t bytes_of(enum kind kind)
{
    static const size_t bytes[] = {[INT] = sizeof(int64_t),
                                   [FLAG] = sizeof(int),
                                   [BOOL] = sizeof(bool),
                                   [FLOAT] = sizeof(float),
                                   [REAL] = sizeof(double),
                                   [WORD] = sizeof(unsigned),
                                   [LIST] = TT_ROPE_PAIRS * sizeof(float)};

    return bytes[kind];
}

static bool is_set(const struct tt_model_dims *dims, const struct field *field)
{
    const void *at = (const char *)dims + field->at;

    switch (field->kind) {
    case INT:
        return *(const int64_t *)at != 0;
    case FLAG:
        return *(const int *)at >= 0;
    case BOOL:
        return *(const bool *)at;
    case FLOAT:
    case LIST:
        return *(const float *)at != 0.0F;
    case REAL:
        return *(const double *)at != 0.0;
    case WORD:
        return *(const unsigned *)at != 0;
    }
    return false;
}

void tt_dims_override(struct tt_model_dims *dims, const struct tt_model_dims *with)
{
    for (const struct field *f = fields; f < fields + N_FIELDS; f++)
        if (is_set(with, f) && !(f->object && strcmp(f->object, "lora") == 0))
            memcpy((char *)dims + f->at, (const char *)with + f->at, bytes_of(f->kind));
    dims->moe.balanced = dims->moe.balanced || with->moe.balanced;
    if (with->lora.rank)
        dims->lora = with->lora;
}

/* --- writing --- */

static json_t *list_json(const float *list)
{
    json_t *json = json_array();

    for (int i = 0; i < TT_ROPE_PAIRS && list[i] != 0.0F; i++)
        (void)json_array_append_new(json, json_real((double)list[i]));
    return json;
}

static json_t *field_json(const struct tt_model_dims *dims, const struct field *field)
{
    const void *at = (const char *)dims + field->at;

    switch (field->kind) {
    case INT:
        return json_integer(*(const int64_t *)at);
    case FLAG:
        return json_boolean(*(const int *)at == 1);
    case BOOL:
        return json_boolean(*(const bool *)at);
    case FLOAT:
        return json_real((double)*(const float *)at);
    case REAL:
        return json_real(*(const double *)at);
    case WORD:
        return json_string(field->words[*(const unsigned *)at]);
    case LIST:
        return list_json(at);
    }
    return NULL;
}

/* Whether the object of a field is in the file. */
static bool has_object(const struct tt_model_dims *dims, const struct field *field)
{
    const struct field *first = fields;

    while (field->object && (!first->object || strcmp(first->object, field->object) != 0))
        first++;
    return !field->object || is_set(dims, first);
}

char *tt_model_json_text(const struct tt_model *model)
{
    json_t *json = json_pack("{s:s, s:s}", "name", model->row->name, "flavor", model->flavor), *modules = json_array();
    char *text;

    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        json_t *into = f->object ? json_object_get(json, f->object) : json;

        if (!has_object(&model->dims, f) || (f->presence == IF_SET && !is_set(&model->dims, f)))
            continue;
        if (!into) {
            into = json_object();
            (void)json_object_set_new(json, f->object, into);
        }
        (void)json_object_set_new(into, f->key, field_json(&model->dims, f));
    }
    for (int i = 0; i < tt_lora_n_modules; i++)
        if (model->dims.lora.modules & 1U << i)
            (void)json_array_append_new(modules, json_string(tt_lora_modules[i]));
    for (int i = 0; i < model->dims.lora.n_targets; i++)
        if (!tt_lora_module(model->dims.lora.targets[i]))
            (void)json_array_append_new(modules, json_string(model->dims.lora.targets[i]));
    (void)json_object_set(json_object_get(json, "lora"), "target_modules", modules);
    json_decref(modules);
    text = tt_json_text(json);
    json_decref(json);
    return text;
}

/* --- reading --- */

static int read_word(const json_t *value, const struct field *field, const char *where, unsigned *ret_word)
{
    const char *word = json_string_value(value);

    for (unsigned i = 0; word && field->words[i]; i++) {
        if (strcmp(field->words[i], word) == 0) {
            *ret_word = i;
            return 0;
        }
    }
    return tt_fail(TT_EDATA, "'%s': '%s' has an unknown value", where, field->key);
}

static int read_list(const json_t *value, const struct field *field, const char *where, float *list)
{
    if (!json_is_array(value) || json_array_size(value) > TT_ROPE_PAIRS)
        return tt_fail(TT_EDATA, "'%s': '%s' is not a list of at most %d numbers", where, field->key, TT_ROPE_PAIRS);
    for (size_t i = 0; i < json_array_size(value); i++) {
        list[i] = (float)json_number_value(json_array_get(value, i));
        if (!(list[i] > 0.0F) || !isfinite(list[i]))
            return tt_fail(TT_EDATA, "'%s': '%s' has a member that is not a positive number", where, field->key);
    }
    return 0;
}

static int read_field(const json_t *json, const struct field *field, const char *where, struct tt_model_dims *dims)
{
    const json_t *value = json_object_get(json, field->key);
    void *at = (char *)dims + field->at;
    double real = 0.0;
    int rc = 0;

    if (!value && field->presence != NEEDED)
        return 0;
    switch (field->kind) {
    case INT:
        rc = tt_json_get_int(json, field->key, where, at);
        break;
    case FLAG:
    case BOOL:
        if (!json_is_boolean(value))
            return tt_fail(TT_EDATA, "'%s': '%s' is not true or false", where, field->key);
        if (field->kind == FLAG)
            *(int *)at = json_is_true(value);
        else
            *(bool *)at = json_is_true(value);
        break;
    case FLOAT:
        rc = tt_json_get_real(json, field->key, where, &real);
        *(float *)at = (float)real;
        break;
    case REAL:
        rc = tt_json_get_real(json, field->key, where, at);
        break;
    case WORD:
        rc = read_word(value, field, where, at);
        break;
    case LIST:
        rc = read_list(value, field, where, at);
        break;
    }
    return rc;
}

/* *ret_words, which the caller frees, are the words of the json. */
static int read_modules(const json_t *json, const char *where, struct tt_lora *lora, const char ***ret_words)
{
    const json_t *modules = json_object_get(json, "target_modules"), *name;
    const char **words = tt_calloc(json_array_size(modules) + 1, sizeof *words);
    size_t i;

    *ret_words = words;
    json_array_foreach((json_t *)(uintptr_t)modules, i, name)
    {
        words[i] = json_string_value(name);
        if (!words[i])
            return tt_fail(TT_EDATA, "'%s': 'target_modules' has a member that is not a text", where);
    }
    tt_lora_set_targets(lora, words, (int)json_array_size(modules));
    if (lora->rank < 1 || lora->rank > INT32_MAX || lora->n_targets == 0 || !isfinite(lora->alpha))
        return tt_fail(TT_EDATA, "'%s': 'lora' has rank %lld, alpha %g and %zu target modules", where,
                       (long long)lora->rank, lora->alpha, json_array_size(modules));
    return 0;
}

/* path: for messages. */
static int read_model(const json_t *json, const char *path, struct tt_model **ret_model)
{
    struct tt_model_dims dims = {0};
    const char *name = NULL, *flavor = NULL, **words = NULL;
    int rc = 0;

    TT_TRY(tt_json_get_string(json, "name", path, &name));
    TT_TRY(tt_json_get_string(json, "flavor", path, &flavor));
    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        const json_t *from = f->object ? json_object_get(json, f->object) : json;

        if (from)
            TT_TRY(read_field(from, f, path, &dims));
    }
    if (json_object_get(json, "lora"))
        TT_TRY(read_modules(json_object_get(json, "lora"), path, &dims.lora, &words));
    if (tt_model_from_dims(name, flavor, &dims, ret_model) < 0)
        rc = tt_wrap(TT_EDATA, "'%s'", path);
out:
    tt_free(words);
    return rc;
}

int tt_model_json_parse(const char *text, size_t size, const char *where, struct tt_model **ret_model)
{
    json_t *json = NULL;
    int rc = tt_json_parse(text, size, where, &json);

    if (rc == 0)
        rc = read_model(json, where, ret_model);
    json_decref(json);
    return rc;
}

int tt_model_json_load(const char *path, struct tt_model **ret_model)
{
    json_t *json = NULL;
    int rc = tt_json_load(path, &json);

    if (rc == 0)
        rc = read_model(json, path, ret_model);
    json_decref(json);
    return rc;
}
