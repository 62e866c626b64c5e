/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_ROWS_H
#define TT_MODELS_ROWS_H

/** The rows of the registry, each defined in the model's own file. */
#include "core/models/model.h"

extern const struct tt_model_row tt_model_llama3;

#endif
