/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_HF_H
#define TT_MODELS_HF_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/models/model.h"

/**
 * Reads the parts of Hugging Face's config.json that all architectures share. `where` is the file's path for messages.
 * A null member counts as absent. Every failure is TT_EDATA naming the file and the key.
 */

/** A class of transformers: one model_type, which a family reads and writes. */
struct tt_hf_class {
    const char *type;          /* config.json's model_type */
    const char *architecture;  /* the name of the class, which config.json contains too */
    const char *copy;          /* another model_type, for folders with a copy of the class's code; may be NULL */
    const char *within;        /* the model_type of models that contain one of this class; may be NULL */
    const char *reads;         /* its keys: words of hf_keys.def, and names of keys that no word includes or knows */
    struct tt_model_dims dims; /* if the file does not say; a size of 0 follows from others, or the file must say */
    const char *eps;           /* the key of norm_eps; NULL: rms_norm_eps */
    double rotated;            /* the part of each head that is rotated, if the file says nothing; 0: all, always */
    const char *theta_key, *rotated_key; /* further names of rope_theta and partial_rotary_factor; may be NULL */
    /* The layers with biases if attention_bias is true; NONE: the key must then agree with the family. */
    enum { TT_HF_BIAS_NONE, TT_HF_BIAS_IGNORED, TT_HF_BIAS_QKV, TT_HF_BIAS_ALL } attention_bias;
    bool gelu_is_tanh; /* its hidden_act "gelu" is the tanh form as well */
    bool mlp_bias;     /* the key mlp_bias says whether the feed-forward has biases; else it must be false */
    struct tt_hf_windows {
        int64_t absent; /* the window if the key is absent; 0: none */
        bool any;       /* its layers may have one */
        bool needs_use; /* it counts only if use_sliding_window is true */
        bool by_layers; /* as layer_types says, or layers from max_window_layers on; else all layers */
        int64_t layers; /* max_window_layers, if absent */
        int64_t every;  /* not 0: without layer_types every n-th layer has none */
    } window;
};

/** The class of a model_type, and its family's row; NULL: no family reads it. `copy` counts as its class's own. */
const struct tt_hf_class *tt_hf_find_class(const char *model_type, const struct tt_model_row **ret_row);

/** The class of a config.json; a family must read it. */
const struct tt_hf_class *tt_hf_class(const json_t *config);

/** The class that would ignore or refuse the fewest keys of a config.json of another class, and these keys. */
const struct tt_hf_class *tt_hf_nearest(const json_t *config, const struct tt_model_row **ret_row,
                                        struct tt_text *differences);

/**
 * How a key of config.json sets a member of the dims. The class gives the member's value first, and the file replaces
 * it.
 */
struct tt_hf_key {
    const char *key;
    const char *other; /* the newer or the older name of the same; may be NULL. TT_EDATA if both are there and differ */
    enum {
        TT_HF_SIZE,     /* positive; 0 in the class: the file must have it */
        TT_HF_COUNT,    /* an integer that may be 0 */
        TT_HF_NULLABLE, /* positive, and null is 0 */
        TT_HF_REAL,
        TT_HF_FLOAT,
        TT_HF_TIED, /* a boolean, the member `tied` */
    } kind;
    size_t at;
};
#define TT_HF_KEY(key, other, kind, member)                              \
    {                                                                    \
        key, other, TT_HF_##kind, offsetof(struct tt_model_dims, member) \
    }

/** Reads n such keys. */
int tt_hf_read(const json_t *config, const struct tt_hf_key *keys, size_t n, const char *where,
               struct tt_model_dims *dims) TT_MUST_CHECK;

/**
 * A positive integer; if it is absent: `absent`, or an error if that is 0. A null counts as absent, and gives 0, if
 * `absent` is 0; if the class has a number, it is an error, as in transformers.
 */
int tt_hf_int(const json_t *config, const char *key, int64_t absent, const char *where,
              int64_t *ret_value) TT_MUST_CHECK;

/** A number; absent or null: `absent`. A boolean; absent: `absent`, and null is false, as in transformers. */
int tt_hf_real(const json_t *config, const char *key, double absent, const char *where,
               double *ret_value) TT_MUST_CHECK;
int tt_hf_bool(const json_t *config, const char *key, bool absent, const char *where, bool *ret_value) TT_MUST_CHECK;

/** A number that has two names, of which `other` may be NULL; TT_EDATA if both are there and differ. */
int tt_hf_either(const json_t *config, const char *key, const char *other, double absent, const char *where,
                 double *ret_value) TT_MUST_CHECK;

/** A string member that must be `wanted` if it is present. */
int tt_hf_must_be(const json_t *config, const char *key, const char *wanted, const char *where) TT_MUST_CHECK;

/** A member that must name the activation if it is present, in one of transformers' spellings. */
int tt_hf_must_be_activation(const json_t *config, const char *key, enum tt_activation activation,
                             const char *where) TT_MUST_CHECK;

/** A new string: the activation's name. */
json_t *tt_hf_activation(enum tt_activation activation);

/** A boolean member that must be `wanted` if it is present: titan builds the model in this way only. */
int tt_hf_must_be_flag(const json_t *config, const char *key, bool wanted, const char *where) TT_MUST_CHECK;

/** A number that must be `wanted` if it is present. */
int tt_hf_must_equal(const json_t *config, const char *key, double wanted, const char *where) TT_MUST_CHECK;

/** A member that is not null, or NULL. */
static inline const json_t *tt_hf_member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

/**
 * RoPE (hf_rope.c): types default, llama3, yarn, longrope, linear and dynamic. dims: the class's, which may include
 * scaling if the file says nothing about RoPE (gpt-oss); the file's scaling replaces it. The sizes of heads must
 * already be the file's.
 */
int tt_hf_read_rope(const json_t *config, const char *where, struct tt_model_dims *dims) TT_MUST_CHECK;

/** The reverse, in the spelling of transformers 4, which 5 converts: an object, or null. */
json_t *tt_hf_rope_scaling(const struct tt_model_dims *dims);

/** The part of each head that is rotated, multiplied out as in transformers. */
double tt_hf_rotated(const struct tt_model_dims *dims);

/** In the spelling of transformers 5, for classes in which layers with a window have their own RoPE. */
void tt_hf_write_ropes(json_t *config, const struct tt_model_dims *dims);

/**
 * Reads the sizes that have Llama's keys, the epsilon, whether the head is tied, and RoPE. dims: the class's; the
 * file's values replace them.
 */
int tt_hf_sizes(const json_t *config, const char *where, struct tt_model_dims *dims) TT_MUST_CHECK;

/**
 * Reads the dims of a config.json, one of whose class a family reads. Refuses keys that the class does not read if,
 * according to hf_keys.def, they change a model's results (a note lists keys that are not in it), and features that
 * change the computation in every architecture: quantized weights, dropout.
 */
int tt_hf_read_dims(const json_t *config, const char *where, struct tt_model_dims *ret_dims) TT_MUST_CHECK;

/** The layers whose element in a list of n meets `is_in`; TT_EDATA: sets of layers cannot express it. */
int tt_hf_layers(const json_t *list, int64_t n, bool (*is_in)(const json_t *member), const char *key, const char *where,
                 struct tt_layers *ret_layers) TT_MUST_CHECK;

/** For classes in which only layers with a window have RoPE: sets dims->unrotated by the windows. Errors as above. */
int tt_hf_rotate_windows(const char *where, struct tt_model_dims *dims) TT_MUST_CHECK;

/** Prints a note if transformers would apply dropout in training, by any of these keys; NULL ends them. */
int tt_hf_note_dropout(const json_t *config, const char *const *keys, const char *where) TT_MUST_CHECK;

/** Prints a note if transformers would add a balance loss in training; the model itself is the same. */
int tt_hf_router_logits(const json_t *config, const char *where) TT_MUST_CHECK;

/** A float as the shortest decimal that reads back as the same float: 1e-05, not 9.9999997e-06. */
json_t *tt_hf_float(float value);

/** The number that a person writes for a float32: 1e-5, not the double 9.999999747378752e-6 nearest to it. */
double tt_hf_decimal(float value);

#endif
