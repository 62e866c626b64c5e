/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_SCAN_H
#define TT_CHECKPOINT_DCP_SCAN_H

#include <stdbool.h>

#include "checkpoint/format/manifest.h"
#include "core/base/error.h"

/** The file that makes a folder a PyTorch checkpoint. */
#define TT_DCP_METADATA ".metadata"

/**
 * Describes a folder of PyTorch's torch.distributed.checkpoint as a manifest: tensors of the model and the optimizer
 * under titan's names, with the bytes of the files that hold each piece, and their CRC-32 where PyTorch has computed
 * it. The meta of the manifest has what the checkpoint says of the run:
 *
 *     {"step", "ntokens_seen", "optimizer_step", "lr_step",   if it says the step
 *      "torch": {"other": ["dataloader.dp_rank_0", …],        keys that titan does not use
 *                "beside": ["ema.norm.weight", …],            names of tensors outside of the model
 *                "unread": [{"key", "group", "why"}, …]}}     what is intact, but has a form that titan does not read
 *
 * Reads the metadata and the directory of every piece, but not the values. TT_EDATA says what is wrong; ret_kind (may
 * be NULL) gets the kind of fault, as in tt_source_check_file. Coverage is not checked.
 */
int tt_dcp_scan(const char *path, struct tt_manifest *ret_manifest, const char **ret_kind) TT_MUST_CHECK;

#endif
