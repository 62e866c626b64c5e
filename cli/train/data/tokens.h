/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_DATA_TOKENS_H
#define TT_CLI_TRAIN_DATA_TOKENS_H

#include "core/comm/comm.h"
#include "core/data/dataset.h"

/**
 * Opens the packed file that rank 0 prepared, on every rank (collective). A path may lead to another file on
 * another host, so one rank for each file, as told by the host, device and inode, compares its content with
 * rank 0's. Where a text has no cache, or a damaged one, the first rank of that host makes it: a cache folder
 * need not be shared.
 *   spec     what rank 0 prepared, as this rank sees it
 *   is_text  it was tokenized; spec->tokenizer is set
 *   ref      rank 0's, already the same on all ranks
 * TT_EDATA names the host and the file that is missing or differs.
 */
int tt_train_tokens_open(struct tt_comm *comm, const struct tt_dataset_spec *spec, bool is_text,
                         const struct tt_dataset_ref *ref, struct tt_dataset **ret_dataset) TT_MUST_CHECK;

#endif
