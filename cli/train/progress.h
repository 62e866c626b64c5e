/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_PROGRESS_H
#define TT_CLI_TRAIN_PROGRESS_H

#include <stdint.h>

#include "cli/train/data/data.h"
#include "cli/train/setup.h"
#include "core/base/json.h"

/** How far a run has come. The checkpoint has all of it. */
struct tt_train_progress {
    int64_t step;          /* steps done */
    int64_t sample_cursor; /* samples consumed: the loader's whole state */
    int64_t ntokens_seen;
    int64_t optimizer_step; /* updates of the moments, for Adam's bias correction */
    int64_t lr_step;        /* steps of the schedule done */
};

/** One more step of `samples` sequences of seq_len tokens is done. */
void tt_train_progress_advance(struct tt_train_progress *progress, int64_t samples, int64_t seq_len);

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
 * All members, as the description of a manifest has them; json_decref. restore reads those that `skip` (TT_SKIP_*) does
 * not exclude; the others become 0. TT_EDATA if one is missing.
 */
json_t *tt_train_progress_json(const struct tt_train_progress *progress);
int tt_train_progress_restore(const json_t *meta, unsigned skip, struct tt_train_progress *ret_progress) TT_MUST_CHECK;

#endif
