/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_PEAKS_H
#define TT_TESTS_PEAKS_H

#include "parallel/pipeline/schedule.h"

/** The largest number of a rank's chunks whose activations are kept at once, by formula. A chunk is one microbatch in
 *one stage.
 *   chunks        stages of a rank
 *   until_weight  a chunk is kept until its weight part is done, otherwise until its input part is
 * -1: there is no formula for these numbers.
 */
int peaks_of(enum tt_pipeline_schedule schedule, const struct tt_pipeline *pipeline, int chunks, int rank,
             bool until_weight);

#endif
