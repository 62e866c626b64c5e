/* SPDX-License-Identifier: MIT
 *
 * RoPE in config.json, in both spellings: `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling` (4;
 * also with its older `type`).
 */
#include <math.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/models/hf.h"

/* --- reading --- */

static int need_real(const json_t *object, const char *type, const char *key, const char *where, double *ret_value)
{
    if (!tt_hf_member(object, key))
        return tt_fail(TT_EDATA, "%s: rope_type %s needs the key '%s'", where, type, key);
    return tt_hf_real(object, key, 0.0, where, ret_value);
}

static int read_llama3_scaling(const json_t *rope, const char *where, struct tt_rope *ret_rope)
{
    int rc = 0;

    TT_TRY(need_real(rope, "llama3", "factor", where, &ret_rope->factor));
    TT_TRY(need_real(rope, "llama3", "low_freq_factor", where, &ret_rope->low_freq_factor));
    TT_TRY(need_real(rope, "llama3", "high_freq_factor", where, &ret_rope->high_freq_factor));
out:
    return rc;
}

/* The factor of cos and sin follows from the other members, but files may contain it as well. */
static int read_attention_factor(const json_t *rope, const char *where, struct tt_rope *ret_rope)
{
    double factor = 0.0, follows = tt_rope_table_scale(ret_rope);
    int rc = tt_hf_real(rope, "attention_factor", 0.0, where, &factor);

    if (rc == 0 && tt_hf_member(rope, "attention_factor") && !(factor > 0.0))
        return tt_fail(TT_EDATA, "%s: attention_factor must be a positive number", where);
    ret_rope->attention_factor = fabs(factor - follows) > 1e-12 * follows ? factor : 0.0;
    return rc;
}

static int read_yarn(const json_t *rope, const char *where, struct tt_rope *ret_rope)
{
    bool truncate = true;
    int rc = 0;

    TT_TRY(tt_hf_bool(rope, "truncate", true, where, &truncate));
    ret_rope->fractional = !truncate;
    TT_TRY(need_real(rope, "yarn", "factor", where, &ret_rope->factor));
    TT_TRY(tt_hf_real(rope, "beta_fast", 32.0, where, &ret_rope->beta_fast));
    TT_TRY(tt_hf_real(rope, "beta_slow", 1.0, where, &ret_rope->beta_slow));
    TT_TRY(tt_hf_real(rope, "mscale", 0.0, where, &ret_rope->mscale));
    TT_TRY(tt_hf_real(rope, "mscale_all_dim", 0.0, where, &ret_rope->mscale_all_dim));
    if (!(ret_rope->beta_fast > 0.0))
        return tt_fail(TT_EDATA, "%s: beta_fast %g must be positive", where, ret_rope->beta_fast);
    rc = read_attention_factor(rope, where, ret_rope);
out:
    return rc;
}

/* LongRoPE's factors for one of two kinds of contexts. */
static int read_factors(const json_t *rope, const char *key, const char *where, float *list)
{
    const json_t *value = tt_hf_member(rope, key);
    size_t n = json_array_size(value);

    if (n < 1 || n > TT_ROPE_PAIRS)
        return tt_fail(TT_EDATA, "%s: rope_type longrope needs the key '%s', a list of 1 to %d numbers", where, key,
                       TT_ROPE_PAIRS);
    for (size_t i = 0; i < n; i++) {
        list[i] = (float)json_number_value(json_array_get(value, i));
        if (!(list[i] > 0.0F) || !isfinite(list[i]))
            return tt_fail(TT_EDATA, "%s: %s[%zu] must be a positive number", where, key, i);
    }
    return 0;
}

/* The factor that determines the scale is a ratio of lengths, unless the object gives one (tt_hf_read_rope). */
static int read_long(const json_t *rope, const char *where, struct tt_rope *ret_rope)
{
    int rc = 0;

    TT_TRY(read_factors(rope, "short_factor", where, ret_rope->short_factor));
    TT_TRY(read_factors(rope, "long_factor", where, ret_rope->long_factor));
    TT_TRY(tt_hf_real(rope, "factor", 1.0, where, &ret_rope->factor));
out:
    return rc;
}

/* For `dynamic`, the original training length is max_position_embeddings, whatever the object says (read_rope). */
static int read_factor(const json_t *rope, const char *type, const char *where, struct tt_rope *ret_rope)
{
    ret_rope->linear = strcmp(type, "linear") == 0;
    ret_rope->dynamic = !ret_rope->linear;
    return need_real(rope, type, "factor", where, &ret_rope->factor);
}

/* The names for longrope in Phi-3's first files. */
static bool is_long(const char *name, const char *model_type)
{
    return strcmp(name, "longrope") == 0 ||
           (strcmp(model_type, "phi3") == 0 && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0));
}

/* rope: the object with the type, or NULL. Leaves ret_rope without scaling for type default. */
static int read_scaling(const json_t *rope, const char *model_type, const char *where, struct tt_rope *ret_rope)
{
    const json_t *type = tt_hf_member(rope, "rope_type");
    const char *name;

    if (!type)
        type = tt_hf_member(rope, "type");
    if (!type && tt_hf_member(rope, "factor"))
        return tt_fail(TT_EDATA, "%s: RoPE scaling without a rope_type", where);
    if (!type)
        return 0;
    name = json_is_string(type) ? json_string_value(type) : "(not a string)";
    if (strcmp(name, "default") == 0)
        return 0;
    if (is_long(name, model_type))
        return read_long(rope, where, ret_rope);
    if (strcmp(name, "llama3") == 0)
        return read_llama3_scaling(rope, where, ret_rope);
    if (strcmp(name, "yarn") == 0)
        return read_yarn(rope, where, ret_rope);
    if (strcmp(name, "linear") == 0 || strcmp(name, "dynamic") == 0)
        return read_factor(rope, name, where, ret_rope);
    return tt_fail(TT_EDATA,
                   "%s: rope_type '%s' is not supported; default, llama3, yarn, longrope, linear and dynamic are",
                   where, name);
}

/*
 * The object that counts, NULL if there is none. Files may have both; the older spelling wins unless it is empty. In a
 * class whose layers with a window have their own RoPE, the newer spelling has an object for each kind of layer.
 */
static int find_rope(const json_t *config, const char *where, bool kinds, const json_t **ret_rope,
                     const json_t **ret_local)
{
    const json_t *rope = tt_hf_member(config, "rope_scaling"), *newer = tt_hf_member(config, "rope_parameters"), *value;
    const char *key;

    *ret_local = kinds ? tt_hf_member(newer, "sliding_attention") : NULL;
    if (!rope || (json_is_object(rope) && json_object_size(rope) == 0))
        rope = newer;
    if (kinds && json_object_size(newer) > 0) {
        const json_t *full = tt_hf_member(newer, "full_attention");

        if (!full)
            return tt_fail(TT_EDATA, "%s: rope_parameters must have an object 'full_attention'", where);
        json_object_foreach((json_t *)(uintptr_t)newer, key, value)
        {
            if (!json_is_object(value) && !json_is_null(value))
                return tt_fail(TT_EDATA,
                               "%s: '%s' of rope_parameters must be inside the object for a kind of "
                               "layers",
                               where, key);
        }
        json_object_foreach((json_t *)(uintptr_t)(rope == newer ? NULL : rope), key, value)
        {
            if (!json_equal(value, json_object_get(full, key)))
                return tt_fail(TT_EDATA, "%s: rope_scaling and rope_parameters differ: '%s'", where, key);
        }
        rope = full;
    }
    if (rope && !json_is_object(rope))
        return tt_fail(TT_EDATA, "%s: rope_parameters or rope_scaling must be an object", where);
    json_object_foreach((json_t *)(uintptr_t)rope, key, value)
    {
        if (json_is_object(value))
            return tt_fail(TT_EDATA, "%s: a separate RoPE for one type of layers ('%s') is not supported", where, key);
    }
    *ret_rope = rope;
    return 0;
}

/*
 * LongRoPE multiplies its table by a number that follows from `factor`: the ratio of the model's sequence length to
 * that of its first training. The object may give the factor, or the multiplier itself.
 */
static int finish_long(const json_t *rope, const char *where, int64_t max_positions, struct tt_rope *ret_rope)
{
    if (!tt_hf_member(rope, "factor") && ret_rope->original_max > 0.0)
        ret_rope->factor = fmax((double)max_positions / ret_rope->original_max, 1.0);
    return read_attention_factor(rope, where, ret_rope);
}

/*
 * The length at which scaling begins. A value outside the object takes precedence, except in classes with an object for
 * each kind of layer (config is NULL); without any value, it is the longest sequence of the model. of_class: the
 * class's value outside the object if the file has none; 0: none.
 */
static int read_original_max(const json_t *config, const json_t *rope, const char *where, double of_class,
                             int64_t max_positions, double *ret_value)
{
    int rc = 0;

    *ret_value = of_class > 0.0 ? of_class : (double)max_positions;
    if (of_class == 0.0)
        TT_TRY(tt_hf_real(rope, "original_max_position_embeddings", *ret_value, where, ret_value));
    TT_TRY(tt_hf_real(config, "original_max_position_embeddings", *ret_value, where, ret_value));
out:
    return rc;
}

/* RoPE of layers with a window, without scaling. same: in this class they have the theta of the other layers. */
static int read_local_rope(const json_t *config, const json_t *local, bool same, const char *where, double *theta)
{
    int rc = 0;

    if (same && !tt_hf_member(local, "rope_theta")) /* transformers 4 uses it for these layers too, 5 does not */
        TT_TRY(tt_hf_must_equal(config, "rope_theta", *theta, where));
    TT_TRY(tt_hf_real(local, "rope_theta", *theta, where, theta));
    TT_TRY(tt_hf_must_be(local, "rope_type", "default", where));
    if (!(*theta > 0.0) || !isfinite(*theta))
        return tt_fail(TT_EDATA, "%s: rope_theta of layers with a window must be a positive number", where);
out:
    return rc;
}

/* The part of each head that is rotated. from: the object that contains it. */
static int read_rotated(const json_t *from, const struct tt_hf_class *class, const char *where,
                        struct tt_model_dims *dims)
{
    const char *key =
        class->rotated_key && tt_hf_member(from, class->rotated_key) ? class->rotated_key : "partial_rotary_factor";
    int64_t head = dims->head_dim || dims->n_heads == 0 ? dims->head_dim : dims->dim / dims->n_heads;
    double part = 1.0;
    int rc = 0;

    if (class->rotated == 0.0)
        return tt_hf_must_equal(from, "partial_rotary_factor", 1.0, where);
    TT_TRY(tt_hf_either(from, "partial_rotary_factor", class->rotated_key, class->rotated, where, &part));
    if (!(part > 0.0) || part > 1.0)
        return tt_fail(TT_EDATA, "%s: %s %g must be above 0 and at most 1", where, key, part);
    dims->rotary_dim = part < 1.0 ? (int64_t)((double)head * part) : 0;
    if (part < 1.0 && (dims->rotary_dim < 2 || dims->rotary_dim % 2 != 0))
        return tt_fail(TT_EDATA, "%s: %s %g rotates %lld of the %lld elements of a head; RoPE rotates pairs", where,
                       key, part, (long long)dims->rotary_dim, (long long)head);
out:
    return rc;
}

/*
 * RoPE in both spellings: `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling` (4; also with its
 * older `type`). Types default, llama3, yarn, longrope, linear and dynamic. A class may have scaling even if the file
 * says nothing about RoPE (gpt-oss).
 */
int tt_hf_read_rope(const json_t *config, const char *where, struct tt_model_dims *dims)
{
    const json_t *rope = NULL, *local = NULL;
    const struct tt_hf_class *class = tt_hf_class(config);
    double original_max = dims->rope.original_max; /* the original length of a class without scaling: Phi-3's */
    bool class_scales = dims->rope.factor != 0.0;
    struct tt_rope result = {0};
    int rc = 0;

    if (!class_scales)
        dims->rope.original_max = 0.0;
    TT_TRY(find_rope(config, where, dims->local_theta != 0.0, &rope, &local));
    if (dims->local_theta != 0.0)
        TT_TRY(read_local_rope(config, local, dims->local_theta == dims->rope.theta, where, &dims->local_theta));
    TT_TRY(tt_hf_either(config, "rope_theta", class->theta_key, dims->rope.theta, where, &result.theta));
    TT_TRY(tt_hf_real(rope, "rope_theta", result.theta, where, &result.theta));
    TT_TRY(read_rotated(tt_hf_member(rope, "partial_rotary_factor") ? rope : config, class, where, dims));
    if (rope) {
        TT_TRY(read_scaling(rope, class->type, where, &result));
        if (dims->mla.kv_rank && result.factor != 0.0 && result.beta_fast == 0.0) /* DeepSeek's classes read it there */
            TT_TRY(tt_hf_must_equal(rope, "mscale_all_dim", 0.0, where));
        dims->rope = result;
    }
    dims->rope.theta = result.theta;
    if (dims->rope.factor != 0.0)
        TT_TRY(read_original_max(dims->local_theta != 0.0 ? NULL : config, rope, where,
                                 rope && class_scales ? 0.0 : original_max, dims->max_positions,
                                 &dims->rope.original_max));
    if (dims->rope.dynamic)
        dims->rope.original_max = (double)dims->max_positions;
    if (tt_rope_is_long(&dims->rope))
        TT_TRY(finish_long(rope, where, dims->max_positions, &dims->rope));
out:
    return rc;
}

static bool is_false(const json_t *member)
{
    return json_is_false(member);
}

int tt_hf_rotate_windows(const char *where, struct tt_model_dims *dims)
{
    json_t *windowed = json_array();
    int rc;

    for (int64_t l = 0; l < dims->n_layers; l++)
        (void)json_array_append_new(windowed, json_boolean(tt_model_is_windowed(dims, l)));
    rc = tt_hf_layers(windowed, dims->n_layers, is_false, "layer_types", where, &dims->unrotated);
    json_decref(windowed);
    return rc;
}

/* --- writing --- */

static json_t *yarn(const struct tt_rope *rope)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:o*, s:o*, s:o*, s:I, s:o*}", "rope_type", "yarn", "factor", rope->factor,
                     "beta_fast", rope->beta_fast, "beta_slow", rope->beta_slow, "mscale",
                     rope->mscale != 0.0 ? tt_json_number(rope->mscale) : NULL, "mscale_all_dim",
                     rope->mscale_all_dim != 0.0 ? tt_json_number(rope->mscale_all_dim) : NULL, "attention_factor",
                     rope->attention_factor != 0.0 ? tt_json_number(rope->attention_factor) : NULL,
                     "original_max_position_embeddings", (json_int_t)rope->original_max, "truncate",
                     rope->fractional ? json_false() : NULL);
}

static json_t *factors(const float *list)
{
    json_t *json = json_array();

    for (int i = 0; i < TT_ROPE_PAIRS && list[i] != 0.0F; i++)
        (void)json_array_append_new(json, tt_hf_float(list[i]));
    return json;
}

/* Both versions of transformers read `type`. A factor that is the ratio of the lengths is left out. */
static json_t *longrope(const struct tt_rope *rope, int64_t max_positions)
{
    bool follows = rope->factor == fmax((double)max_positions / rope->original_max, 1.0);

    return json_pack("{s:s, s:o, s:o, s:I, s:o*, s:o*}", "type", "longrope", "short_factor",
                     factors(rope->short_factor), "long_factor", factors(rope->long_factor),
                     "original_max_position_embeddings", (json_int_t)rope->original_max, "factor",
                     follows ? NULL : tt_json_number(rope->factor), "attention_factor",
                     rope->attention_factor != 0.0 ? tt_json_number(rope->attention_factor) : NULL);
}

json_t *tt_hf_rope_scaling(const struct tt_model_dims *dims)
{
    const struct tt_rope *rope = &dims->rope;

    if (rope->factor == 0.0)
        return json_null();
    if (tt_rope_is_long(rope))
        return longrope(rope, dims->max_positions);
    if (rope->linear || rope->dynamic)
        return json_pack("{s:s, s:f}", "rope_type", rope->linear ? "linear" : "dynamic", "factor", rope->factor);
    if (rope->beta_fast > 0.0)
        return yarn(rope);
    return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", rope->factor, "low_freq_factor",
                     rope->low_freq_factor, "high_freq_factor", rope->high_freq_factor,
                     "original_max_position_embeddings", (json_int_t)rope->original_max);
}

double tt_hf_rotated(const struct tt_model_dims *d)
{
    double part = d->rotary_dim ? (double)d->rotary_dim / (double)d->head_dim : 1.0;

    /* transformers cuts the product with head_dim down to a whole number */
    while (d->rotary_dim && (int64_t)(part * (double)d->head_dim) < d->rotary_dim)
        part = nextafter(part, 1.0);
    return part;
}

/* The spelling of transformers 5, for classes in which layers with a window have their own RoPE. */
void tt_hf_write_ropes(json_t *config, const struct tt_model_dims *d)
{
    double local = d->local_theta != 0.0 ? d->local_theta : d->rope.theta;
    json_t *full = d->rope.factor != 0.0 ? tt_hf_rope_scaling(d) : json_pack("{s:s}", "rope_type", "default");

    (void)json_object_set_new(full, "rope_theta", tt_json_number(d->rope.theta));
    (void)json_object_set_new(config, "rope_parameters",
                              json_pack("{s:o, s:{s:s, s:o}}", "full_attention", full, "sliding_attention", "rope_type",
                                        "default", "rope_theta", tt_json_number(local)));
}
