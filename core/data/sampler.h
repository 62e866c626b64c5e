/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_SAMPLER_H
#define TT_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/data/dataset.h"
#include "core/keys/choices.h"

/**
 * Which documents of a dataset (or conversations, of chat data) are held out of training, to validate on. It depends on
 * the tokens of each document and on nothing else: not on its place in the file, on other documents, on a seed or on
 * the number of ranks. So equal documents are on one side, a larger part holds out what a smaller one does and more,
 * and data that grows keeps what it had where it was.
 *
 * A document is held out if its hash, read as a fraction of 2^64, is less than the part. The hash is XXH3 (64 bits) of
 * its tokens as little-endian int32, in blocks of TT_HOLDOUT_BLOCK; the seed of a block is the hash of the block
 * before it, and that of the first one is 0. This must not change: runs rely on it when they continue.
 */
enum { TT_HOLDOUT_BLOCK = 1 << 16 };

struct tt_holdout {
    double part;         /* of the documents that is held out, on average: above 0, below 1 */
    int64_t n_documents; /* of the dataset */
    int64_t held;        /* documents that are held out, their tokens, and how many of these are to be learned */
    int64_t held_tokens;
    int64_t held_learned;
    uint8_t *is_held; /* a bit for each document, the lowest bit of a byte first */
};

/**
 * Reads the whole dataset; reports progress if it is large. Zero-initialise the holdout; release it also after an
 * error. TT_EUSAGE if the dataset does not say where its documents begin, is one document, or if no document would
 * remain for training or for validation.
 */
int tt_holdout_init(struct tt_holdout *holdout, const struct tt_dataset *dataset, double part) TT_MUST_CHECK;
void tt_holdout_release(struct tt_holdout *holdout);

/** The bytes of is_held for n documents. */
static inline int64_t tt_holdout_bytes(int64_t n_documents)
{
    return (n_documents + 7) / 8;
}

/** The documents on one side, or all of a dataset: how many, and which. */
struct tt_documents {
    int64_t n, tokens, learned;
    int64_t *index; /* the documents, in file order; NULL: all */
};

/**
 * Samples of a dataset with a mask (chat data): conversations are packed whole, as many as fit, in file order; the next
 * one that does not fit begins the next sample. So which conversations a sample has depends on nothing but the data and
 * seq_len, and an epoch has the same number of samples whatever their order. The rest of a sample is padding.
 */
struct tt_packs {
    const struct tt_dataset *dataset;
    int64_t seq_len;
    int64_t n;         /* samples */
    int64_t n_given;   /* conversations that there were to choose from */
    int64_t *document; /* the conversations that are used */
    int64_t *first;    /* n + 1: where each sample begins in `document` */
    int64_t n_documents;
    int64_t n_long;      /* conversations of more than seq_len tokens */
    int64_t n_truncated; /* the long ones that are used; the others are left out */
    uint8_t *counts;     /* scratch, seq_len */
};

/**
 * Which dataset each sample of a weighted mixture comes from. This is a pure function of the sample's number, found in
 * constant time, so a run may continue from any sample on any number of ranks.
 *
 * Weights become shares: whole numbers with the same ratios, as small as possible. Their sum is the period, after which
 * the order repeats. In every prefix of the samples, a dataset's number of samples differs from its part of the prefix
 * by less than one. If a period would be longer than TT_MIXTURE_PERIOD samples, weights are rounded to multiples of
 * 1 / TT_MIXTURE_PERIOD of their sum.
 */
enum { TT_MIXTURE_MOST = 64, TT_MIXTURE_PERIOD = 1 << 20 };

struct tt_mixture {
    int n;                              /* datasets */
    int64_t period;                     /* samples */
    int64_t share[TT_MIXTURE_MOST];     /* of each dataset in a period */
    int64_t begin[TT_MIXTURE_MOST + 1]; /* of each dataset's part of `place` */
    uint8_t *part;                      /* of each sample of a period: its dataset */
    int32_t *number;                    /* of each sample of a period: how many of its dataset precede it */
    int32_t *place;                     /* of each dataset: where its samples are in a period */
};

/** A sample of a dataset. */
struct tt_mixture_sample {
    int part;
    int64_t number;
};

/** The weights are positive numbers, 1 to TT_MIXTURE_MOST of them. The caller releases the mixture. */
int tt_mixture_init(struct tt_mixture *mixture, const double *weight, int n) TT_MUST_CHECK;
void tt_mixture_release(struct tt_mixture *mixture);

/** What sample `sample` >= 0 of the mixture is. */
struct tt_mixture_sample tt_mixture_get(const struct tt_mixture *mixture, int64_t sample);

/** The reverse: which sample of the mixture is sample `number` of dataset `part`; INT64_MAX if that is too large. */
int64_t tt_mixture_find(const struct tt_mixture *mixture, int part, int64_t number);

/**
 * The order of training samples. The documents of an epoch, in file order or shuffled by (seed, epoch), form one stream
 * of N tokens; sample i of the epoch is its tokens [i T, i T + T], inputs all but the last, labels all but the first;
 * an epoch has S = floor((N - 1) / T) samples, and the rest is dropped. Global sample g is sample g mod S of
 * epoch g div S. So the whole state of a loader is this one integer. Every rank makes its own sampler and gets
 * the same samples.
 *
 * A dataset with a mask (chat data) has samples of whole conversations instead (struct tt_packs); these samples are
 * what is shuffled.
 *
 * If documents of the dataset are held out, a sampler knows the documents of one side, as if the others were not there.
 */
struct tt_sampler;

struct tt_sampler_options {
    int64_t seq_len; /* T >= 1 */
    bool shuffle;
    bool repeat;    /* start over after each epoch; else TT_EDATA after the first */
    bool documents; /* positions are wanted; TT_EUSAGE if the dataset does not say where its documents begin */
    enum tt_long_choice longs; /* for a dataset with a mask */
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
