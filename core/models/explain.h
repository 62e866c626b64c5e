/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_EXPLAIN_H
#define TT_MODELS_EXPLAIN_H

#include "core/base/text.h"
#include "core/models/model.h"

/** Adds the description of a model in lines: the parts of its blocks, and its parameters. */
void tt_model_explain(const struct tt_model *model, struct tt_text *text);

#endif
