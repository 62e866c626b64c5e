/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_WRITER_H
#define TT_CHECKPOINT_SAVE_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A thread that writes during training, and the memory that it writes from. It is created once, before training, and
 * touches the memory then, since the first touch costs ten times the copy. It does one job at a time and never
 * communicates.
 *
 * It runs at the lowest priority, so that it uses only cores that the step leaves idle.
 */
struct tt_ckpt_writer;

/** bytes: the size of the staging memory; may be 0. TT_EFIT if the system cannot provide it. */
int tt_ckpt_writer_new(int64_t bytes, struct tt_ckpt_writer **ret_writer) TT_MUST_CHECK;

/** Waits for work under way. NULL is allowed. */
void tt_ckpt_writer_free(struct tt_ckpt_writer *writer);

/** The staging memory, aligned to pages; untouched by the writer itself. */
char *tt_ckpt_writer_staging(const struct tt_ckpt_writer *writer, int64_t *ret_bytes);

/** Hands over work, which returns 0 or a negative code with its message. No work may be under way. */
void tt_ckpt_writer_start(struct tt_ckpt_writer *writer, int (*work)(void *arg), void *arg);

/** Whether there is no work under way. */
bool tt_ckpt_writer_is_idle(struct tt_ckpt_writer *writer);

/**
 * Waits until no work is under way. Returns the result of the last work, once; its error message becomes the caller's.
 */
int tt_ckpt_writer_wait(struct tt_ckpt_writer *writer) TT_MUST_CHECK;

#endif
