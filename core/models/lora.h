/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_LORA_H
#define TT_MODELS_LORA_H

#include <math.h>

#include "core/models/model.h"

/**
 * Low-rank adapters (Hu et al. 2022). A linear layer with a frozen weight W gets two small trained matrices:
 * y = x W^T + s (x A^T) B^T, with A (rank, in), B (out, rank) and a factor s (tt_lora_scale). B is 0 at first, so
 * training begins with the unchanged model.
 */

/** The layers that may have an adapter, by their names in most of Hugging Face's models: bits of tt_lora.modules. */
extern const char *const tt_lora_modules[];
extern const int tt_lora_n_modules;

/**
 * The bits of a layer, by any of Hugging Face's names; 0: there is no layer of that name. In some classes, one layer
 * combines several modules (Phi-3's qkv_proj).
 */
unsigned tt_lora_module(const char *name);

/** Hugging Face's names of those layers of a model that have adapters; returns their number. Static. */
enum { TT_LORA_LAYERS = 16 };
int tt_lora_layers(const struct tt_model *model, const char **ret_names);

/**
 * Freezes all parameters of the model and inserts an adapter, A and B, after each weight of dims.lora.modules. Weights
 * that are parts of one tensor in Hugging Face's files share A, as there. The weights of all layers that may have an
 * adapter get dims.lora.packing. Does nothing if dims.lora.rank is 0.
 * TT_EUSAGE: the modules are only some parts of a tensor, or the model has none of them; rows that are not whole blocks
 * of the packing.
 */
int tt_lora_add(struct tt_model *model) TT_MUST_CHECK;

/** Whether a parameter is the weight of a layer that may have an adapter, and so may be packed. */
bool tt_lora_is_layer(const struct tt_param *param);

/** Whether a tensor has the name of a matrix of an adapter, titan's or PEFT's. */
bool tt_lora_is_name(const char *name);

/** The factor of the product of A and B. */
static inline double tt_lora_scale(const struct tt_lora *lora)
{
    return lora->alpha / (lora->rslora ? sqrt((double)lora->rank) : (double)lora->rank);
}

#endif
