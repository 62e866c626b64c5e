/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_START_CHANGED_H
#define TT_CLI_TRAIN_START_CHANGED_H

#include "cli/train/setup.h"
#include "cli/train/start/start.h"
#include "core/base/text.h"

/**
 * TT_EDATA, with the values, when a checkpoint is of another model than this run: other shapes, or the same shapes with
 * another meaning (heads, rotary frequencies, epsilon). Local.
 */
int tt_changed_check_model(const struct tt_config *cfg, const json_t *meta) TT_MUST_CHECK;

/** The keys whose values differ from those of an earlier configuration: {"training.steps": [60, 90], …}. */
json_t *tt_changed_keys(const struct tt_config *cfg, const json_t *before);

/** Appends what changed since the step that the run continues from, and whether its losses do; lines of the banner. */
void tt_changed_text(const struct tt_setup *setup, const struct tt_start *start, struct tt_text *out);

#endif
