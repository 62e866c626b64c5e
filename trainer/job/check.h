/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_CHECK_H
#define TT_TRAINER_JOB_CHECK_H

#include "core/config/config.h"

/**
 * Reports what is wrong with a configuration for any number of ranks: a model that does not exist or whose sizes do not
 * fit together, sequences that are too long for it, policies that select nothing. This is a check for struct
 * tt_config_input, so its faults come in one message with those of files and flags, each with its place. Not
 * collective; arg is not used.
 */
void tt_job_check(struct tt_config *cfg, struct tt_config_report *report, void *arg);

/**
 * The same, and also checks the files that the configuration names on this machine: data, tokenizer, the model's
 * config.json, initial weights, machine file. It reads the tokenizer, config.json and the machine file. Of the others
 * it only checks that they exist.
 */
void tt_job_check_files(struct tt_config *cfg, struct tt_config_report *report, void *arg);

#endif
