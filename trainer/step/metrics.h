/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_METRICS_H
#define TT_TRAINER_STEP_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/save/save.h"
#include "core/base/json.h"
#include "parallel/engine/engine.h"
#include "trainer/run/records.h"
#include "trainer/run/tensorboard.h"

/**
 * The reports of a run: numbers of steps (metrics.def), validations, sampled texts, scores on tasks and checkpoints.
 * They go to metrics.jsonl, one JSON object a line, appended and flushed; to TensorBoard, under torchtitan's tags; and
 * to the command, which shows them. Rank 0 only. Means are over the steps since the last report.
 */

enum tt_metric {
#define TT_METRIC(id, name, presence, source, line, board, watch, status) TT_METRIC_##id,
#include "trainer/step/metrics.def"
    TT_METRICS
};

enum tt_task_metric {
#define TT_TASK_METRIC(id, name, place, source) TT_TASK_METRIC_##id,
#include "trainer/step/metrics.def"
    TT_TASK_METRICS
};

/* How a number is shown in the console line. */
enum tt_metric_how { TT_HOW_NUMBER, TT_HOW_COUNT, TT_HOW_DURATION, TT_HOW_SHARE };

/* Lists that show metrics in a fixed order, counted from 1. */
enum tt_metric_list { TT_LIST_LINE, TT_LIST_BOARD, TT_LIST_STATUS, TT_LISTS };

enum { TT_WATCH_CHART = 1, TT_WATCH_COMPARE = 2 };

/* A row of metrics.def, which explains the members. */
struct tt_metric_row {
    const char *name;
    bool is_integer, is_optional;
    int place[TT_LISTS]; /* 0: not in that list */
    int rank;
    const char *color;
    enum tt_metric_how how;
    const char *text, *tag;
    unsigned watch;
};

extern const struct tt_metric_row tt_metric_rows[TT_METRICS];

struct tt_task_metric_row {
    const char *name;
    bool is_shown; /* on the console and by TensorBoard */
};

extern const struct tt_task_metric_row tt_task_metric_rows[TT_TASK_METRICS];

/** The metric at a place in a list; TT_METRICS: there is none. */
enum tt_metric tt_metric_at(enum tt_metric_list list, int place);

/**
 * How evenly the experts of a step were loaded. The imbalance of a layer is the load of its busiest expert, divided by
 * the mean over its experts: 1 if all loads are equal, at most the number of experts.
 */
struct tt_loads {
    const int64_t
        *slots; /* [blocks][experts]: the slots of each expert, 0 in blocks without experts; NULL: not known */
    int blocks, experts;
    bool all; /* records list every load */
};

/* One reported step; times in seconds and averaged over the steps since the last report. */
struct tt_step_report {
    const struct tt_config *cfg;
    const struct tt_step *of; /* the last step, which is complete */
    int64_t step, total_steps;
    int64_t ntokens_seen;
    double max_loss; /* the largest loss of any rank */
    double tps;      /* tokens per second of a rank */
    double step_time, data_time, comm_time, comm_exposed;
    int64_t comm_bytes;    /* payload that this rank sent in one step */
    double memory_bytes;   /* largest resident size so far, of any rank */
    struct tt_loads loads; /* expert loads of this step */

    double memory_total_bytes, peak_flops, flops_per_token, flops_per_token_causal; /* as in struct tt_metrics */
    double value[TT_METRICS];                                                       /* by metrics.def */
};

/* A validation set and its name. */
struct tt_metrics_set {
    const char *name;
    double loss;
    int64_t tokens;
};

/* A validation: its results over all sets, and over each named set. */
struct tt_metrics_validation {
    int64_t step;
    double loss; /* mean over the tokens of all sets */
    int64_t tokens;
    double seconds;
    double tps;              /* tokens per second of a rank */
    double gib, gib_percent; /* largest resident size so far, and its share of the machine's memory */
    int n;
    const struct tt_metrics_set *set;
};

/* A text that was sampled from the model. */
struct tt_metrics_sample {
    int64_t step;
    const char *prompt; /* NULL: the beginning of a document */
    const char *text;   /* without a tokenizer, the numbers of the tokens */
    int64_t tokens;
    const char *finish; /* tt_finish_name */
    double seconds;     /* seconds for generating it, and for collecting the weights */
};

/* The scores on a task. */
struct tt_metrics_task {
    int64_t step;
    const char *path, *name, *format;
    int documents;
    int64_t cut;                   /* contexts of which the beginning did not fit */
    double value[TT_TASK_METRICS]; /* by metrics.def; NaN: left out */
    double seconds;
};

struct tt_run_about;

/**
 * Callbacks to the command, which shows the run and handles signals: the trainer itself prints nothing and handles no
 * signal. The functions with `arg`, and `answer`, are called on rank 0 only, the others on every rank.
 */
struct tt_run_events {
    void *arg;
    bool live; /* rank 0 shows lines that are rewritten in place */
    void (*begin)(void *arg, const struct tt_run_about *about);
    void (*step)(void *arg, const struct tt_step_report *report);
    void (*validated)(void *arg, const struct tt_metrics_validation *validation);
    void (*sampled)(void *arg, const struct tt_metrics_sample *sample);
    void (*scored)(void *arg, const struct tt_metrics_task *task);
    void (*record)(void *arg, const char *line); /* a line of metrics.jsonl */
    void (*saves)(void *arg);                    /* a checkpoint is being saved, while steps pause */
    void (*tick)(void *reporter, double sec);    /* with `live`, after every instruction of a step */
    void (*end)(void *arg, const struct tt_run_about *about);

    /* "output" or "error", if that standard stream can no longer be written; NULL: both can */
    const char *(*lost)(void *arg);

    /* sets the answer to a first signal, and the effect of a second one (cli/run/signals.h) */
    void (*answer)(const char *text, const char *again);
    int (*asked_to_stop)(void); /* 0, TT_ESTOPPED or TT_EINTERRUPTED */

    /* seconds since the last warning from mpirun that is still unsettled; negative: there is none */
    double (*warned_sec)(void);
    void (*settle_warning)(void);
};

#endif
