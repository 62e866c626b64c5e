/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_MEASURE_ROUND_H
#define TT_PARALLEL_ENGINE_MEASURE_ROUND_H

#include "parallel/comm/collectives.h"
#include "parallel/engine/measure.h"

/* The collective that measure.c and meeting.c time, with its memory. */
struct tt_measure_round {
    struct tt_comm *comm;
    struct tt_group group;
    struct tt_segment *blocks; /* [ranks], back to back in data */
    struct tt_segment_list *lists;
    char *data, *other, *cache; /* cache: written to empty the caches */
    size_t bytes, other_bytes;
    struct tt_collective *collective; /* NULL: copies */
};

/** Collective. It may be released after an error too. Errors: those of tt_measure. */
int tt_measure_round_init(struct tt_measure_round *b, struct tt_comm *comm, enum tt_measured kind,
                          int64_t bytes) TT_MUST_CHECK;
void tt_measure_round_release(struct tt_measure_round *b);

/** Empties the caches, then waits for all ranks. */
int tt_measure_round_start(struct tt_measure_round *b) TT_MUST_CHECK;

#endif
