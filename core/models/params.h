/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_PARAMS_H
#define TT_MODELS_PARAMS_H

#include "core/models/model.h"

/**
 * What add_params of the models is written with. Room for all parameters (model->params) is made beforehand. Names are
 * inside of block `block`: "layers.<block>." goes in front of ours, the row's hf_blocks and the number in front of
 * theirs; outside of the blocks (TT_BLOCK_*) they are whole.
 */
struct tt_normal {
    double std, cut, depth; /* as in struct tt_param; where depth is given, std follows from it */
};

struct tt_param *tt_params_matrix(struct tt_model *model, int block, const char *name, const char *hf_name,
                                  int64_t rows, int64_t columns, struct tt_normal normal);

/** A vector of one value. */
struct tt_param *tt_params_vector(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n,
                                  enum tt_param_init init);

#endif
