/* SPDX-License-Identifier: MIT */
#ifndef TT_JOB_SYNC_H
#define TT_JOB_SYNC_H

#include "cli/job/job.h"

/**
 * training.gradient_sync: when shard ranks reduce gradients, and what `auto` means.
 */
enum tt_reduce_when tt_job_reduce_when(enum tt_sync_choice sync);
enum tt_sync_choice tt_job_sync_of(enum tt_reduce_when when);

/**
 * Sets job->engine.reduce from a configured gradient_sync. For `auto` a new run chooses. With reduction_order fast that
 * is one reduction at the end of the step, if it fits and backward takes the microbatches in order. Otherwise it is one
 * reduction for each run, if that fits into the memory limit, is predicted to be faster, and gives the bits of
 * every_microbatch; with reduction_order fast the bits do not matter. *ret_why, the caller's, says in words
 * what was chosen and why; NULL: it is configured. Not collective; it may plan the step twice. Errors: those of
 * tt_job_engine.
 */
int tt_job_choose_sync(enum tt_sync_choice sync, bool is_fast, struct tt_job *job, char **ret_why) TT_MUST_CHECK;

#endif
