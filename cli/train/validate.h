/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_VALIDATE_H
#define TT_CLI_TRAIN_VALIDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/run/validation.h"
#include "cli/train/data/data.h"
#include "cli/train/setup.h"

/** Validation during training: the mean loss over validation.steps batches per rank, or over all of the data. */
struct tt_validator {
    const struct tt_setup *setup;
    struct tt_train_data data; /* opened only if validation.enable */
};

/** Opens the validation data, if validation.enable. The set-up must outlive the validator. Collective. */
int tt_validator_open(const struct tt_setup *setup, struct tt_validator *ret_validator) TT_MUST_CHECK;
void tt_validator_release(struct tt_validator *validator);

/** Whether validation follows this step; `last`: it is the last step. */
bool tt_validator_is_due(const struct tt_validator *validator, int64_t step, bool last);

/** Runs the engine's validation program and averages over all ranks. Collective. */
int tt_validator_run(struct tt_validator *validator, struct tt_validation_result *ret_result) TT_MUST_CHECK;

#endif
