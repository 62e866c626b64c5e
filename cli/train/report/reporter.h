/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_REPORT_REPORTER_H
#define TT_CLI_TRAIN_REPORT_REPORTER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "checkpoint/save/save.h"
#include "checkpoint/tools/consolidate.h"
#include "cli/run/records/metrics.h"
#include "core/os/team.h"
#include "core/program/split.h"
#include "trainer/job/setup.h"
#include "trainer/step/step.h"
#include "trainer/step/validation.h"

/**
 * All that a training run prints: banner, console lines, records, notes, warnings, and answers to signals. The rest of
 * the trainer prints nothing. Only rank 0 prints; the other ranks may call everything here.
 *
 * A report gives the mean of the steps since the last report. Saving and validating are pauses: neither their time nor
 * the bytes that they send are in the records of steps.
 */

/* What is summed since the last report. */
struct tt_report_window {
    double start, data_sec;
    int64_t steps;
    struct tt_split split; /* of the time of its instructions */
};

/* Seconds of training steps since the start of this process, and the parts of them that were spent on data and on
 * waiting for transfers. */
struct tt_spent {
    double step_sec, data_sec, exposed_sec;
    double group_sec[TT_GROUPS]; /* waits for collectives of each group */
};

/* The line between the reports of steps, on a terminal. */
struct tt_live {
    bool on;
    int64_t step, last_step;     /* the last complete step, and that of the run */
    double begun_sec, shown_sec; /* when the step that runs began, and when the line was last shown (tt_clock_sec) */
    double step_sec;             /* of a step since the last report; at first, as predicted */
    double every_sec;            /* between two such lines */
};

/* What the end of the run repeats. */
struct tt_results {
    int64_t tokens_before; /* seen when this process began */
    int64_t step;          /* the last one */
    double loss, z_loss;   /* z_loss NaN: there is none */
    int64_t validated;     /* the step of the last validation; 0: none */
    double validation_loss;
    int64_t saved; /* the step of the last checkpoint; 0: none */
};

struct tt_reporter {
    const struct tt_setup *setup;
    struct tt_metrics metrics; /* records and console of rank 0; every rank has the peak */
    int peaks;                 /* times that the peak was measured */
    double float_flops;        /* peak of this rank in float32, if the step computes in another type */
    double predicted_step_sec; /* by the cost table */
    double predicted_idle;     /* by the cost table: share of a run through a pipeline in which ranks are idle */
    int largest_rank;          /* of the ranks that need most memory, the lowest */
    int64_t largest_bytes;     /* the arena of that rank */
    double started_sec;        /* when the first step of this process began (tt_clock_sec) */
    struct tt_report_window window;
    struct tt_spent spent;
    struct tt_results results;
    struct tt_live live;
};

struct tt_start;
struct tt_validator;

/* What the banner and the record of the run contain in addition to the set-up. */
struct tt_run_about {
    const struct tt_start *start;
    const struct tt_train_progress *at;
    const struct tt_train_data *data;
    const struct tt_validator *validator;
    const char *run_id;
    bool verbose; /* the whole banner */
    int argc;     /* the command line */
    char **argv;
};

/** Prepares the reporter for notes and warnings. The set-up must outlive it. */
void tt_reporter_init(const struct tt_setup *setup, struct tt_reporter *ret_reporter);

/**
 * Opens the files of records in the run folder. Not collective.
 *   json  records on stdout instead of console lines
 */
int tt_reporter_open(struct tt_reporter *reporter, bool json) TT_MUST_CHECK;

/** Writes the end record with the last step and the exit code, if records are kept, and closes them. */
void tt_reporter_close(struct tt_reporter *reporter, int64_t step, int exit_code);

/**
 * Measures the matrix-multiply peak of this rank while all ranks compute. Does so a few times in a run and keeps the
 * largest: if the host was busy for a moment, the peak would be too low and steps would look too good. Takes
 * metrics.peak_flops instead if it is set. `team` is that of the engine, or one of as many threads. Collective.
 */
int tt_reporter_measure_peak(struct tt_reporter *reporter, struct tt_team *team) TT_MUST_CHECK;

/**
 * Sets largest_rank and largest_bytes, and predicts the time of a step with the machine file, or with the built-in cost
 * table at rank 0's measured peaks. Collective. Errors: those of tt_job_predict.
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
 * live.c: for the step that begins after `step` complete ones. On a terminal, but not with --json, rank 0 shows between
 * reports, a few times a second, how far it is. The reporter must outlive the tick.
 */
struct tt_tick tt_reporter_live(struct tt_reporter *reporter, int64_t step, int64_t last_step);

/* Time that does not count as time of steps. A pause may be within another one. */
struct tt_pause {
    double begin, window_start, wait_sec;
    int64_t payload_bytes;
};

struct tt_pause tt_reporter_pause(const struct tt_reporter *reporter);
void tt_reporter_resume(struct tt_reporter *reporter, const struct tt_pause *pause);

/* --- begin and end: begin.c --- */

/** Prints on `file` what a run will do, unless that is NULL; then warns if it is very long or only warms up. Rank 0
 * only. */
void tt_reporter_describe(const struct tt_reporter *reporter, const struct tt_run_about *about, FILE *file);

/** Writes the record of the run, and prints on stderr what is about to happen. */
void tt_reporter_begin(struct tt_reporter *reporter, const struct tt_run_about *about);

/** farewell.c: prints on stderr what the run has reached, where its time went, and what would make it faster. */
void tt_reporter_farewell(const struct tt_reporter *reporter, const struct tt_run_about *about);

/* --- events: events.c --- */

/** result: of each of the n sets; name: their names, NULL if the only one has none of its own. */
void tt_reporter_validated(struct tt_reporter *reporter, int64_t step, const struct tt_validation_result *result, int n,
                           const char *const *name);
void tt_reporter_sampled(struct tt_reporter *reporter, const struct tt_metrics_sample *sample);

/** No text was sampled, with this thread's error message, and training continues. */
void tt_reporter_sample_failed(const struct tt_reporter *reporter, int64_t step);
void tt_reporter_saved(struct tt_reporter *reporter, const struct tt_ckpt_saved *saved, bool async);

/** A save failed with this thread's error message, and training continues. */
void tt_reporter_save_failed(struct tt_reporter *reporter, int64_t step);

/** A save is due while that of step `writing` is still being written. */
void tt_reporter_save_waits(const struct tt_reporter *reporter, int64_t due, int64_t writing);
void tt_reporter_exported(const struct tt_reporter *reporter, const char *folder,
                          const struct tt_consolidated *exported);

/** What checkpoints need on the disk and what it has, in bytes. */
struct tt_saver_space {
    double have, most; /* free, and needed for all checkpoints that keep_latest_k keeps */
    int64_t fits;      /* how many can be kept; 0: as many as keep_latest_k says */
};

/** There is space for fewer checkpoints than checkpoint.keep_latest_k keeps. */
void tt_reporter_space_is_scarce(const struct tt_reporter *reporter, const char *folder,
                                 const struct tt_saver_space *space);

/** The folder that the model comes from has weights, which are not used. */
void tt_reporter_random_weights(const struct tt_reporter *reporter, const char *folder);

/** load_step and exclude_from_loading are not applied a second time: the run continues from `step`. */
void tt_reporter_request_was_applied(const struct tt_reporter *reporter, int64_t step);

/** Notes that this run has another gradient_sync than the resumed one had, if so. before NULL: not known. */
void tt_reporter_sync_changed(const struct tt_reporter *reporter, const char *before);

/** A trace could not be written, with this thread's error message. */
void tt_reporter_trace_failed(const struct tt_reporter *reporter, int64_t step);

/** A validation was cut short that cannot be done again as it was: the step has no averages of the weights. */
void tt_reporter_validation_is_lost(const struct tt_reporter *reporter, int64_t step);

/* Set the answer to the first signal: during the step that begins, which may end in its middle if it is long; during a
 * save; while a text is sampled; during a validation, which is given up; and at the end of the run. `saves`: a stop
 * saves. */
void tt_reporter_answer_in_step(const struct tt_reporter *reporter, int64_t steps_done, bool is_long, bool saves);
void tt_reporter_answer_in_save(const struct tt_reporter *reporter, int64_t step);
void tt_reporter_answer_in_sample(const struct tt_reporter *reporter, int64_t step, bool saves);
void tt_reporter_answer_in_validation(const struct tt_reporter *reporter, int64_t step, bool saves);
void tt_reporter_answer_at_end(const struct tt_reporter *reporter);

#endif
