/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_STATS_H
#define TT_CHECKPOINT_FORMAT_STATS_H

#include "checkpoint/load/source.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Statistics of one tensor, in one streaming pass: {"min", "max", "mean", "rms", "nonfinite"}; the first four are of
 * the finite values, null when there are none. All are null for types whose values titan cannot read. done and total:
 * elements, for tt_progress.
 */
int tt_ckpt_stats(struct tt_source *source, const struct tt_manifest_tensor *tensor, double *done, double total,
                  json_t **ret_json) TT_MUST_CHECK;

#endif
