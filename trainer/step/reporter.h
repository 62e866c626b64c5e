/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_REPORTER_H
#define TT_TRAINER_STEP_REPORTER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "checkpoint/save/save.h"
#include "core/os/team.h"
#include "core/program/instr/instr.h"
#include "trainer/job/setup.h"
#include "trainer/step/metrics.h"
#include "trainer/step/step.h"
#include "trainer/step/validation.h"

/**
 * What a training run reports: means over the steps since the last report, records and TensorBoard (metrics.h), and
 * answers to signals. Only rank 0 reports; the other ranks may call all of these functions.
 *
 * Saving and validating are pauses: the records of steps include neither their time nor the bytes that they send.
 */

struct tt_metrics {
    const struct tt_run_events *events;
    struct tt_records *records;    /* metrics.jsonl; NULL: none */
    struct tt_tensorboard *board;  /* NULL: none */
    bool output_lost;              /* noted once in metrics.jsonl */
    double flops_per_token;        /* torchtitan's formula */
    double flops_per_token_causal; /* the same without the masked positions of attention, which are not computed */
    double peak_flops;             /* of one rank; 0: unknown */
    double memory_total_bytes;
};

/* Sums since the last report. */
struct tt_report_window {
    double start, data_sec;
    int64_t steps;
    struct tt_split split; /* parts of the time of its instructions */
};

/* Seconds of training steps since the start of this process, and how many of them went into data and into waiting for
 * transfers. */
struct tt_spent {
    int64_t steps;
    double step_sec, data_sec, exposed_sec;
    double group_sec[TT_GROUPS]; /* seconds of waits for the collectives of each group */
};

/* The step that is running, for a live line between two reports. */
struct tt_live {
    int64_t step, last_step; /* the last complete step; the last step of the run */
    double begun_sec;        /* when the current step began (tt_clock_sec) */
    double step_sec;         /* mean time of a step since the last report; at first, the predicted time */
};

/* Results that the last lines of a run repeat. */
struct tt_results {
    int64_t tokens_before; /* tokens seen before this process began */
    int64_t step;          /* the last step */
    double loss, z_loss;   /* z_loss NaN: there is none */
    int64_t validated;     /* the step of the last validation; 0: none */
    double validation_loss;
    int64_t saved; /* the step of the last checkpoint; 0: none */
};

struct tt_reporter {
    const struct tt_setup *setup;
    struct tt_metrics metrics; /* for rank 0 to write; the peak in it is known to every rank */
    int peaks;                 /* how often the peak was measured */
    char others[96];    /* "load 13 on 2 CPUs: others use this machine" when the peak was measured first; or "" */
    double float_flops; /* peak of this rank in float32, if the step computes in another type */
    double predicted_step_sec; /* by the cost table */
    double predicted_idle;     /* by the cost table: the idle share of a run through the pipeline */
    int largest_rank;          /* the lowest of the ranks that need the most memory */
    int64_t largest_bytes;     /* the size of that rank's arena */
    double started_sec;        /* when the first step of this process began (tt_clock_sec) */
    struct tt_report_window window;
    struct tt_spent spent;
    struct tt_results results;
    struct tt_live live;
};

/** The set-up and the events must outlive the reporter. events NULL: no step will be reported. */
void tt_reporter_init(const struct tt_setup *setup, const struct tt_run_events *events,
                      struct tt_reporter *ret_reporter);

/** Opens the files of records in the run folder. Not collective. */
int tt_reporter_open(struct tt_reporter *reporter) TT_MUST_CHECK;

/** Writes a record (takes the reference) to the file, and passes it to the command, which shows it; adds "time". Rank
 * 0. */
void tt_reporter_record(struct tt_reporter *reporter, json_t *record);

/** Writes the end record with the last step and the exit code, if records are kept, and closes them. */
void tt_reporter_close(struct tt_reporter *reporter, int64_t step, int exit_code);

/**
 * Measures the GEMM peak of this rank while all ranks compute. Does so a few times in a run and keeps the largest
 * result: if the host is busy for a moment, the measurement is too low, and steps look too good. Takes
 * metrics.peak_flops instead if it is set. `team` is the engine's, or one with the same number of threads. Collective.
 */
int tt_reporter_measure_peak(struct tt_reporter *reporter, struct tt_team *team) TT_MUST_CHECK;

/**
 * Sets largest_rank and largest_bytes, and predicts the time of a step with the machine file, or with the built-in cost
 * table at rank 0's measured peaks. Collective. Errors: as tt_job_predict.
 */
int tt_reporter_predict(struct tt_reporter *reporter) TT_MUST_CHECK;

/* --- steps --- */

/** Begins the first window. */
void tt_reporter_begin_steps(struct tt_reporter *reporter, const struct tt_train_progress *at);

/** Counts a completed step. */
void tt_reporter_count(struct tt_reporter *reporter, int64_t step, const struct tt_train_step *done);

/** Reports the completed step, with means over the steps since the last report, and begins the next window.
 * Collective. */
int tt_reporter_step(struct tt_reporter *reporter, const struct tt_train_step *done, const struct tt_train_progress *at,
                     int64_t last_step) TT_MUST_CHECK;

/**
 * A function to call during the step that follows `step` complete steps; it shows the progress between reports. The
 * reporter must outlive the tick.
 */
struct tt_tick tt_reporter_live(struct tt_reporter *reporter, int64_t step, int64_t last_step);

/* Time that does not count as step time. A pause may lie within another one. */
struct tt_pause {
    double begin, window_start, wait_sec;
    int64_t payload_bytes;
};

struct tt_pause tt_reporter_pause(const struct tt_reporter *reporter);
void tt_reporter_resume(struct tt_reporter *reporter, const struct tt_pause *pause);

/* --- events --- */

/** result: [n], one per set; name: [n], where NULL stands for an only set without a name. */
void tt_reporter_validated(struct tt_reporter *reporter, int64_t step, const struct tt_validation_result *result, int n,
                           const char *const *name);
/** before: the last step until now; step_sec: the time of a step on which the decision depends. */
void tt_reporter_moved(struct tt_reporter *reporter, const struct tt_train_progress *at, int64_t before,
                       double step_sec);
void tt_reporter_sampled(struct tt_reporter *reporter, const struct tt_metrics_sample *sample);

/** Rank 0 only. */
void tt_reporter_scored(struct tt_reporter *reporter, const struct tt_metrics_task *task);

void tt_reporter_saved(struct tt_reporter *reporter, const struct tt_ckpt_saved *saved, bool async);

/** Reports that a save failed, with this thread's error message. Training continues. */
void tt_reporter_save_failed(struct tt_reporter *reporter, int64_t step);

#endif
