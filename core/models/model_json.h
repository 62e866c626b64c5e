/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_MODEL_JSON_H
#define TT_MODELS_MODEL_JSON_H

#include <stddef.h>

#include "core/base/error.h"
#include "core/models/model.h"

/**
 * model.json, a file in a checkpoint's assets/ with the model's name and every size, so that the checkpoint alone is
 * enough to build the model again (to generate, evaluate and export), independently of the configuration.
 *
 *     {"name": "llama3", "flavor": "debugmodel", "dim": 256, …, "rope_scaling": {"factor": 8.0, …}}
 *
 * The keys are the same as in the configuration's section `model`; without scaling, there is no rope_scaling.
 */

/** The text; the caller frees. */
char *tt_model_json_text(const struct tt_model *model);

/**
 * Loads the model of a model.json; the caller frees it (tt_model_free). TT_EDATA naming file and key when it is not a
 * model.json, or its model is unknown to this version of titan.
 */
int tt_model_json_load(const char *path, struct tt_model **ret_model) TT_MUST_CHECK;

/** The same from its text; `where` names the source in messages. */
int tt_model_json_parse(const char *text, size_t size, const char *where, struct tt_model **ret_model) TT_MUST_CHECK;

#endif
