/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_STEP_H
#define TT_TRAINER_STEP_STEP_H

#include <stdint.h>

#include "core/base/json.h"
#include "parallel/engine/engine.h"
#include "trainer/data/data.h"
#include "trainer/job/setup.h"

/** How far a run has come; saved in checkpoints. */
struct tt_train_progress {
    int64_t step;          /* steps done */
    int64_t sample_cursor; /* samples consumed: the loader's whole state */
    int64_t ntokens_seen;
    int64_t optimizer_step; /* updates of the moments, for Adam's bias correction */
    int64_t lr_step;        /* steps of the schedule done */
};

/** The last step of training: the one after which training.epochs have no further batch; without that key
 * training.steps, or an earlier one after which data that does not repeat has no further batch. */
int64_t tt_train_progress_last_step(const struct tt_train_progress *progress, const struct tt_setup *setup,
                                    const struct tt_train_data *data);

/** Training may end with the data, but not before its first step: TT_EDATA. */
int tt_train_progress_check(const struct tt_train_progress *progress, const struct tt_setup *setup,
                            const struct tt_train_data *data) TT_MUST_CHECK;

/** With training.epochs, sets training.steps of the configuration to the last step, since the schedule and the
 * reports depend on it. Does nothing if there is no step at all. */
void tt_train_progress_count_steps(const struct tt_train_progress *progress, const struct tt_setup *setup,
                                   const struct tt_train_data *data);

/**
 * All members, as the description of a manifest has them; json_decref. restore reads the members that `skip`
 * (TT_SKIP_*) does not exclude; the others become 0. TT_EDATA if one is missing.
 */
json_t *tt_train_progress_json(const struct tt_train_progress *progress);
int tt_train_progress_restore(const json_t *meta, unsigned skip, struct tt_train_progress *ret_progress) TT_MUST_CHECK;

/* --- a step --- */

/** One training step: the batch, and the engine's step with the optimizer's values from the configuration. */

/* The results of a completed step, for the report. */
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
