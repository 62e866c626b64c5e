/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_MIXTURE_H
#define TT_DATA_MIXTURE_H

#include <stdint.h>

#include "core/base/error.h"

/**
 * Which dataset each sample of a weighted mixture comes from. This is a pure function of the sample's number, found in
 * constant time, so a run may continue from any sample on any number of ranks.
 *
 * Weights become shares: whole numbers with the same ratios, as small as possible. Their sum is the period, after which
 * the order repeats. In every prefix of the samples, the number of those of a dataset differs from its part of the
 * prefix by less than one. If a period would be longer than TT_MIXTURE_PERIOD samples, weights are rounded to multiples
 * of 1 / TT_MIXTURE_PERIOD of their sum.
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

#endif
