/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_MODEL_JSON_H
#define TT_MODELS_MODEL_JSON_H

#include "core/base/error.h"
#include "core/models/model.h"

/**
 * model.json, which travels in a checkpoint's assets/: the model's name and every size, so that the checkpoint alone is
 * enough to build the model again (to generate, evaluate and export), whatever configuration made it.
 *
 *     {"name": "llama3", "flavor": "debugmodel", "dim": 256, …, "rope_scaling": {"factor": 8.0, …}}
 *
 * Keys are those of the configuration's section `model`; rope_scaling is missing without scaling.
 */

/** The text; the caller frees. */
char *tt_model_json_text(const struct tt_model *model);

/**
 * The model of a model.json, the caller's (tt_model_free). TT_EDATA naming file and key when it is not one, or is of a
 * model that this titan does not know.
 */
int tt_model_json_load(const char *path, struct tt_model **ret_model) TT_MUST_CHECK;

#endif
