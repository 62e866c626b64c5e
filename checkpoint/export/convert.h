/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_CONVERT_H
#define TT_CHECKPOINT_EXPORT_CONVERT_H

#include "checkpoint/export/consolidate.h"

/**
 * Converts between Hugging Face folders and titan checkpoints; the source decides the direction. A Hugging Face folder
 * (config.json, *.safetensors) becomes a step: model/, assets/ and a manifest with checksums, step 0, without optimizer
 * state. So does a folder of PyTorch's, whose model options->told names. A titan checkpoint is exported as by
 * tt_ckpt_consolidate with TT_FORMAT_HF. With TT_FORMAT_DCP anything becomes a folder of PyTorch's, with the
 * optimizer's state and the step if the source has them.
 *
 * Other formats are ignored; only an export uses max_shard_bytes. A config.json of an unknown architecture is TT_EDATA
 * with a list of the known ones. Local, in bounded memory.
 */
int tt_ckpt_convert(const struct tt_consolidate *options, struct tt_consolidated *ret_result) TT_MUST_CHECK;

#endif
