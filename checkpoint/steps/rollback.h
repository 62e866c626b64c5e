/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_ROLLBACK_H
#define TT_CHECKPOINT_STEPS_ROLLBACK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Goes back to a step of a run: sets the newer ones aside (checkpoint/steps/aside.h), newest first, so that the next
 * start resumes from it. The step's manifest and the sizes of its files must be good; the newer steps are not read. The
 * folder is locked meanwhile: TT_EUSAGE when a job is writing there. TT_EDATA: no such step, or a damaged one.
 *
 * {"folder", "step", "dry_run", "set_aside": [{"step", "name": "step-60.abandoned-…"}]}
 */
int tt_ckpt_rollback(const char *path, int64_t step, bool dry_run, json_t **ret_json) TT_MUST_CHECK;

#endif
