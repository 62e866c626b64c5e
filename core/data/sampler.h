/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_SAMPLER_H
#define TT_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/data/dataset.h"
#include "core/keys/choices.h"

/**
 * The documents of a dataset (or conversations of chat data) that are held out of training, for validation. Whether a
 * document is held out depends only on its tokens: not on its place in the file, on other documents, on a seed or on
 * the number of ranks. So equal documents are on the same side, a larger part holds out everything that a smaller part
 * holds out, and documents stay on their side when data is added.
 *
 * A document is held out if its hash, read as a fraction of 2^64, is less than the part. The hash is XXH3 (64 bits) of
 * its tokens as little-endian int32, in blocks of TT_HOLDOUT_BLOCK; the seed of a block is the hash of the block before
 * it; the seed of the first block is 0. This must not change: continued runs rely on it.
 */
enum { TT_HOLDOUT_BLOCK = 1 << 16 };

struct tt_holdout {
    double part;         /* the share of documents that is held out on average: above 0, below 1 */
    int64_t n_documents; /* in the dataset */
    /* numbers of held-out documents, of their tokens, and of those tokens that are learned */
    int64_t held;
    int64_t held_tokens;
    int64_t held_learned;
    uint8_t *is_held; /* a bit for each document, beginning with the lowest bit of a byte */
};

/**
 * Reads the whole dataset; reports progress if it is large. Zero-initialise the holdout; release it also after an
 * error. TT_EUSAGE if the dataset does not record where its documents begin, if it is a single document, or if no
 * document would be left for training or for validation.
 */
int tt_holdout_init(struct tt_holdout *holdout, const struct tt_dataset *dataset, double part) TT_MUST_CHECK;
void tt_holdout_release(struct tt_holdout *holdout);

/** The bytes of is_held for n documents. */
static inline int64_t tt_holdout_bytes(int64_t n_documents)
{
    return (n_documents + 7) / 8;
}

/** The documents on one side, or all documents of a dataset: their number, and a list. */
struct tt_documents {
    int64_t n, tokens, learned;
    int64_t *index; /* the documents, in file order; NULL: all */
};

/**
 * Samples of a dataset with a mask (chat data). A sample contains whole conversations in file order; the first one that
 * does not fit begins the next sample. So the contents of a sample depend only on the data and seq_len, and an epoch
 * has the same number of samples in any order. The rest of a sample is padding.
 */
struct tt_packs {
    const struct tt_dataset *dataset;
    int64_t seq_len;
    int64_t n;         /* number of samples */
    int64_t n_given;   /* number of conversations before the selection */
    int64_t *document; /* the conversations that are used */
    int64_t *first;    /* [n + 1] where each sample begins in `document` */
    int64_t n_documents;
    int64_t n_long;      /* conversations of more than seq_len tokens */
    int64_t n_truncated; /* number of long ones that are used; the others are left out */
    uint8_t *counts;     /* scratch: [seq_len] */
};

/**
 * The dataset of each sample of a weighted mixture: a pure function of the sample's number, computed in constant time,
 * so a run may continue from any sample on any number of ranks.
 *
 * Weights become shares: whole numbers with the same ratios, as small as possible. Their sum is the period, after which
 * the order repeats. In every prefix of the samples, a dataset's number of samples differs from its exact share by less
 * than one. If a period would be longer than TT_MIXTURE_PERIOD samples, weights are rounded to multiples of 1 /
 * TT_MIXTURE_PERIOD of their sum.
 */
enum { TT_MIXTURE_MOST = 64, TT_MIXTURE_PERIOD = 1 << 20 };

struct tt_mixture {
    int n;                              /* datasets */
    int64_t period;                     /* samples */
    int64_t share[TT_MIXTURE_MOST];     /* samples of each dataset in a period */
    int64_t begin[TT_MIXTURE_MOST + 1]; /* start of each dataset's part of `place` */
    uint8_t *part;                      /* [period] the dataset of each sample */
    /* [period] for each sample, the number of samples of the same dataset before it */
    int32_t *number;
    int32_t *place; /* for each dataset, the places of its samples in a period */
};

/** A sample of a dataset. */
struct tt_mixture_sample {
    int part;
    int64_t number;
};

/** The weights are positive numbers, 1 to TT_MIXTURE_MOST of them. The caller releases the mixture. */
int tt_mixture_init(struct tt_mixture *mixture, const double *weight, int n) TT_MUST_CHECK;
void tt_mixture_release(struct tt_mixture *mixture);

/** The dataset of sample `sample` >= 0 of the mixture, and its number in that dataset. */
struct tt_mixture_sample tt_mixture_get(const struct tt_mixture *mixture, int64_t sample);

/** The reverse: the sample of the mixture that is sample `number` of dataset `part`; INT64_MAX if its number is too
 * large. */
int64_t tt_mixture_find(const struct tt_mixture *mixture, int part, int64_t number);

/**
 * The order of training samples. The documents of an epoch, in file order or shuffled by (seed, epoch), form one stream
 * of N tokens; sample i of the epoch is its tokens [i T, i T + T], inputs are all but the last, labels all but the
 * first; an epoch has S = floor((N - 1) / T) samples, and the remaining tokens are dropped. Global sample g is sample g
 * mod S of epoch g div S. So the whole state of a loader is this one integer. Every rank makes its own sampler and gets
 * the same samples.
 *
 * In a dataset with a mask (chat data), samples consist of whole conversations instead (struct tt_packs), and these
 * samples are shuffled.
 *
 * If documents of the dataset are held out, a sampler uses only the documents of one side, as if the others did not
 * exist.
 */
struct tt_sampler;

struct tt_sampler_options {
    int64_t seq_len; /* T >= 1 */
    bool shuffle;
    bool repeat;    /* start over after each epoch; else TT_EDATA after the first */
    bool documents; /* fill in positions; TT_EUSAGE if the dataset does not record where its documents begin */
    enum tt_long_choice longs; /* for a dataset with a mask */
    uint64_t seed;
    const struct tt_holdout *holdout; /* NULL: all documents are used; only tt_sampler_new reads it */
    bool held_out;                    /* use the held-out documents instead of the others */
};

/** The dataset must outlive the sampler. TT_EDATA if there is no complete sample. */
int tt_sampler_new(const struct tt_dataset *dataset, const struct tt_sampler_options *options,
                   struct tt_sampler **ret_sampler) TT_MUST_CHECK;
void tt_sampler_free(struct tt_sampler *sampler);

/** The number of complete samples in an epoch. */
int64_t tt_sampler_epoch_samples(const struct tt_sampler *sampler);

/** The documents that samples consist of. */
const struct tt_documents *tt_sampler_documents(const struct tt_sampler *sampler);

/** The packs of a dataset with a mask; NULL for other datasets. */
const struct tt_packs *tt_sampler_packs(const struct tt_sampler *sampler);

/**
 * Gets one sample; samples may be read in any order. Allocates nothing. Fails as tt_dataset_copy does. Keeps the
 * permutations of the two most recent epochs; any other epoch needs a new permutation.
 *   sample          global index >= 0
 *   inputs, labels  T ids each; a label is -100 if the token is not learned, -101 in padding
 *   positions       positions of the T inputs within their documents, or within the part of the first document that is
 *                   in the sample; NULL: not wanted
 */
int tt_sampler_get(struct tt_sampler *sampler, int64_t sample, int32_t *inputs, int32_t *labels,
                   int32_t *positions) TT_MUST_CHECK;

/**
 * The order of an epoch's documents (tt_sampler_documents entries), or of its samples if the dataset has a mask. Valid
 * until the next call. NULL: file order.
 */
const int64_t *tt_sampler_order(struct tt_sampler *sampler, int64_t epoch);

#endif
