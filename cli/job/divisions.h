/* SPDX-License-Identifier: MIT */
#ifndef TT_JOB_DIVISIONS_H
#define TT_JOB_DIVISIONS_H

#include "core/config/config.h"
#include "core/models/model.h"

/**
 * Whether a layer of the model can be divided as tensor_parallel_degree and exact_tensor_parallel_degree say. It has as
 * many grains as the larger of the two. Heads, key/value heads, the feed-forward width and the tokens of a microbatch
 * must be multiples of the grains; of the vocabulary each grain must have a row. Layers of experts cannot be divided.
 * Needs no ranks.
 * Errors: TT_EUSAGE, about the key of the larger degree, with the degrees that work.
 */
int tt_job_check_divisions(const struct tt_config *cfg, const struct tt_model *model) TT_MUST_CHECK;

#endif
