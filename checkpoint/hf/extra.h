/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_HF_EXTRA_H
#define TT_CHECKPOINT_HF_EXTRA_H

#include "checkpoint/load/source.h"
#include "core/base/error.h"
#include "core/models/model.h"

/** Tensors of Hugging Face files that a model has no place for. */

/**
 * TT_EDATA names a tensor that the model has no place for, and says what to do. Without an error: constants that follow
 * from the sizes, a tied head, and, with a note, parts beside the language model (vision towers, layers that predict
 * further tokens, other heads) and tensors that an expression of source->leave_out selects. TT_EUSAGE names an
 * expression that selects none. refuse false: the note names the other ones too.
 */
int tt_hf_check_extra(const struct tt_source *source, const struct tt_model *model, bool refuse) TT_MUST_CHECK;

/** The same of a checkpoint with titan's names. */
int tt_titan_check_extra(const struct tt_source *source, const struct tt_model *model) TT_MUST_CHECK;

#endif
