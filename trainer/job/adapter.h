/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_ADAPTER_H
#define TT_TRAINER_JOB_ADAPTER_H

#include "core/config/config.h"

/** Whether a path is a folder of adapters in PEFT's format: it has an adapter_config.json. */
bool tt_job_is_adapter(const char *path);

/**
 * If checkpoint.initial_load_path is such a folder, sets the keys that the user did not set: lora.*, the weights to
 * which the adapters belong, and their format. TT_EDATA: the file is damaged, it has an option that titan does not
 * have, the user set another rank or factor, or the weights are not there.
 */
int tt_job_adopt_adapter(struct tt_config *cfg) TT_MUST_CHECK;

/**
 * The weights to start from; NULL: random ones. If the run begins from adapters of PEFT, the weights to which these
 * belong. Of the configuration.
 */
const char *tt_job_initial_weights(const struct tt_config *cfg);

#endif
