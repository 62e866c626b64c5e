/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_STEP_H
#define TT_CLI_TRAIN_STEP_H

#include <stdint.h>

#include "cli/train/data/data.h"
#include "cli/train/progress.h"
#include "cli/train/setup.h"
#include "parallel/engine/engine.h"

/** One training step: the batch, and the engine's step with what the configuration says of the optimizer. */

/* A step that was done. */
struct tt_train_step {
    struct tt_step step;
    int64_t local_valid; /* tokens of this rank whose label counts */
    struct tt_span load; /* loading the batch, up to the moment that all ranks have theirs */
    double data_sec;     /* this rank's part of it */
};

/** The scalars of update number `update`, counted from 1, with this learning rate and number of valid tokens. */
struct tt_step tt_train_step_of(const struct tt_config *cfg, double lr, int64_t update, int64_t valid_tokens);

/**
 * Loads the next batch, trains one step on it, and advances `at`, the progress of the run. Collective.
 *   asked_to_stop  as in struct tt_step: the step may be given up in its middle; NULL: it may not
 * TT_ESTOPPED or TT_EINTERRUPTED when it was given up: nothing has changed then.
 */
int tt_train_step(const struct tt_setup *s, struct tt_train_data *data, int (*asked_to_stop)(void),
                  struct tt_train_progress *at, struct tt_train_step *ret_done) TT_MUST_CHECK;

#endif
