/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_DATA_DATASETS_H
#define TT_CLI_TRAIN_DATA_DATASETS_H

#include "cli/train/data/data.h"
#include "cli/train/setup.h"

/** Open the data that a configuration names. Collective. Errors about a file carry the key that names it.
 *   set  the number of the validation set, from 0 */
int tt_datasets_open_training(const struct tt_setup *setup, struct tt_train_data *ret_data) TT_MUST_CHECK;
int tt_datasets_open_validation(const struct tt_setup *setup, int set, struct tt_train_data *ret_data) TT_MUST_CHECK;

/** The word of dataloader.long_conversations if the data has long ones, which it then changes; else NULL. */
const char *tt_datasets_longs(const struct tt_config *cfg, const struct tt_train_data *data);

#endif
