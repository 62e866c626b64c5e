/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_BACKTEST_BACKTEST_H
#define TT_ESTIMATE_BACKTEST_BACKTEST_H

#include <stddef.h>

#include "core/base/error.h"
#include "estimate/model/job.h"

/* A table of comma-separated values whose first row names the columns. Zero-initialise; tt_csv_release. */
struct tt_csv {
    char *text;   /* all fields, each ended by 0 */
    char **field; /* n_rows x n_columns, after the names */
    char **name;
    int n_rows, n_columns;
};

/**
 * Reads a table as RFC 4180 has it; `where` names it in messages. Rows with another number of fields than the first:
 * TT_EDATA naming the line.
 */
int tt_csv_parse(const char *text, size_t size, const char *where, struct tt_csv *ret_csv) TT_MUST_CHECK;
void tt_csv_release(struct tt_csv *csv);

/* A row of a table of measured runs as a job, with what was measured; titan-predictions(7) describes the columns. */
struct tt_cluster_run {
    const char *id;     /* of the row, or of the sweep; in the table */
    const char *source; /* the table's, too */
    struct tt_cluster_job job;
    double sec;                  /* measured step; 0: none */
    double bytes;                /* measured peak, as the framework's allocator reports it; 0: none */
    bool layout_of_sweep;        /* a row of a table of sweeps */
    bool oom, failed;            /* out of memory; any other error */
    bool ac_stated;              /* the source says what is recomputed */
    bool four_bits;              /* 4-bit GEMMs, predicted as 8-bit ones */
    bool stack_assumed;          /* nothing says what software ran */
    bool plain;                  /* dense, bfloat16 or float16, below 128k tokens */
    const char *excluded;        /* why the row is not scored for time; NULL: it is */
    const char *memory_excluded; /* the reason that the row has for its peak; "": none */
};

/**
 * Reads the rows of a table as jobs. The fields point into csv, which must stay. The caller frees *ret_runs
 * (tt_free).
 */
int tt_cluster_runs(const struct tt_csv *csv, const char *where, struct tt_cluster_run **ret_runs) TT_MUST_CHECK;

/**
 * The back-test: predictions of all rows of a table of measured runs with the built-in numbers, and their errors,
 * predicted / measured - 1. NaN: there is none.
 */

/* Errors without their signs. */
struct tt_score {
    int n;
    double median, p90, worst;
};

/*
 * Each row is predicted in four ways, which differ in the GEMM share (stack key gemm_share). A family is all rows of
 * one stack on one machine.
 *   shipped    the stack's share, fitted to rows of the family
 *   left out   the median of the shares that fit the other rows of the family
 *   one row    the share that fits the smallest run of the family; that run has none
 *   foreign    the median over the other families of the same machine
 * Rows that mostly wait for the host are fitted to nothing.
 */
struct tt_backtest_row {
    struct tt_cluster_time time; /* shipped */
    struct tt_cluster_memory memory;
    double error, left_out, one_row, foreign, memory_error;
    double fitted; /* the GEMM share with which the time is exact */
    const char *memory_excluded;
};

struct tt_backtest_sweep {
    const char *id, *source;
    int n, n_oom, n_failed; /* rows that ran, did not fit, failed otherwise */
    double kendall_tau;
    double pick_over_best; /* measured times: the layout that is predicted to be the fastest, over the best */
    double pick_that_fits; /* the same among layouts predicted to fit with the margin; NaN: out of memory */
    struct tt_score time;
};

struct tt_backtest {
    struct tt_cluster_run *run;
    struct tt_backtest_row *row; /* of the same index */
    int n;
    struct tt_backtest_sweep *sweep;
    int n_sweeps, cap_sweeps;
    bool sweeps_only;               /* there are no other rows, so `plain` has these */
    struct tt_score plain, special; /* dense, 16 bits, below 128k tokens; and fp8, experts, longer sequences */
    struct tt_score left_out, one_row, foreign; /* of plain rows */
    struct tt_score memory;
    int fits[2][2];       /* [predicted to fit][did fit] */
    int false_fits_far;   /* predicted to fit with more than 5 % to spare, but did not */
    int ran, ran_refused; /* published runs, and those predicted not to fit */
    double held;          /* share of left-out rows within the printed interval */
};

/* Half of the 80 % interval, as a share of the predicted time: where there are runs of the same stack on the same
 * machine, and where there are none. */
extern const double tt_backtest_interval, tt_backtest_wide_interval;

/* The same of models with experts, below and above the predicted time: of 36 measured runs 31 are within it. */
extern const double tt_backtest_experts_below, tt_backtest_experts_above;

/** Scores n tables, which must outlive the result; the caller releases it. */
int tt_backtest_score(const struct tt_csv *tables, const char *const *where, int n,
                      struct tt_backtest *ret_test) TT_MUST_CHECK;
void tt_backtest_release(struct tt_backtest *test);

/** The built-in tables of runs and of layouts, for tt_csv_parse. */
extern const char tt_backtest_runs[], tt_backtest_layouts[];
extern const size_t tt_backtest_runs_size, tt_backtest_layouts_size;

/**
 * The GEMM share (stack key gemm_share) with which a job's step takes sec seconds, from 0.2 to 2.5; no hardware is
 * beyond.
 */
double tt_cluster_fit(const struct tt_cluster_job *job, double sec);

/* What the log of a run says about a prediction. */
struct tt_cluster_calibration {
    int steps;
    double tokens_per_sec;  /* of a device: the median, without the first quarter of the steps */
    double bytes;           /* of the last step; 0: the log has none */
    double predicted_bytes; /* by the framework's allocator, like the log's */
    double error;           /* of the prediction, before the fit and after it */
    double error_after;
    double old_share, share;
};

/**
 * Fits the GEMM share of a stack to a log of torchtitan; `where` names the log. TT_EDATA: it has too few steps, the
 * step mostly waits for the host, or the log is of another job.
 */
int tt_cluster_calibrate(const char *log, const char *where, const struct tt_cluster_job *job,
                         struct tt_cluster_stack *stack, struct tt_cluster_calibration *ret) TT_MUST_CHECK;

#endif
