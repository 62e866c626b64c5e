/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_SAMPLER_H
#define TT_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/data/dataset.h"
#include "core/data/holdout.h"
#include "core/data/packs.h"

/**
 * The order of training samples. The documents of an epoch, in file order or shuffled by (seed, epoch), form one stream
 * of N tokens; sample i of the epoch is its tokens [i T, i T + T], inputs all but the last, labels all but the first;
 * an epoch has S = floor((N - 1) / T) samples, and the rest is dropped. Global sample g is sample g mod S of
 * epoch g div S. So the whole state of a loader is this one integer. Every rank makes its own sampler and gets
 * the same samples.
 *
 * A dataset with a mask (chat data) has samples of whole conversations instead (core/data/packs.h); these samples are
 * what is shuffled.
 *
 * If documents of the dataset are held out, a sampler knows only those of one side; it is as if the others were not in
 * the file.
 */
struct tt_sampler;

struct tt_sampler_options {
    int64_t seq_len; /* T >= 1 */
    bool shuffle;
    bool repeat;    /* start over after each epoch; else TT_EDATA after the first */
    bool documents; /* positions are wanted; TT_EUSAGE if the dataset does not say where its documents begin */
    enum tt_long_conversations longs; /* for a dataset with a mask */
    uint64_t seed;
    const struct tt_holdout *holdout; /* NULL: the samples are of all documents; needed only by tt_sampler_new */
    bool held_out;                    /* of the documents that are held out, not of the others */
};

/** The dataset must outlive the sampler. TT_EDATA when it has no complete sample. */
int tt_sampler_new(const struct tt_dataset *dataset, const struct tt_sampler_options *options,
                   struct tt_sampler **ret_sampler) TT_MUST_CHECK;
void tt_sampler_free(struct tt_sampler *sampler);

/** Complete samples of one epoch. */
int64_t tt_sampler_epoch_samples(const struct tt_sampler *sampler);

/** The documents that samples are made of. */
const struct tt_documents *tt_sampler_documents(const struct tt_sampler *sampler);

/** What the samples of a dataset with a mask are made of; NULL for other datasets. */
const struct tt_packs *tt_sampler_packs(const struct tt_sampler *sampler);

/**
 * Gets one sample; samples may be read in any order. Allocates nothing. Fails as tt_dataset_copy does. The permutations
 * of the two epochs used last are kept; another epoch needs a new permutation of the documents.
 *   sample          global index >= 0
 *   inputs, labels  T ids each; a label is -100 where there is nothing to learn, -101 in padding
 *   positions       of the T inputs in their documents, as far as these are in the sample; NULL: not wanted
 */
int tt_sampler_get(struct tt_sampler *sampler, int64_t sample, int32_t *inputs, int32_t *labels,
                   int32_t *positions) TT_MUST_CHECK;

/**
 * The order of documents of an epoch, as many as tt_sampler_documents says, valid until the next call; NULL: file
 * order. With a mask, the order of its samples.
 */
const int64_t *tt_sampler_order(struct tt_sampler *sampler, int64_t epoch);

#endif
