/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_GC_H
#define TT_CHECKPOINT_STEPS_GC_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Cleans a checkpoint folder: removes what killed jobs of any run left, and good steps older than the newest `keep`.
 *   keep       0: all; negative: checkpoint.keep_latest_k of the run that saved the newest good step
 *   abandoned also removes steps that were set aside (checkpoint/steps/aside.h)
 *   dry_run only reports what would be removed
 *
 * A step is renamed before it is removed, so that it is never seen half removed. Damaged steps are neither counted nor
 * removed, so the only good one always stays. A step that cannot be read at the moment is an error. The folder is
 * locked meanwhile: TT_EUSAGE when a job is writing there.
 *
 * {"folder", "dry_run", "keep", "removed": [{"name", "kind": "step" | "leftover" | "restored" | "abandoned" |
 *  "damaged", "bytes"}], "bytes",
 *  "kept": [step, …], "damaged": [step, …]}; restored: a step that a killed save had renamed is back in its place.
 */
int tt_ckpt_gc(const char *path, int64_t keep, bool abandoned, bool dry_run, json_t **ret_json) TT_MUST_CHECK;

#endif
