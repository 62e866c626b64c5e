/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_MEASURE_TRACE_SUMMARY_H
#define TT_CLI_MEASURE_TRACE_SUMMARY_H

#include <stdint.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/program/split.h"

/**
 * Where the time of a traced step went, from the files of tt_trace_write. Times are means over the ranks that have a
 * file, in seconds.
 */

/* All events with one name: an op ("linear"), or a collective of some units ("reduce layers.0"). */
struct tt_trace_row {
    char *name;
    char *part;    /* of an op: gemm, attention, … */
    int count;     /* of one rank */
    int64_t bytes; /* of collectives: that one rank sends in the step */
    double sec;    /* computing; of collectives: under way */
    double exposed_sec;
};

struct tt_trace_rank {
    int rank;
    double step_sec, compute_sec, exposed_sec;
};

struct tt_trace_summary {
    char *folder; /* of the iteration */
    int64_t step;
    int world, n_ranks; /* ranks of the job, and ranks that have a file */
    struct tt_trace_rank *ranks;
    struct tt_trace_row *ops, *collectives; /* the largest first: by sec, by exposed_sec */
    int n_ops, n_collectives;
    struct tt_split split;
    double step_sec; /* of the slowest */
    int slowest;     /* index into ranks: the one that computed longest */
    double median_compute_sec;
    char *hint;
};

/**
 * Reads the traces of one iteration.
 *   path       an iteration's folder, a folder of iterations, or a run's folder
 *   iteration  which one; 0: the newest
 * Errors: TT_EDATA for a folder without traces, or a file that is not a trace. Release when done.
 */
int tt_trace_summary_read(const char *path, int64_t iteration, struct tt_trace_summary *ret_summary) TT_MUST_CHECK;
void tt_trace_summary_release(struct tt_trace_summary *summary);

#endif
