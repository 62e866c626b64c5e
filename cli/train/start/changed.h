/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_START_CHANGED_H
#define TT_CLI_TRAIN_START_CHANGED_H

#include "cli/train/start/start.h"
#include "core/base/text.h"
#include "trainer/job/setup.h"

/**
 * TT_EDATA, with the values, if the checkpoint is of another model than this run's: other shapes, or the same shapes
 * with another meaning (heads, rotary frequencies, epsilon). Not collective.
 */
int tt_changed_check_model(const struct tt_config *cfg, const json_t *meta) TT_MUST_CHECK;

/** TT_EDATA if a new run would begin from adapters, of the checkpoint at path, that were trained with another
 * lora.alpha. meta: of the manifest, may be NULL. Not collective. */
int tt_changed_check_adapters(const struct tt_config *cfg, const char *path, const json_t *meta) TT_MUST_CHECK;

/** The keys whose values differ from those of an earlier configuration: {"training.steps": [60, 90], …}. The caller's
 * (json_decref). */
json_t *tt_changed_keys(const struct tt_config *cfg, const json_t *before);

/** Appends lines of the banner: what changed since the step from which the run continues, and whether that changes its
 * losses. */
void tt_changed_text(const struct tt_setup *setup, const struct tt_start *start, struct tt_text *out);

#endif
