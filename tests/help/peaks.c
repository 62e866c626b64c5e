/* SPDX-License-Identifier: MIT */
#include "tests/help/peaks.h"

static int fewest(int a, int b)
{
    return a < b ? a : b;
}

int peaks_of(enum tt_pipeline_schedule schedule, const struct tt_pipeline *pipeline, int chunks, int rank,
             bool until_weight)
{
    int n = pipeline->microbatches, after = pipeline->ranks - 1 - rank;
    int rounds = n < pipeline->ranks ? 1 : n / pipeline->ranks, each = n / rounds;

    switch (schedule) {
    case TT_PP_GPIPE:
    case TT_PP_LOOPED_BFS:
        return n * chunks;
    case TT_PP_1F1B:
        return fewest(n, after + 1);
    case TT_PP_INTERLEAVED_1F1B:
        return fewest(n * chunks, (chunks - 1) * each + 2 * after + 1);
    case TT_PP_INTERLEAVED_ZERO_BUBBLE:
        return fewest(n * chunks, (chunks - 1) * each + (until_weight ? pipeline->ranks : after + 1));
    case TT_PP_ZBV_ZERO_BUBBLE:
        return n < 2 * pipeline->ranks - 1 ? -1 : fewest(2 * n, 2 * pipeline->ranks);
    default:
        return 2 * pipeline->ranks + 1;
    }
}
