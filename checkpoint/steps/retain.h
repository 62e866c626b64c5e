/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_RETAIN_H
#define TT_CHECKPOINT_STEPS_RETAIN_H

#include <stdint.h>

#include "checkpoint/save/writer.h"
#include "checkpoint/steps/store.h"
#include "core/base/error.h"

/**
 * Removes old steps (rank 0, after a commit). Keeps `just_saved` and the newest good steps before it, `keep` in total;
 * 0 keeps all. Some steps are neither counted nor removed: damaged ones, those that cannot be read at the moment, newer
 * ones (which a user put there) and those that were set aside. Failures are warnings. If an idle writer is given, its
 * thread does the work during training, since freeing the blocks of a large checkpoint takes the disk some time.
 */
void tt_ckpt_retain(struct tt_ckpt_store *store, int64_t just_saved, int keep, struct tt_ckpt_writer *writer);

/** Waits for the thread of the last retention, if it had one. Its writer must still exist. */
int tt_ckpt_retain_wait(struct tt_ckpt_store *store) TT_MUST_CHECK;

#endif
