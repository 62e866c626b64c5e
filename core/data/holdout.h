/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_HOLDOUT_H
#define TT_DATA_HOLDOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/data/dataset.h"

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
    int64_t held;        /* documents that are held out, their tokens, and those of them that are to be learned */
    int64_t held_tokens;
    int64_t held_learned;
    uint8_t *is_held; /* a bit for each document, the lowest bit of a byte first */
};

/**
 * Reads the whole dataset; reports progress if it is large. Zero-initialise the holdout; release it also after an
 * error. TT_EUSAGE if the dataset does not say where its documents begin, is one document, or would have none on one
 * of the sides.
 */
int tt_holdout_init(struct tt_holdout *holdout, const struct tt_dataset *dataset, double part) TT_MUST_CHECK;
void tt_holdout_release(struct tt_holdout *holdout);

/** The bytes of is_held for n documents. */
int64_t tt_holdout_bytes(int64_t n_documents);

/** The documents on one side, or all of a dataset: how many, and which. */
struct tt_documents {
    int64_t n, tokens, learned;
    int64_t *index; /* the documents, in file order; NULL: all */
};

/**
 * The documents that are trained on or, with held_out, those that are not. holdout NULL: all of the dataset. The caller
 * releases them, also after an error.
 */
int tt_documents_init(struct tt_documents *documents, const struct tt_dataset *dataset,
                      const struct tt_holdout *holdout, bool held_out) TT_MUST_CHECK;
void tt_documents_release(struct tt_documents *documents);

#endif
