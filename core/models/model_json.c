/* SPDX-License-Identifier: MIT
 *
 * The model of a checkpoint, written and read by one table of its sizes.
 */
#include "core/models/model_json.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/lora.h"

/* norm_eps is a float, tied an int (FLAG), a WORD an enum; the rest is int64_t or double. An OPTIONAL is an int64_t
 * and an OPTIONAL_REAL a double that may be missing (0). So may an OPTIONAL_BOOL (false), and a WORD (the first of its
 * words). */
enum kind { INT, OPTIONAL, FLAG, BOOL, OPTIONAL_BOOL, FLOAT, REAL, OPTIONAL_REAL, WORD };

struct field {
    const char *key;
    enum kind kind;
    size_t offset;            /* in struct tt_model_dims */
    const char *const *words; /* of a WORD, ended by NULL */
};

#define FIELD(key, kind, member)                                    \
    {                                                               \
        (key), (kind), offsetof(struct tt_model_dims, member), NULL \
    }
#define WORD_FIELD(key, member, words)                               \
    {                                                                \
        (key), WORD, offsetof(struct tt_model_dims, member), (words) \
    }

static const char *const scores[] = {[TT_SCORE_SOFTMAX] = "softmax", [TT_SCORE_SIGMOID] = "sigmoid", NULL};
static const char *const group_rules[] = {[TT_GROUP_BEST] = "best", [TT_GROUP_TWO_BEST] = "two_best", NULL};

static const struct field fields[] = {
    FIELD("dim", INT, dim),
    FIELD("n_layers", INT, n_layers),
    FIELD("n_heads", INT, n_heads),
    FIELD("n_kv_heads", INT, n_kv_heads),
    FIELD("head_dim", INT, head_dim),
    FIELD("ffn_dim", INT, ffn_dim),
    FIELD("vocab_size", INT, vocab_size),
    FIELD("norm_eps", FLOAT, norm_eps),
    FIELD("max_position_embeddings", OPTIONAL, max_positions),
    FIELD("rope_theta", REAL, rope.theta),
    FIELD("tie_embeddings", FLAG, tied),
};

static const struct field scaling_fields[] = {
    FIELD("factor", REAL, rope.factor),
    FIELD("low_freq_factor", REAL, rope.low_freq_factor),
    FIELD("high_freq_factor", REAL, rope.high_freq_factor),
    FIELD("original_max", REAL, rope.original_max),
    FIELD("beta_fast", OPTIONAL_REAL, rope.beta_fast),
    FIELD("beta_slow", OPTIONAL_REAL, rope.beta_slow),
    FIELD("mscale", OPTIONAL_REAL, rope.mscale),
    FIELD("mscale_all_dim", OPTIONAL_REAL, rope.mscale_all_dim),
};

/* These are written where they are set only. */
static const struct field rope_flags[] = {
    FIELD("linear", OPTIONAL_BOOL, rope.linear),
    FIELD("dynamic", OPTIONAL_BOOL, rope.dynamic),
    FIELD("fractional", OPTIONAL_BOOL, rope.fractional),
};
static const struct field window_field = FIELD("sliding_window", OPTIONAL, sliding_window);
static const struct field window_from_field = FIELD("window_from", OPTIONAL, window_from);
static const struct field dense_set_field = FIELD("dense_set", OPTIONAL, moe.dense_set);

static const struct field mla_fields[] = {
    FIELD("kv_rank", INT, mla.kv_rank),
    FIELD("q_rank", OPTIONAL, mla.q_rank),
    FIELD("rope_dim", INT, mla.rope_dim),
    FIELD("value_dim", INT, mla.value_dim),
};

static const struct field lora_fields[] = {
    FIELD("rank", INT, lora.rank),
    FIELD("alpha", REAL, lora.alpha),
};

static const struct field moe_fields[] = {
    FIELD("experts", INT, moe.experts),
    FIELD("top_k", INT, moe.top_k),
    FIELD("ffn_dim", INT, moe.ffn_dim),
    FIELD("shared", OPTIONAL, moe.shared),
    FIELD("dense_layers", INT, moe.dense_layers),
    FIELD("gates_as_scored", BOOL, moe.gates_as_scored),
    WORD_FIELD("score", moe.score, scores),
    FIELD("groups", OPTIONAL, moe.groups),
    FIELD("kept_groups", OPTIONAL, moe.kept_groups),
    WORD_FIELD("group_rule", moe.group_rule, group_rules),
    FIELD("route_scale", OPTIONAL_REAL, moe.route_scale),
    FIELD("biased", OPTIONAL_BOOL, moe.biased),
};

enum {
    N_FIELDS = sizeof fields / sizeof *fields,
    N_SCALING = sizeof scaling_fields / sizeof *scaling_fields,
    N_ROPE_FLAGS = sizeof rope_flags / sizeof *rope_flags,
    N_MLA = sizeof mla_fields / sizeof *mla_fields,
    N_LORA = sizeof lora_fields / sizeof *lora_fields,
    N_MOE = sizeof moe_fields / sizeof *moe_fields
};

static json_t *field_json(const struct tt_model_dims *dims, const struct field *field)
{
    const char *at = (const char *)dims + field->offset;

    switch (field->kind) {
    case INT:
    case OPTIONAL:
        return json_integer(*(const int64_t *)at);
    case FLAG:
        return json_boolean(*(const int *)at == 1);
    case BOOL:
    case OPTIONAL_BOOL:
        return json_boolean(*(const bool *)at);
    case FLOAT:
        return json_real((double)*(const float *)at);
    case REAL:
    case OPTIONAL_REAL:
        return json_real(*(const double *)at);
    case WORD:
        return json_string(field->words[*(const unsigned *)(const void *)at]);
    }
    return NULL;
}

static json_t *lora_json(const struct tt_model_dims *dims)
{
    json_t *json = json_object(), *modules = json_array();

    for (int i = 0; i < N_LORA; i++)
        (void)json_object_set_new(json, lora_fields[i].key, field_json(dims, &lora_fields[i]));
    for (int i = 0; i < tt_lora_n_modules; i++)
        if (dims->lora.modules & 1U << i)
            (void)json_array_append_new(modules, json_string(tt_lora_modules[i]));
    (void)json_object_set_new(json, "target_modules", modules);
    return json;
}

char *tt_model_json_text(const struct tt_model *model)
{
    json_t *json = json_pack("{s:s, s:s}", "name", model->row->name, "flavor", model->flavor), *part;
    char *text;

    for (int i = 0; i < N_FIELDS; i++)
        (void)json_object_set_new(json, fields[i].key, field_json(&model->dims, &fields[i]));
    if (model->dims.rope.factor > 0.0) {
        part = json_object();
        for (int i = 0; i < N_SCALING; i++)
            (void)json_object_set_new(part, scaling_fields[i].key, field_json(&model->dims, &scaling_fields[i]));
        for (int i = 0; i < N_ROPE_FLAGS; i++)
            if (*(const bool *)((const char *)&model->dims + rope_flags[i].offset))
                (void)json_object_set_new(part, rope_flags[i].key, json_true());
        (void)json_object_set_new(json, "rope_scaling", part);
    }
    if (model->dims.sliding_window)
        (void)json_object_set_new(json, window_field.key, field_json(&model->dims, &window_field));
    if (model->dims.window_from)
        (void)json_object_set_new(json, window_from_field.key, field_json(&model->dims, &window_from_field));
    if (model->dims.mla.kv_rank) {
        part = json_object();
        for (int i = 0; i < N_MLA; i++)
            (void)json_object_set_new(part, mla_fields[i].key, field_json(&model->dims, &mla_fields[i]));
        (void)json_object_set_new(json, "mla", part);
    }
    if (model->dims.moe.experts) {
        part = json_object();
        for (int i = 0; i < N_MOE; i++)
            (void)json_object_set_new(part, moe_fields[i].key, field_json(&model->dims, &moe_fields[i]));
        if (model->dims.moe.dense_set)
            (void)json_object_set_new(part, dense_set_field.key, field_json(&model->dims, &dense_set_field));
        (void)json_object_set_new(json, "moe", part);
    }
    if (model->dims.lora.rank)
        (void)json_object_set_new(json, "lora", lora_json(&model->dims));
    text = tt_json_text(json);
    json_decref(json);
    return text;
}

static int read_word(const json_t *value, const struct field *field, const char *where, unsigned *ret_word)
{
    const char *word = json_string_value(value);

    for (unsigned i = 0; word && field->words[i]; i++) {
        if (strcmp(field->words[i], word) == 0) {
            *ret_word = i;
            return 0;
        }
    }
    return value ? tt_fail(TT_EDATA, "'%s': '%s' has a value that is not known", where, field->key) : 0;
}

static int read_field(const json_t *json, const struct field *field, const char *where, struct tt_model_dims *dims)
{
    const json_t *value = json_object_get(json, field->key);
    char *at = (char *)dims + field->offset;
    double real = 0.0;
    int rc = 0;

    switch (field->kind) {
    case OPTIONAL:
        if (!value)
            break;
        /* fall through */
    case INT:
        TT_TRY(tt_json_get_int(json, field->key, where, (int64_t *)(void *)at));
        break;
    case OPTIONAL_BOOL:
        if (!value)
            break;
        /* fall through */
    case FLAG:
    case BOOL:
        if (!json_is_boolean(value))
            return tt_fail(TT_EDATA, "'%s': '%s' is not true or false", where, field->key);
        if (field->kind == FLAG)
            *(int *)(void *)at = json_is_true(value);
        else
            *(bool *)(void *)at = json_is_true(value);
        break;
    case FLOAT:
        TT_TRY(tt_json_get_real(json, field->key, where, &real));
        *(float *)(void *)at = (float)real;
        break;
    case OPTIONAL_REAL:
        if (!value)
            break;
        /* fall through */
    case REAL:
        TT_TRY(tt_json_get_real(json, field->key, where, (double *)(void *)at));
        break;
    case WORD:
        TT_TRY(read_word(value, field, where, (unsigned *)(void *)at));
        break;
    }
out:
    return rc;
}

static int read_lora(const json_t *json, const char *where, struct tt_model_dims *dims)
{
    const json_t *modules = json_object_get(json, "target_modules"), *name;
    size_t i;
    int rc = 0;

    for (int k = 0; k < N_LORA; k++)
        TT_TRY(read_field(json, &lora_fields[k], where, dims));
    json_array_foreach((json_t *)(uintptr_t)modules, i, name)
    {
        unsigned module = json_is_string(name) ? tt_lora_module(json_string_value(name)) : 0;

        if (!module)
            return tt_fail(TT_EDATA, "'%s': 'target_modules' names a layer that cannot have an adapter", where);
        dims->lora.modules |= module;
    }
    if (dims->lora.rank < 1 || dims->lora.rank > INT32_MAX || !dims->lora.modules || !isfinite(dims->lora.alpha))
        rc = tt_fail(TT_EDATA, "'%s': 'lora' has rank %lld, alpha %g and %zu target modules", where,
                     (long long)dims->lora.rank, dims->lora.alpha, json_array_size(modules));
out:
    return rc;
}

/* path: for messages. */
static int read_model(const json_t *json, const char *path, struct tt_model **ret_model)
{
    struct tt_model_dims dims = {0};
    const char *name = NULL, *flavor = NULL;
    const json_t *part;
    int rc = 0;

    TT_TRY(tt_json_get_string(json, "name", path, &name));
    TT_TRY(tt_json_get_string(json, "flavor", path, &flavor));
    for (int i = 0; i < N_FIELDS; i++)
        TT_TRY(read_field(json, &fields[i], path, &dims));
    part = json_object_get(json, "rope_scaling");
    for (int i = 0; part && i < N_SCALING; i++)
        TT_TRY(read_field(part, &scaling_fields[i], path, &dims));
    for (int i = 0; part && i < N_ROPE_FLAGS; i++)
        TT_TRY(read_field(part, &rope_flags[i], path, &dims));
    TT_TRY(read_field(json, &window_field, path, &dims));
    TT_TRY(read_field(json, &window_from_field, path, &dims));
    part = json_object_get(json, "mla");
    for (int i = 0; part && i < N_MLA; i++)
        TT_TRY(read_field(part, &mla_fields[i], path, &dims));
    part = json_object_get(json, "moe");
    for (int i = 0; part && i < N_MOE; i++)
        TT_TRY(read_field(part, &moe_fields[i], path, &dims));
    TT_TRY(part ? read_field(part, &dense_set_field, path, &dims) : 0);
    if (json_object_get(json, "lora"))
        TT_TRY(read_lora(json_object_get(json, "lora"), path, &dims));
    if (tt_model_from_dims(name, flavor, &dims, ret_model) < 0)
        rc = tt_wrap(TT_EDATA, "'%s'", path);
out:
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
