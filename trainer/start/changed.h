/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_START_CHANGED_H
#define TT_TRAINER_START_CHANGED_H

#include "core/base/text.h"
#include "trainer/job/setup.h"

/* The changes since the step from which a run continues. */
struct tt_changes {
    int64_t step;       /* -1: the run does not continue */
    int64_t batch;      /* sequences per step in the run that saved the step; 0: not known */
    int64_t microbatch; /* sequences per microbatch in that run; 0: not known */
    json_t *keys;       /* {path: [before, now]}; NULL: the run does not continue */
};

/**
 * TT_EDATA, with the values, if the checkpoint belongs to another model: shapes differ, or the same shapes mean
 * something else (heads, rotary frequencies, epsilon). Not collective.
 */
int tt_changed_check_model(const struct tt_config *cfg, const json_t *meta) TT_MUST_CHECK;

/** TT_EDATA if a new run would begin from the adapters of the checkpoint at path, and these were trained with another
 * lora.alpha, lora.rslora or lora.dora. meta: from the manifest; may be NULL. Not collective. */
int tt_changed_check_adapters(const struct tt_config *cfg, const char *path, const json_t *meta) TT_MUST_CHECK;

/** The keys whose values differ from those of an earlier configuration: {"training.steps": [60, 90], …}. Free it with
 * json_decref. */
json_t *tt_changed_keys(const struct tt_config *cfg, const json_t *before);

/** Appends lines of the banner: the changes since the step from which the run continues, and whether they change its
 * losses. */
void tt_changed_text(const struct tt_setup *setup, const struct tt_changes *since, struct tt_text *out);

#endif
