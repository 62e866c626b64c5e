/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_PARAMS_H
#define TT_MODELS_PARAMS_H

#include "core/models/model.h"

/**
 * Functions for writing a model's add_params. What they return is valid until the next call, because model->params may
 * move. In block `block`, names are relative: titan's get the prefix "layers.<block>.", and Hugging Face's the row's
 * hf_blocks and the number. Outside of the blocks (TT_BLOCK_*) names are complete.
 */
struct tt_normal {
    double std, cut, depth; /* as in struct tt_param; if depth is given, std follows from it */
};

struct tt_param *tt_params_matrix(struct tt_model *model, int block, const char *name, const char *hf_name,
                                  int64_t rows, int64_t columns, struct tt_normal normal);

/** The matrices (rows, columns) of `experts` experts in one tensor; hf_name has a * for an expert's number. */
struct tt_param *tt_params_experts(struct tt_model *model, int block, const char *name, const char *hf_name,
                                   int64_t experts, int64_t rows, int64_t columns, struct tt_normal normal);

/** A vector with all elements equal. */
struct tt_param *tt_params_vector(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n,
                                  enum tt_param_init init);

/** A vector of zeros that is a buffer. hf_name NULL: Hugging Face's class does not have it. */
struct tt_param *tt_params_buffer(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n);

#endif
