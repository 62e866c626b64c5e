/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_DATA_DATA_H
#define TT_TRAINER_DATA_DATA_H

#include <stdint.h>

#include "core/comm/comm.h"
#include "core/config/config.h"
#include "core/data/dataset.h"
#include "core/data/sampler.h"
#include "core/keys/choices.h"
#include "core/tokenizer/tokenizer.h"
#include "trainer/job/setup.h"

/** A dataset from which samples are taken, and its stream of samples. */
struct tt_train_part {
    char *name;
    struct tt_dataset *dataset;
    struct tt_sampler *sampler;
};

/* Samples that a caller gives: sample i is row i % n of arrays (n, seq_len). */
struct tt_fixed_batch {
    int64_t n;
    const int32_t *tokens, *labels;
    const int32_t *positions; /* NULL: each row is one document */
};

/**
 * A dataset, or a weighted mixture of several, that is open on all ranks of a run. Every part is shuffled and repeated
 * by itself; the mixture decides from which part a sample comes. A single dataset is a mixture of one.
 */
struct tt_train_data {
    const struct tt_fixed_batch *fixed; /* not NULL: takes the place of all other members except seq_len; borrowed */
    struct tt_tokenizer *tokenizer;     /* NULL if no part is text */
    int n;
    struct tt_train_part *part;
    struct tt_mixture mixture;
    int64_t seq_len;
};

struct tt_train_data_options {
    const struct tt_dataset_entry *entry; /* one per part; complete, so no other key adds to them */
    int n;
    const char *chat_template;    /* for all parts */
    const char *tokenizer_folder; /* NULL: the built-in tokenizer */
    const char *cache_folder;
    int64_t vocab_size; /* size of the model's vocabulary; every token must be smaller */
    int64_t seq_len;
    bool shuffle, repeat;
    bool documents; /* batches have positions */
    enum tt_long_choice longs;
    uint64_t seed;
    double split;  /* the part of the documents that is held out of training; 0: none */
    bool held_out; /* use the documents that are held out, instead of the others */
};

/** Collective: rank 0 tokenizes into the cache if needed, then every rank opens the tokens, whose content is the same
 * on all hosts. If there are several parts, an error names the part. */
int tt_train_data_open(struct tt_comm *comm, const struct tt_train_data_options *options,
                       struct tt_train_data *ret_data) TT_MUST_CHECK;
void tt_train_data_release(struct tt_train_data *data);

/**
 * The tokenizer of a folder (NULL: the built-in one). *ret_tokenizer is NULL if the folder contains none, only weights
 * for example.
 */
int tt_train_data_tokenizer(const char *folder, struct tt_tokenizer **ret_tokenizer) TT_MUST_CHECK;

/** The number of samples until one of the parts has been read `epochs` times and would begin again. */
int64_t tt_train_data_samples(const struct tt_train_data *data, int64_t epochs);

/** A digest of all tokens, and of the order in which the parts take turns. */
uint64_t tt_train_data_digest(const struct tt_train_data *data);

/**
 * Reads samples first .. first + n - 1 into tokens, labels and, unless it is NULL, positions, all (n, seq_len). Adds
 * the number of valid labels to *valid. Errors: TT_EDATA at the end of data that does not repeat, and if the file has
 * changed since it was prepared.
 */
int tt_train_data_batch(struct tt_train_data *data, int64_t first, int64_t n, int32_t *tokens, int32_t *labels,
                        int32_t *positions, int64_t *valid) TT_MUST_CHECK;

/* --- the data that a configuration names --- */

/** Open the data that a configuration names. Collective. Errors about a file carry the key that names it.
 *   set  the number of the validation set, from 0 */
int tt_datasets_open_training(const struct tt_setup *setup, struct tt_train_data *ret_data) TT_MUST_CHECK;
int tt_datasets_open_validation(const struct tt_setup *setup, int set, struct tt_train_data *ret_data) TT_MUST_CHECK;

/**
 * The word of dataloader.long_conversations if the data contains conversations longer than a sequence, which are then
 * cut or left out; otherwise NULL.
 */
const char *tt_datasets_longs(const struct tt_config *cfg, const struct tt_train_data *data);

#endif
