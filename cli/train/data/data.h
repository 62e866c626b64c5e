/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_DATA_DATA_H
#define TT_CLI_TRAIN_DATA_DATA_H

#include <stdint.h>

#include "core/comm/comm.h"
#include "core/data/dataset.h"
#include "core/data/sampler.h"
#include "core/tokenizer/tokenizer.h"

/**
 * A dataset opened by all ranks of a run, and the samples of its stream.
 */
struct tt_train_data {
    struct tt_tokenizer *tokenizer; /* NULL where no text is read */
    struct tt_dataset *dataset;
    struct tt_sampler *sampler;
    int64_t seq_len;
};

struct tt_train_data_options {
    const char *dataset, *path, *text_field;
    const char *tokenizer_folder; /* NULL: built in */
    const char *cache_folder;
    int64_t vocab_size; /* of the model: every token must be below */
    int64_t seq_len;
    bool shuffle, repeat;
    uint64_t seed;
};

/** Collective: rank 0 tokenizes into the cache if need be, then every rank opens it (cli/train/data/tokens.h). */
int tt_train_data_open(struct tt_comm *comm, const struct tt_train_data_options *options,
                       struct tt_train_data *ret_data) TT_MUST_CHECK;
void tt_train_data_release(struct tt_train_data *data);

/**
 * Samples first .. first + n - 1 into (n, seq_len) tokens and labels; adds the labels that count to *valid.
 * Errors: TT_EDATA at the end of data that does not repeat, and when the file is not what was prepared any more.
 */
int tt_train_data_batch(struct tt_train_data *data, int64_t first, int64_t n, int32_t *tokens, int32_t *labels,
                        int64_t *valid) TT_MUST_CHECK;

#endif
