/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_DATA_TOKENS_H
#define TT_CLI_TRAIN_DATA_TOKENS_H

#include "core/comm/comm.h"
#include "core/data/dataset.h"

/**
 * Opens the packed file that rank 0 prepared, on every rank (collective). The same path may be another file on another
 * host. So one rank per file, which host, device and inode tell apart, compares the content with rank 0's. If the cache
 * of a text is missing or damaged on a host, its first rank makes it. So hosts need not share a cache folder.
 *   spec     what rank 0 prepared, as this rank sees it
 *   is_text  the dataset is tokenized text; spec->tokenizer is set
 *   ref      rank 0's, already the same on all ranks
 * TT_EDATA names the host and the file that is missing or differs.
 */
int tt_train_tokens_open(struct tt_comm *comm, const struct tt_dataset_spec *spec, bool is_text,
                         const struct tt_dataset_ref *ref, struct tt_dataset **ret_dataset) TT_MUST_CHECK;

#endif
