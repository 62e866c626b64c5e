/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_BACKTEST_RUNS_H
#define TT_CLUSTER_BACKTEST_RUNS_H

#include "cluster/backtest/csv.h"
#include "cluster/model/job.h"

/* Measured runs: a row of published_runs.csv or layout_sweeps.csv as a job, with what was measured. */
struct tt_cluster_run {
    const char *id;     /* of the row, or of the sweep; in the table */
    const char *source; /* the table's, too */
    struct tt_cluster_job job;
    double sec;           /* measured step; 0: none */
    double bytes;         /* measured peak, as the framework's allocator reports it; 0: none */
    bool layout_of_sweep; /* a row of a table of sweeps */
    bool oom, failed;     /* out of memory; any other error */
    bool ac_stated;       /* the row says what is recomputed */
    bool four_bits;       /* products of 4-bit numbers, which are predicted as of 8-bit ones */
    bool stack_assumed;   /* neither the row nor its source names the software */
    bool plain;           /* dense, bfloat16 or float16, below 128k tokens */
    const char *excluded; /* why the row is not scored for time; NULL: it is */
};

/**
 * Reads the rows of a table as jobs. The fields point into csv, which must stay. *ret_sweeps says whether the table has
 * the columns of layout_sweeps.csv. The caller frees *ret_runs (tt_free).
 */
int tt_cluster_runs(const struct tt_csv *csv, const char *where, struct tt_cluster_run **ret_runs,
                    bool *ret_sweeps) TT_MUST_CHECK;

/**
 * Completes a run of Megatron Bridge's tables of models with experts; does nothing to others. Tokens are spread equally
 * over experts, as a footnote says. What is recomputed and overlapped, and whether a graph captures whole steps, is in
 * the recipe of the release; where none is known, the exchange is overlapped if it crosses nodes and there is a
 * pipeline. What the row itself states stays.
 */
int tt_cluster_as_in_recipes(const struct tt_csv *csv, int row, struct tt_cluster_run *run) TT_MUST_CHECK;

#endif
