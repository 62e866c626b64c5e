/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_PACKS_H
#define TT_DATA_PACKS_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/data/dataset.h"
#include "core/data/holdout.h"

/**
 * Samples of a dataset with a mask (chat data): conversations are packed whole, as many as fit, in file order; the next
 * one that does not fit begins the next sample. So which conversations a sample has depends on nothing but the data and
 * seq_len, and an epoch has the same number of samples whatever their order. The rest of a sample is padding.
 */
enum tt_long_conversations {
    TT_LONG_TRUNCATED, /* their first seq_len tokens are used, unless they have nothing to learn */
    TT_LONG_DROPPED,
    TT_LONG_REFUSED,
};

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
 * Packs `documents` of the dataset, which must outlive the packs. The caller zero-initialises and releases the packs,
 * also after an error. TT_EDATA for a long conversation with TT_LONG_REFUSED, and if none is left.
 */
int tt_packs_init(struct tt_packs *packs, const struct tt_dataset *dataset, const struct tt_documents *documents,
                  int64_t seq_len, enum tt_long_conversations longs) TT_MUST_CHECK;
void tt_packs_release(struct tt_packs *packs);

/**
 * Fills one sample: inputs, labels (the next token if it is to be learned, else -100; -101 in padding) and, unless it
 * is NULL, positions within conversations. Padding is token 0, a document of its own. Allocates nothing. Fails as
 * tt_dataset_copy does.
 */
int tt_packs_get(struct tt_packs *packs, int64_t sample, int32_t *inputs, int32_t *labels,
                 int32_t *positions) TT_MUST_CHECK;

#endif
