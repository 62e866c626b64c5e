/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_STEP_H
#define TT_TRAINER_STEP_STEP_H

#include <stdint.h>

#include "core/base/json.h"
#include "core/optim/lr.h"
#include "parallel/engine/engine.h"
#include "trainer/data/data.h"
#include "trainer/job/setup.h"

/** The progress of a run, which checkpoints contain. */
struct tt_train_progress {
    int64_t step;          /* number of steps done */
    int64_t sample_cursor; /* number of samples consumed: the whole state of the loader */
    int64_t ntokens_seen;
    int64_t optimizer_step; /* number of updates of the moments, for Adam's bias correction */
    int64_t lr_step;        /* number of steps of the schedule done */
    double trained_sec;     /* time of training, without pauses between processes */
    /* the decisions about the last step, with lr_scheduler.finish_by; those of lr_scheduler.ends; otherwise none */
    struct tt_lr_ends ends;
};

/**
 * The last step that the configuration and the data allow. With training.epochs, it is the step with the last batch of
 * the epochs; otherwise training.steps, or an earlier step with the last batch of data that does not repeat.
 */
int64_t tt_train_progress_most_steps(const struct tt_train_progress *progress, const struct tt_setup *setup,
                                     const struct tt_train_data *data);

/** The last step of training: the same, or an earlier step if the progress says so (`ends`). */
int64_t tt_train_progress_last_step(const struct tt_train_progress *progress, const struct tt_setup *setup,
                                    const struct tt_train_data *data);

/** Checks that the data suffices for a first step (TT_EDATA); later, training may end where the data ends. */
int tt_train_progress_check(const struct tt_train_progress *progress, const struct tt_setup *setup,
                            const struct tt_train_data *data) TT_MUST_CHECK;

/**
 * With training.epochs, sets training.steps of the configuration to the last step, since the schedule and the reports
 * depend on it, unless there is no step at all. Fills in `ends` of a run that begins.
 */
void tt_train_progress_count_steps(struct tt_train_progress *progress, const struct tt_setup *setup,
                                   const struct tt_train_data *data);

/**
 * All members, in the form that the meta of a manifest contains; free it with json_decref. tt_train_progress_restore
 * reads the members that `skip` (TT_SKIP_*) does not exclude, and sets the others to 0. Reads `ends` only if the
 * configuration asks for decisions about the last step. TT_EDATA if a member is missing.
 */
json_t *tt_train_progress_json(const struct tt_train_progress *progress);
int tt_train_progress_restore(const struct tt_config *cfg, const json_t *meta, unsigned skip,
                              struct tt_train_progress *ret_progress) TT_MUST_CHECK;

/* --- a step --- */

/** One training step: the batch, and the engine's step with the optimizer's values from the configuration. */

/* The results of a completed step, for the report. */
struct tt_train_step {
    struct tt_step step;
    int64_t local_valid; /* number of tokens with a label on this rank */
    struct tt_span load; /* seconds from the start of loading until all ranks have their batch */
    double data_sec;     /* seconds of loading on this rank itself */
};

/** The scalars of update number `update`, counted from 1, with this learning rate and number of valid tokens. */
struct tt_step tt_train_step_of(const struct tt_config *cfg, double lr, int64_t update, int64_t valid_tokens);

/**
 * Loads the next batch, trains one step on it, and advances `at`, the progress of the run. Collective.
 *   asked_to_stop  as in struct tt_step; NULL: the step always runs to its end
 *   tick           as in struct tt_step; NULL: no tick
 * TT_ESTOPPED or TT_EINTERRUPTED if the step was abandoned, which changes nothing; TT_EDATA if no token has a label.
 */
int tt_train_step(const struct tt_setup *s, struct tt_train_data *data, int (*asked_to_stop)(void),
                  const struct tt_tick *tick, struct tt_train_progress *at,
                  struct tt_train_step *ret_done) TT_MUST_CHECK;

#endif
