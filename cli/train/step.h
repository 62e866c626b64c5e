/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_STEP_H
#define TT_CLI_TRAIN_STEP_H

#include <stdint.h>

#include "cli/train/data/data.h"
#include "cli/train/progress.h"
#include "cli/train/setup.h"
#include "parallel/engine/engine.h"

/** One training step: the batch, and the engine's step with the optimizer's values from the configuration. */

/* What a completed step gives to the report. */
struct tt_train_step {
    struct tt_step step;
    int64_t local_valid; /* tokens of this rank that have a label */
    struct tt_span load; /* from the start of loading until all ranks have their batch */
    double data_sec;     /* this rank's own part of that, in seconds */
};

/** The scalars of update number `update`, counted from 1, with this learning rate and number of valid tokens. */
struct tt_step tt_train_step_of(const struct tt_config *cfg, double lr, int64_t update, int64_t valid_tokens);

/**
 * Loads the next batch, trains one step on it, and advances `at`, the progress of the run. Collective.
 *   asked_to_stop  as in struct tt_step; NULL: the step is not given up in its middle
 *   tick           the same; NULL: nobody looks
 * TT_ESTOPPED or TT_EINTERRUPTED if the step was given up, which changes nothing; TT_EDATA if no token has a label.
 */
int tt_train_step(const struct tt_setup *s, struct tt_train_data *data, int (*asked_to_stop)(void),
                  const struct tt_tick *tick, struct tt_train_progress *at,
                  struct tt_train_step *ret_done) TT_MUST_CHECK;

#endif
