/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_RETAIN_H
#define TT_CHECKPOINT_STEPS_RETAIN_H

#include <stdint.h>

#include "checkpoint/save/writer.h"
#include "checkpoint/steps/store.h"
#include "core/base/error.h"

/**
 * Removes old steps (rank 0, after a commit): keeps `just_saved` and the newest good ones before it, `keep` in all; 0 keeps
 * all. Damaged steps, steps that cannot be read just now, newer ones (somebody put them there) and those that were set aside
 * are neither counted nor removed. Failures are warnings. With a writer, which must be idle, its thread
 * does it while training goes on: giving back the blocks of a large checkpoint takes the disk a while.
 */
void tt_ckpt_retain(struct tt_ckpt_store *store, int64_t just_saved, int keep, struct tt_ckpt_writer *writer);

/** Waits for the thread of the last retention, if it had one. Its writer must be there still. */
int tt_ckpt_retain_wait(struct tt_ckpt_store *store) TT_MUST_CHECK;

#endif
