/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_MEASURE_H
#define TT_PARALLEL_ENGINE_MEASURE_H

#include <stdint.h>

#include "core/comm/comm.h"

/**
 * The speed of collectives over all ranks of a communicator, for benchmarks and machine files. For comparison, all
 * ranks copy the same number of bytes at once with memcpy, which shows what the memory of a host allows.
 */
enum tt_measured {
    TT_MEASURE_COPY, /* memcpy of the bytes that an all-gather receives */
    TT_MEASURE_ALL_GATHER,
    TT_MEASURE_REDUCE_SCATTER,
    TT_MEASURE_ALL_REDUCE,
    TT_MEASURED_KINDS,
};

/** "copy", "all-gather", "reduce-scatter", "all-reduce". */
const char *tt_measured_name(enum tt_measured kind);

/** Bytes that every rank receives: (n - 1) / n of the whole, twice that for an all-reduce. */
static inline int64_t tt_measured_bytes(enum tt_measured kind, int n_ranks, int64_t bytes)
{
    return bytes / n_ranks * (n_ranks - 1) * (kind == TT_MEASURE_ALL_REDUCE ? 2 : 1);
}

/**
 * The median seconds of `rounds` rounds, with data in memory, not in caches. A round takes as long as its slowest rank.
 *   bytes   size of the whole array (the result of a gather, the input of a reduce-scatter); rounded down to 64 * ranks
 * Collective. Allocates about twice `bytes` and 64 MiB, and touches it before the clock starts. Errors: TT_EFIT,
 * TT_ECOMM.
 */
int tt_measure(struct tt_comm *comm, enum tt_measured kind, int64_t bytes, int rounds, double *ret_sec) TT_MUST_CHECK;

/**
 * What transfers cost the computing thread, whose polls advance them: this rank's threads run GEMMs while a collective
 * of `bytes` bytes is under way, an all-gather and a reduce-scatter in turn, for about `seconds`.
 *   ret_share    the part of the computing thread's time that the transfer takes, from 0 to 0.95
 *   ret_stretch  duration of the transfer, divided by its duration while this thread only waits; at least 1
 * Both are medians of the slowest rank. Collective. Errors: as tt_measure and tt_team_new.
 */
int tt_measure_meeting(struct tt_comm *comm, int threads, int64_t bytes, double seconds, double *ret_share,
                       double *ret_stretch) TT_MUST_CHECK;

#endif
