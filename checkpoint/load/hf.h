/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_HF_H
#define TT_CHECKPOINT_LOAD_HF_H

#include "checkpoint/format/state.h"
#include "core/comm/comm.h"
#include "core/models/model.h"

struct tt_words;

/** Deviations from the model that a run accepts. */
struct tt_hf_options {
    const struct tt_words *leave_out; /* regular expressions; matching tensors may stay unused; NULL: none */
    bool adapters;                    /* the folder is PEFT's, and only adapters are loaded; without it they are not */
    bool extend_vocabulary;           /* embedding and output may lack rows; these become the mean of the others */
};

/**
 * Loads the weights of a Hugging Face folder (model.safetensors, or shards) or of a GGUF file into this rank's rows of
 * a model (collective).
 *   state   its model chunks are the model's parameters, in the model's order
 * The model's parameters (hf_name, hf_transform) map names and layouts; dtypes are converted. Adapters keep their
 * values, unless the folder has only these.
 * options: may be NULL.
 * Errors: TT_EDATA naming a missing tensor, a tensor that is not the model's (tt_weights_import), a tensor of another
 * shape, with both shapes, or a tied lm_head that differs.
 */
int tt_hf_load(struct tt_comm *comm, const char *folder, const struct tt_hf_options *options,
               const struct tt_model *model, const struct tt_ckpt_state *state) TT_MUST_CHECK;

/** Checks that tt_hf_load would find the weights of the model in the folder. Errors: as tt_hf_load. Reads no weights,
 * except to compare a tied model's lm_head with the embedding. Not collective. */
int tt_hf_examine(const char *folder, const struct tt_hf_options *options, const struct tt_model *model) TT_MUST_CHECK;

#endif
