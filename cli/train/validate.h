/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_VALIDATE_H
#define TT_CLI_TRAIN_VALIDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/run/validation.h"
#include "cli/train/data/data.h"
#include "cli/train/setup.h"

/** Validation during training: of each set, the mean loss over validation.steps batches, or over all of it. */
struct tt_validator {
    const struct tt_setup *setup;
    int n; /* sets; 0 unless validation.enable */
    struct tt_train_data *set;
    struct tt_validation_result *found; /* of each set, by the last run */
    const char **name;                  /* of each set; one that is not in a list has none: NULL */
};

/** Opens the validation data, if validation.enable. The set-up must outlive the validator. Collective. */
int tt_validator_open(const struct tt_setup *setup, struct tt_validator *ret_validator) TT_MUST_CHECK;
void tt_validator_release(struct tt_validator *validator);

/** Whether validation follows this step; `last`: it is the last step. */
bool tt_validator_is_due(const struct tt_validator *validator, int64_t step, bool last);

/**
 * Runs the engine's validation program on every set and averages over all ranks. It is given up if a rank is asked to
 * stop (tt_validation_run). Collective.
 *   long_sec, is_long, progress  as in struct tt_validation
 */
int tt_validator_run(struct tt_validator *validator, int (*asked_to_stop)(void), double long_sec, bool is_long,
                     const char *progress) TT_MUST_CHECK;

#endif
