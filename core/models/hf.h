/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_HF_H
#define TT_MODELS_HF_H

#include <stdbool.h>

#include "core/base/json.h"
#include "core/models/model.h"

/**
 * Reads the parts of Hugging Face's config.json that all architectures share. `where` is the file's path for messages.
 * A null member counts as absent. Every failure is TT_EDATA naming the file and the key.
 */

/** What a class of transformers' takes where a config.json with its model_type says nothing. */
struct tt_hf_class {
    const char *type;
    struct tt_model_dims dims; /* a size of 0 follows from others; or the file must give it */
    struct tt_hf_windows {
        int64_t absent; /* the window, if the key is absent; 0: none */
        bool any;       /* its layers may have one */
        bool needs_use; /* it only counts if use_sliding_window is true */
        bool by_layers; /* layers from max_window_layers on, or those of layer_types; else all layers */
        int64_t layers; /* max_window_layers, if absent */
    } window;
};

/** The class of a config.json by its model_type; NULL if titan reads no such class. */
const struct tt_hf_class *tt_hf_class(const json_t *config);
const struct tt_hf_class *tt_hf_class_of(const char *model_type);

/**
 * A key that has two names in a class, `other` being the newer or the older one: *ret_key is the one that the file
 * has. TT_EDATA if it has both, and they differ.
 */
int tt_hf_alias(const json_t *config, const char *key, const char *other, const char *where,
                const char **ret_key) TT_MUST_CHECK;

/**
 * A positive integer; absent: `absent`, or an error when that is 0. A null counts as absent where that is 0, which
 * then is the value; where the class has a number, it is an error, as in transformers.
 */
int tt_hf_int(const json_t *config, const char *key, int64_t absent, const char *where,
              int64_t *ret_value) TT_MUST_CHECK;

/** The same of an integer that may be 0. */
int tt_hf_count(const json_t *config, const char *key, int64_t absent, const char *where,
                int64_t *ret_value) TT_MUST_CHECK;

/** A number; absent or null: `absent`. A boolean; absent: `absent`, and null is false, as in transformers. */
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

/**
 * Refuses keys that the class does not read if they change what a model computes, by hf_keys.def (a note lists those
 * that are not in it), and what changes the computation in every architecture: quantized weights, dropout.
 */
int tt_hf_check(const json_t *config, const char *where) TT_MUST_CHECK;

/**
 * The sizes whose keys are Llama's, the epsilon, whether the head is tied, and RoPE. dims: those of the class, which
 * the file's replace.
 */
int tt_hf_sizes(const json_t *config, const char *where, struct tt_model_dims *dims) TT_MUST_CHECK;

/**
 * sliding_window and the layers that have it, of the classes that have windows (Mistral's, Mixtral's, Qwen3's); of
 * others it is refused. dims->n_layers must be known.
 */
int tt_hf_windows(const json_t *config, const char *where, struct tt_model_dims *dims) TT_MUST_CHECK;

/**
 * The sizes of experts: their number (num_experts or num_local_experts), num_experts_per_tok,
 * and of Qwen3's class the key of their width, norm_topk_prob, decoder_sparse_step and mlp_only_layers.
 * ret_dims: those of the class; n_layers must be known.
 * width_key NULL: Mixtral's, whose experts are as wide as the feed-forward, and whose gates are normalized.
 */
int tt_hf_experts(const json_t *config, const char *width_key, const char *where,
                  struct tt_model_dims *ret_dims) TT_MUST_CHECK;

/** A note if transformers would add a balance loss in training; the model itself is the same. */
int tt_hf_router_logits(const json_t *config, const char *where) TT_MUST_CHECK;

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

/** The number that a person writes for a float32: 1e-5, not the double 9.999999747378752e-6 nearest to it. */
double tt_hf_decimal(float value);

#endif
