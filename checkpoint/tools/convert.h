/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_TOOLS_CONVERT_H
#define TT_CHECKPOINT_TOOLS_CONVERT_H

#include "checkpoint/tools/consolidate.h"

/**
 * Conversion between Hugging Face's folders and titan's checkpoints; which way is said by the source. A Hugging Face folder
 * (config.json, *.safetensors) becomes a step: model/, assets/ and a manifest with checksums, step 0, without optimizer
 * state. Anything of titan's is exported as tt_ckpt_consolidate does with TT_FORMAT_HF.
 *
 * options->format is not looked at, max_shard_bytes only by an export. A config.json of another architecture is TT_EDATA
 * listing the known ones. Local, in bounded memory.
 */
int tt_ckpt_convert(const struct tt_consolidate *options, struct tt_consolidated *ret_result) TT_MUST_CHECK;

#endif
