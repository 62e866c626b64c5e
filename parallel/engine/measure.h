/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_MEASURE_H
#define TT_PARALLEL_ENGINE_MEASURE_H

#include <stdint.h>

#include "core/comm/comm.h"

/**
 * How fast collectives are, for benchmarks and machine files: each over all ranks of a communicator, beside plain
 * copies of the same bytes that all ranks make at once, which is what a node's memory allows.
 */
enum tt_measured {
    TT_MEASURE_COPY, /* memcpy of what an all-gather brings in */
    TT_MEASURE_ALL_GATHER,
    TT_MEASURE_REDUCE_SCATTER,
    TT_MEASURE_ALL_REDUCE,
    TT_MEASURED_KINDS,
};

/** "copy", "all-gather", "reduce-scatter", "all-reduce". */
const char *tt_measured_name(enum tt_measured kind);

/** Bytes that every rank receives: (n - 1) / n of the whole, twice that for an all-reduce. */
int64_t tt_measured_bytes(enum tt_measured kind, int n_ranks, int64_t bytes);

/**
 * Median seconds of `rounds` rounds, each as long as its slowest rank takes, from memory rather than caches.
 *   bytes   of the whole array (what a gather ends with, a reduce-scatter begins with); rounded down to 64 * ranks
 * Collective; allocates about twice `bytes` and 64 MiB, touches it before the clock starts. Errors: TT_EFIT, TT_ECOMM.
 */
int tt_measure(struct tt_comm *comm, enum tt_measured kind, int64_t bytes, int rounds, double *ret_sec) TT_MUST_CHECK;

#endif
