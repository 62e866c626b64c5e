/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_BACKTEST_BACKTEST_H
#define TT_ESTIMATE_BACKTEST_BACKTEST_H

#include <stddef.h>

#include "core/base/error.h"
#include "estimate/model/job.h"

/* A table of comma-separated values whose first row names the columns. Zero-initialise; tt_csv_release. */
struct tt_csv {
    char *text;   /* all fields, each with a 0 after it */
    char **field; /* n_rows x n_columns, after the names */
    char **name;
    int n_rows, n_columns;
};

/**
 * Reads a table in the form of RFC 4180; `where` names it in messages. TT_EDATA names a line whose number of fields
 * differs from that of the first.
 */
int tt_csv_parse(const char *text, size_t size, const char *where, struct tt_csv *ret_csv) TT_MUST_CHECK;
void tt_csv_release(struct tt_csv *csv);

/* A row of a table of measured runs: the job, and the measurements. titan-predictions(7) describes the columns. */
struct tt_cluster_run {
    const char *id;     /* name of the row, or of its sweep; points into the table */
    const char *source; /* points into the table, too */
    struct tt_cluster_job job;
    double sec;           /* measured time of a step; 0: not measured */
    double bytes;         /* measured peak memory, as the framework's allocator reports it; 0: not measured */
    bool layout_of_sweep; /* the row is from a table of sweeps (lists of measured layouts of one job) */
    bool oom, failed;     /* it ran out of memory; it failed with another error */
    bool ac_stated;       /* the source says which activations are recomputed */
    bool four_bits;       /* 4-bit GEMMs, which are predicted as if they used 8 bits */
    bool stack_assumed;   /* the source does not say which software ran */
    bool plain;           /* dense, bfloat16 or float16, all weights trained, below 128k tokens */
    const char *excluded; /* why the row does not count in the score for time; NULL: it counts */
    /* the row's reason why its peak does not count in the score for memory; "": no reason */
    const char *memory_excluded;
};

/**
 * Reads the rows of a table as jobs. Their texts point into csv, which must outlive them. The caller frees *ret_runs
 * (tt_free).
 */
int tt_cluster_runs(const struct tt_csv *csv, const char *where, struct tt_cluster_run **ret_runs) TT_MUST_CHECK;

/**
 * The back-test: predictions with the built-in numbers for all rows of tables of measured runs, and their errors,
 * predicted / measured - 1. NaN: there is no such number.
 */

/* Statistics of errors, without their signs. */
struct tt_score {
    int n;
    double median, p90, worst;
};

/*
 * Each row is predicted in four ways, which differ in the GEMM share (stack key gemm_share). A family is all rows of
 * one stack on one machine.
 *   shipped    the stack's share, fitted to rows of the family
 *   left out   the median of the shares that fit the other rows of the family
 *   one row    the share that fits the smallest run of the family, which itself gets no such prediction
 *   foreign    the median over the other families of the same machine
 * No share is fitted to rows that mostly wait for the host.
 */
struct tt_backtest_row {
    struct tt_cluster_time time; /* of the `shipped` prediction */
    struct tt_cluster_memory memory;
    double error, left_out, one_row, foreign, memory_error;
    /* as `left out`, but without any row of the same table, from the nearest runs that other sources measured; and from
     * all other runs of its stack and machine, of its own table too. With experts both are as `shipped`. */
    double outside, inside;
    double times_smallest; /* its devices, divided by the number of the run that `one_row` is fitted to; 0: none */
    double fitted;         /* the GEMM share for which the predicted time is exact */
    const char *memory_excluded;
};

struct tt_backtest_sweep {
    const char *id, *source;
    int n, n_oom, n_failed; /* numbers of rows that ran; that ran out of memory; that failed otherwise */
    double kendall_tau;
    /* the measured time of the layout predicted to be fastest, divided by the best measured time */
    double pick_over_best;
    /* the same among layouts that are predicted to fit with the margin; NaN: the chosen layout ran out of memory */
    double pick_that_fits;
    struct tt_score time;
};

struct tt_backtest {
    struct tt_cluster_run *run;
    struct tt_backtest_row *row; /* with the same index as the runs */
    int n;
    struct tt_backtest_sweep *sweep;
    int n_sweeps, cap_sweeps;
    bool sweeps_only; /* there are only sweeps, so `plain` is about them */
    /* of dense rows in 16 bits below 128k tokens; of rows with fp8, experts or longer sequences */
    struct tt_score plain, special;
    struct tt_score left_out, one_row, foreign; /* of plain rows */
    struct tt_score memory;
    int fits[2][2];     /* [predicted to fit][did fit] */
    int false_fits_far; /* rows that were predicted to fit with more than 5 % to spare but did not fit */
    /* published runs; how many of them are predicted not to fit, which is an error of the model; and of these, those
     * whose source does not say what is recomputed */
    int ran, ran_refused, ran_unstated;
    double growth; /* of the errors of predictions from a small run, for each e-fold of devices */
    double held;   /* for the caller, which computes it; tt_backtest_score leaves it NaN */
};

/* The 80 % interval of a job's time, as factors of the predicted time, with its evidence. */
struct tt_cluster_interval {
    double low, high;
    int rows, tables; /* measured runs whose errors give the width, and the number of their tables */
};

/**
 * The interval of a job from the errors of measured runs. Runs of the stack on the machine count with the errors of
 * predictions from their other runs. Ten runs count in addition, with the errors of predictions without the table that
 * contains them: those of the stack or of the machine and, if these come from fewer than three tables, all others like
 * them (of dense models or of experts). Each table counts as much as any other. The width is never below that of the
 * first runs alone. It grows if no run has so many devices, or so few.
 *   evidence  the back-test of the built-in tables
 *   without   the id of a run whose table is left out; NULL: none
 */
void tt_cluster_interval(const struct tt_backtest *evidence, const struct tt_cluster_job *job, const char *without,
                         struct tt_cluster_interval *ret);

/** Scores n tables, which must outlive the result; the caller releases it. */
int tt_backtest_score(const struct tt_csv *tables, const char *const *where, int n,
                      struct tt_backtest *ret_test) TT_MUST_CHECK;
void tt_backtest_release(struct tt_backtest *test);

/** The built-in tables of runs, of layouts, and of runs of models with experts, for tt_csv_parse. */
extern const char tt_backtest_runs[], tt_backtest_layouts[], tt_backtest_experts[];
extern const size_t tt_backtest_runs_size, tt_backtest_layouts_size, tt_backtest_experts_size;

/* The built-in runs from whose errors intervals are made, with their scores. Zero-initialise it. */
struct tt_backtest_evidence {
    struct tt_csv table[2];
    struct tt_backtest test;
};

/** Loads them. */
int tt_backtest_evidence_load(struct tt_backtest_evidence *ret_evidence) TT_MUST_CHECK;
void tt_backtest_evidence_release(struct tt_backtest_evidence *evidence);

/**
 * The GEMM share (stack key gemm_share) with which a job's step takes sec seconds, limited to 0.2 to 2.5, since no
 * hardware lies beyond that.
 */
double tt_cluster_fit(const struct tt_cluster_job *job, double sec);

/* The comparison of a run's log with its prediction. */
struct tt_cluster_calibration {
    int steps;
    double tokens_per_sec;  /* per device: the median of the steps after the first quarter */
    double bytes;           /* peak memory in the log's last step; 0: the log does not give it */
    double predicted_bytes; /* the same, predicted: memory as the framework's allocator counts it */
    double error;           /* errors of the prediction before and after the fit */
    double error_after;
    double old_share, share;
};

/**
 * Fits the GEMM share of a stack to a log of torchtitan; `where` names the log. TT_EDATA: there are too few steps, the
 * step mostly waits for the host, or the log belongs to another job.
 */
int tt_cluster_calibrate(const char *log, const char *where, const struct tt_cluster_job *job,
                         struct tt_cluster_stack *stack, struct tt_cluster_calibration *ret) TT_MUST_CHECK;

#endif
