/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_LORA_H
#define TT_MODELS_LORA_H

#include "core/models/model.h"

/**
 * Low-rank adapters (Hu et al. 2022). A linear layer with weight W, which is frozen, gets two small matrices that are
 * trained: y = x W^T + (alpha / rank) (x A^T) B^T, with A (rank, in) and B (out, rank). B is 0 at first, so training
 * begins with the model as it was.
 */

/** The linear layers that may have an adapter, by their names in Hugging Face's models. */
extern const char *const tt_lora_modules[];
extern const int tt_lora_n_modules;

/** The bit of a module in tt_lora.modules; 0: there is none of that name. */
unsigned tt_lora_module(const char *name);

/**
 * Freezes all parameters of the model and inserts an adapter, A and B, after each weight of dims.lora.modules. Does
 * nothing if dims.lora.rank is 0.
 */
void tt_lora_add(struct tt_model *model);

/** Whether a tensor has the name of a matrix of an adapter, titan's or PEFT's. */
bool tt_lora_is_name(const char *name);

/** What the product of A and B is multiplied by. */
static inline double tt_lora_scale(const struct tt_lora *lora)
{
    return lora->alpha / (double)lora->rank;
}

#endif
