/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_VALIDATION_H
#define TT_TRAINER_STEP_VALIDATION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/comm/comm.h"
#include "parallel/engine/engine.h"
#include "trainer/data/data.h"
#include "trainer/job/setup.h"

/**
 * The mean loss over the first samples of a dataset, in file order, computed by the engine's validation program, for
 * training and for `titan eval`. Ranks with different samples divide the batches among them.
 */
struct tt_validation {
    struct tt_engine *engine; /* its validation program has this batch and the data's seq_len */
    struct tt_train_data *data;
    int64_t batch;
    int64_t samples;      /* number of samples to use; at most an epoch */
    const char *progress; /* the text of rank 0's progress line; NULL: none */

    /* as in struct tt_step, but also called before every round; NULL: the validation always runs to its end */
    int (*asked_to_stop)(void);
    double long_sec; /* a round that takes longer than this, in seconds, may be abandoned before its end */
    bool is_long;    /* treat the first round as long */
};

struct tt_validation_result {
    double loss; /* mean over the tokens with a label; 0 if there are none */
    int64_t tokens, samples;
    double seconds;
};

/**
 * The number of samples that a validation uses: validation.steps batches (of all ranks together), or all of the data.
 * It does not depend on the number of ranks.
 */
int64_t tt_validation_samples(const struct tt_config *cfg, const struct tt_train_data *data);

/**
 * Collective. The sum is exact, so the loss does not depend on the number of ranks. TT_ESTOPPED or TT_EINTERRUPTED if
 * the validation was abandoned, which changes nothing.
 */
int tt_validation_run(struct tt_comm *comm, const struct tt_validation *validation,
                      struct tt_validation_result *ret_result) TT_MUST_CHECK;

/* --- during training --- */

/** Validation during training: the mean loss of each set over validation.steps batches, or over the whole set. */
struct tt_validator {
    const struct tt_setup *setup;
    int n; /* number of sets; 0 unless validation.enable */
    struct tt_train_data *set;
    struct tt_validation_result *found; /* [n] the results of the last run */
    const char **name;                  /* [n] NULL: the set is not in a list */
};

/** Opens the validation data, if validation.enable. The set-up must outlive the validator. Collective. */
int tt_validator_open(const struct tt_setup *setup, struct tt_validator *ret_validator) TT_MUST_CHECK;
void tt_validator_release(struct tt_validator *validator);

/**
 * Runs the engine's validation program on every set and averages over all ranks. It is abandoned if a rank is asked to
 * stop (tt_validation_run). Collective.
 *   long_sec, is_long, progress  as in struct tt_validation
 */
int tt_validator_run(struct tt_validator *validator, int (*asked_to_stop)(void), double long_sec, bool is_long,
                     const char *progress) TT_MUST_CHECK;

#endif
