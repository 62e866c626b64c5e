/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_MODEL_HF_SHAPE_H
#define TT_CLUSTER_MODEL_HF_SHAPE_H

#include "cluster/model/job.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * The sizes of a model from Hugging Face's config.json, whatever its architecture, as far as time and memory depend on
 * them: attention with fewer heads for keys and values, latent attention, experts with shared ones and first dense
 * layers. `where` names the file. TT_EDATA: a size is missing, or is not a number above 0.
 */
int tt_cluster_shape_of_hf(const json_t *file, const char *where, struct tt_cluster_shape *ret_shape) TT_MUST_CHECK;

#endif
