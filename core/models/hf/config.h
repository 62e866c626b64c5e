/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_HF_CONFIG_H
#define TT_MODELS_HF_CONFIG_H

#include <stdbool.h>

#include "core/base/json.h"
#include "core/models/model.h"

/**
 * Reads the parts of Hugging Face's config.json that all architectures share. `where` is the file's path for messages.
 * A null member counts as absent. Every failure is TT_EDATA naming the file and the key.
 */

/** An integer member; absent: `absent`, or an error when that is negative. */
int tt_hf_int(const json_t *config, const char *key, int64_t absent, const char *where,
              int64_t *ret_value) TT_MUST_CHECK;

/** The same of an integer that may be 0. */
int tt_hf_count(const json_t *config, const char *key, int64_t absent, const char *where,
                int64_t *ret_value) TT_MUST_CHECK;

/** A number or a boolean; absent: `absent`. */
int tt_hf_real(const json_t *config, const char *key, double absent, const char *where,
               double *ret_value) TT_MUST_CHECK;
int tt_hf_bool(const json_t *config, const char *key, bool absent, const char *where, bool *ret_value) TT_MUST_CHECK;

/** A string member that must be `wanted` if it is present. */
int tt_hf_must_be(const json_t *config, const char *key, const char *wanted, const char *where) TT_MUST_CHECK;

/** A boolean member that must not be true: the model would have something that titan does not build. */
int tt_hf_must_be_off(const json_t *config, const char *key, const char *where) TT_MUST_CHECK;

/** A boolean member that must not be false. */
int tt_hf_must_be_on(const json_t *config, const char *key, const char *where) TT_MUST_CHECK;

/** A number that must be `wanted` if it is present. */
int tt_hf_must_equal(const json_t *config, const char *key, double wanted, const char *where) TT_MUST_CHECK;

/** Refuses what changes the computation in every architecture: sliding windows, quantized weights, dropout, ... */
int tt_hf_check_common(const json_t *config, const char *where) TT_MUST_CHECK;

/** The same of an architecture that has sliding windows, without the checks of these and of layer_types. */
int tt_hf_check_but_windows(const json_t *config, const char *where) TT_MUST_CHECK;

/**
 * sliding_window and the layers that have it, of the classes that have windows (Mistral's, Mixtral's, Qwen3's); of
 * others it is refused. dims->n_layers must be known.
 */
int tt_hf_windows(const json_t *config, const char *where, struct tt_model_dims *dims) TT_MUST_CHECK;

/**
 * RoPE in both spellings: `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling` (4; also with its
 * older `type`). Types default, llama3 and yarn; default_theta when the file gives none.
 */
int tt_hf_rope(const json_t *config, double default_theta, const char *where, struct tt_rope *ret_rope) TT_MUST_CHECK;

/**
 * The sizes of experts: their number (num_experts or num_local_experts), num_experts_per_tok,
 * and of Qwen3's class the key of their width, norm_topk_prob, decoder_sparse_step and mlp_only_layers.
 * ret_dims->n_layers must be known.
 * width_key NULL: Mixtral's, whose experts are as wide as the feed-forward, and whose gates are normalized.
 */
int tt_hf_experts(const json_t *config, const char *width_key, const char *where,
                  struct tt_model_dims *ret_dims) TT_MUST_CHECK;

/** The reverse for Qwen3's classes: sliding windows. */
void tt_hf_config_windows(json_t *config, const struct tt_model *model);

/** The reverse for Qwen3's class: the members of its configuration that are about experts. */
void tt_hf_config_experts(json_t *config, const struct tt_model *model);

/**
 * A new config.json with the members that every architecture has: `architecture`, which is the class in transformers,
 * the row's model_type (of a model with experts hf_same_as, if it has one), the vocabulary, whether the head is tied, a
 * dtype of float32, and null token ids (absent ones would get the defaults of transformers, which belong to another
 * tokenizer).
 */
json_t *tt_hf_config_new(const struct tt_model *model, const char *architecture);

/**
 * The sizes of decoders whose keys are Llama's, and RoPE as rope_theta with rope_scaling: the spelling of transformers
 * 4, which 5 converts.
 */
void tt_hf_config_decoder(json_t *config, const struct tt_model *model);

/** A float as the shortest decimal that reads back as the same float: 1e-05, not 9.9999997e-06. */
json_t *tt_hf_float(float value);

#endif
