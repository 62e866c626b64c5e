/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_HF_ADAPTER_H
#define TT_CHECKPOINT_HF_ADAPTER_H

#include "checkpoint/load/source.h"
#include "checkpoint/tools/output.h"
#include "core/base/error.h"
#include "core/models/model.h"

/**
 * Writes adapter_config.json, with which PEFT loads the adapters of a model, into an output. Its base model is the
 * folder or checkpoint that the run of the source began from, if that is known.
 */
int tt_hf_adapter_config(const struct tt_output *output, const struct tt_source *source,
                         const struct tt_model *model) TT_MUST_CHECK;

#endif
