/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_LEFTOVER_H
#define TT_CHECKPOINT_STEPS_LEFTOVER_H

#include <stdbool.h>
#include <stdint.h>

/**
 * Hidden folders of a checkpoint folder: .tmp-step-N-RUN (being written), .old-step-N-RUN (being replaced),
 * .trash-step-N-RUN (being removed), and in a step .tmp-hf-RANDOM, .old-hf-RANDOM. If no job holds the lock, a killed
 * job has left them.
 */
bool tt_leftover_is(const char *name);

/** The same, but only for steps, not for exports. */
bool tt_leftover_is_step(const char *name);

/** "temporary", "replaced" or "trash"; static. */
const char *tt_leftover_kind(const char *name);

/** For a replaced folder, the original path in parent; NULL for others. The caller frees. */
char *tt_leftover_home(const char *parent, const char *name);

/** Bytes of the files below a folder, as far as they can be read. */
int64_t tt_leftover_bytes(const char *folder);

#endif
