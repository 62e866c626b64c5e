/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_PARTS_MLA_H
#define TT_MODELS_PARTS_MLA_H

#include "core/models/build.h"
#include "core/models/params.h"

/**
 * Multi-head latent attention (struct tt_mla): what takes the place of wq, wk, wv and attention in a decoder's block.
 */

/** Adds the parameters of block l. `deep`: the init rule of wo. */
void tt_mla_params(struct tt_model *model, int l, struct tt_normal deep);

/**
 * What attention makes of x (N, D), from the heads of queries to wo. In a decode graph the only cache has the latents
 * with the rotated keys, and the heads' part of wkv_b is applied to queries and results instead of to every latent.
 */
int tt_mla_build(struct tt_build *b, int x);

#endif
