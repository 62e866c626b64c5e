/* SPDX-License-Identifier: MIT
 *
 * Writes the members of config.json that all architectures share. Call tt_hf_config_new first, then add the
 * architecture's other members. Keys that transformers 5 renamed are written with their names in 4, which
 * both versions read.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/models/hf/config.h"

double tt_hf_decimal(float value)
{
    enum { FLOAT_DIGITS = 9 };
    char text[32];

    for (int digits = 1; digits <= FLOAT_DIGITS; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return strtod(text, NULL);
}

json_t *tt_hf_float(float value)
{
    return tt_json_number(tt_hf_decimal(value));
}

json_t *tt_hf_config_new(const struct tt_model *model, const char *architecture)
{
    return json_pack("{s:[s], s:s, s:s, s:I, s:b, s:n, s:n}", "architectures", architecture, "model_type",
                     model->dims.moe.experts && model->row->hf_same_as ? model->row->hf_same_as
                                                                       : model->row->hf_model_type,
                     "torch_dtype", "float32", "vocab_size", (json_int_t)model->dims.vocab_size, "tie_word_embeddings",
                     model->dims.tied == 1, "bos_token_id", "eos_token_id");
}

static json_t *yarn(const struct tt_rope *rope)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:o*, s:o*, s:I, s:o*}", "rope_type", "yarn", "factor", rope->factor,
                     "beta_fast", rope->beta_fast, "beta_slow", rope->beta_slow, "mscale",
                     rope->mscale != 0.0 ? tt_json_number(rope->mscale) : NULL, "mscale_all_dim",
                     rope->mscale_all_dim != 0.0 ? tt_json_number(rope->mscale_all_dim) : NULL,
                     "original_max_position_embeddings", (json_int_t)rope->original_max, "truncate",
                     rope->fractional ? json_false() : NULL);
}

static json_t *rope_scaling(const struct tt_rope *rope)
{
    if (rope->factor == 0.0)
        return json_null();
    if (rope->linear || rope->dynamic)
        return json_pack("{s:s, s:f}", "rope_type", rope->linear ? "linear" : "dynamic", "factor", rope->factor);
    if (rope->beta_fast > 0.0)
        return yarn(rope);
    return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", rope->factor, "low_freq_factor",
                     rope->low_freq_factor, "high_freq_factor", rope->high_freq_factor,
                     "original_max_position_embeddings", (json_int_t)rope->original_max);
}

void tt_hf_config_decoder(json_t *config, const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;

    (void)json_object_update_new(
        config, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o*}", "hidden_size", (json_int_t)d->dim,
                          "num_hidden_layers", (json_int_t)d->n_layers, "num_attention_heads", (json_int_t)d->n_heads,
                          "num_key_value_heads", (json_int_t)d->n_kv_heads, "head_dim", (json_int_t)d->head_dim,
                          "intermediate_size", (json_int_t)d->ffn_dim, "max_position_embeddings",
                          d->max_positions > 0 ? json_integer(d->max_positions) : NULL));
    (void)json_object_update_new(
        config, json_pack("{s:o, s:o, s:o, s:s, s:b, s:f}", "rms_norm_eps", tt_hf_float(d->norm_eps), "rope_theta",
                          tt_json_number(d->rope.theta), "rope_scaling", rope_scaling(&d->rope), "hidden_act", "silu",
                          "attention_bias", false, "attention_dropout", 0.0));
}

void tt_hf_config_windows(json_t *config, const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    int64_t window = d->sliding_window;
    json_t *types;

    (void)json_object_update_new(config, json_pack("{s:b, s:o}", "use_sliding_window", window > 0, "sliding_window",
                                                   window > 0 ? json_integer(window) : json_null()));
    if (!window || d->moe.experts) /* with experts all layers have it */
        return;
    types = json_array();
    for (int64_t l = 0; l < d->n_layers; l++)
        (void)json_array_append_new(types,
                                    json_string(tt_model_is_windowed(d, l) ? "sliding_attention" : "full_attention"));
    (void)json_object_update_new(config, json_pack("{s:I, s:o}", "max_window_layers",
                                                   (json_int_t)(d->window_from > 0 ? d->window_from - 1 : 0),
                                                   "layer_types", types));
}

void tt_hf_config_experts(json_t *config, const struct tt_model *model)
{
    const struct tt_moe *moe = &model->dims.moe;
    json_t *dense = json_array();

    for (int64_t l = 0; l < model->dims.n_layers; l++)
        if (!tt_model_has_experts(&model->dims, l))
            (void)json_array_append_new(dense, json_integer(l));
    (void)json_object_update_new(
        config, json_pack("{s:I, s:I, s:I, s:b, s:i, s:o, s:b}", "num_experts", (json_int_t)moe->experts,
                          "num_experts_per_tok", (json_int_t)moe->top_k, "moe_intermediate_size",
                          (json_int_t)moe->ffn_dim, "norm_topk_prob", !moe->gates_as_scored, "decoder_sparse_step", 1,
                          "mlp_only_layers", dense, "output_router_logits", false));
}
