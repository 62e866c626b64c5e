/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_JOB_CHECK_H
#define TT_CLI_JOB_CHECK_H

#include "core/config/config.h"

/**
 * What is wrong with a configuration whatever the number of ranks: a model that does not exist or whose sizes do not
 * fit each other, sequences that it cannot take, policies that select nothing. A check for struct tt_config_input, so
 * that these faults come in one message with those of the files and flags, each at its place.
 */
void tt_job_check(struct tt_config *cfg, struct tt_config_report *report, void *arg);

/**
 * The same, and the files that the configuration names, on this machine: data, tokenizer, the model's
 * config.json, weights to start from, machine file. Reads the tokenizer and config.json whole, of the others only
 * that they are there.
 */
void tt_job_check_files(struct tt_config *cfg, struct tt_config_report *report, void *arg);

#endif
