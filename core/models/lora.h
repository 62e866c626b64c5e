/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_LORA_H
#define TT_MODELS_LORA_H

#include <math.h>

#include "core/models/model.h"

/**
 * Low-rank adapters (Hu et al. 2022). A linear layer with a frozen weight W gets two small trained matrices:
 * y = x W^T + s (x A^T) B^T, with A (rank, in), B (out, rank) and a factor s (tt_lora_scale). B is 0 at first, so
 * training begins with the unchanged model.
 *
 * With dora (Liu et al. 2024) a row of W + s B A is then divided by its norm and multiplied by a trained magnitude,
 * which is at first the norm of the row of W. Gradients take the norm as a constant.
 */

/** The layers that may have an adapter, by their names in most of Hugging Face's models: bits of tt_lora.modules. */
extern const char *const tt_lora_modules[];
extern const int tt_lora_n_modules;

/**
 * The bits of a layer, by any of Hugging Face's names, or of "all-linear"; 0: there is no layer of that name. In some
 * classes, one layer combines several modules (Phi-3's qkv_proj).
 */
unsigned tt_lora_module(const char *name);

/**
 * Sets the modules and targets of `lora` from words, each of which is one of these:
 *   - a name for tt_lora_module
 *   - the name of a layer, or its end after a dot: "layers.0.attention.wq", "self_attn.q_proj"
 *   - a regular expression that matches the whole name of a layer
 * Names are titan's or Hugging Face's. PEFT reads a list of names, or one expression, in the same way. `lora` does not
 * own the words.
 */
void tt_lora_set_targets(struct tt_lora *lora, const char *const *words, int n);

/**
 * Appends the JSON strings with which PEFT finds the layers of a model that have adapters: what follows the last dot of
 * their names, if these select no other layers, otherwise their whole names.
 */
void tt_lora_peft_targets(const struct tt_model *model, void *array);

/**
 * Freezes all parameters of the model and inserts an adapter, A, B and perhaps magnitudes, after each weight that
 * dims.lora selects. Weights that are parts of one tensor in Hugging Face's files share A, as there. The weights of all
 * layers that may have an adapter get dims.lora.packing. Does nothing if dims.lora.rank is 0.
 * TT_EUSAGE: only some parts of a tensor are selected, or no layer of the model; a target that is a bad expression or
 * selects nothing; rows that are not whole blocks of the packing.
 */
int tt_lora_add(struct tt_model *model) TT_MUST_CHECK;

/* An initial magnitude of DoRA, before tt_magnitudes_start (trainer/start/magnitudes.h) sets it. */
#define TT_LORA_NO_MAGNITUDE (-1.0F)

/** Whether a parameter is the weight of a layer that may have an adapter, and so may be packed. */
bool tt_lora_is_layer(const struct tt_param *param);

/** The factor of the product of A and B. */
static inline double tt_lora_scale(const struct tt_lora *lora)
{
    return lora->alpha / (lora->rslora ? sqrt((double)lora->rank) : (double)lora->rank);
}

#endif
