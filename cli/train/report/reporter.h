/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_REPORT_REPORTER_H
#define TT_CLI_TRAIN_REPORT_REPORTER_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/save/save.h"
#include "checkpoint/tools/consolidate.h"
#include "cli/run/records/metrics.h"
#include "cli/run/validation.h"
#include "cli/train/progress.h"
#include "cli/train/setup.h"
#include "cli/train/step.h"
#include "core/program/split.h"

/**
 * All that a training run says: banner, console lines, records, notes and warnings, and what a signal is answered. The
 * rest of the trainer prints nothing. Only rank 0 speaks; other ranks may call everything here.
 *
 * A reported step is the mean of the steps since the last report. What is not training (saving, validating) is a pause:
 * it is not in the records of steps, neither its time nor what it sends.
 */

/* Since the last report. */
struct tt_report_window {
    double start, data_sec;
    int64_t steps;
    struct tt_split split; /* of the time of its instructions */
};

/* Seconds of training steps since the start of this process, and what of them was waiting. */
struct tt_spent {
    double step_sec, data_sec, exposed_sec;
};

struct tt_reporter {
    const struct tt_setup *setup;
    struct tt_metrics metrics; /* records and console: rank 0; the peak: every rank */
    int peaks;                 /* times that the peak was measured */
    double predicted_step_sec; /* by the cost table */
    double started_sec;        /* when the first step of this process began (tt_clock_sec) */
    struct tt_report_window window;
    struct tt_spent spent;
};

struct tt_start;

/* What the banner and the record of the run tell beside the set-up. */
struct tt_run_about {
    const struct tt_start *start;
    const struct tt_train_progress *at;
    const struct tt_train_data *data, *validation; /* the latter without dataset: there is no validation */
    const char *run_id;
    int argc; /* the command line */
    char **argv;
};

/** Sets the reporter up to say notes and warnings; the set-up must outlive it. */
void tt_reporter_init(const struct tt_setup *setup, struct tt_reporter *ret_reporter);

/**
 * Opens the files of records in the run folder. Not collective.
 *   json  records on stdout instead of console lines
 */
int tt_reporter_open(struct tt_reporter *reporter, bool json) TT_MUST_CHECK;

/** Writes the end record, with the last step and the exit code, if there are records, and closes them. */
void tt_reporter_close(struct tt_reporter *reporter, int64_t step, int exit_code);

/**
 * Measures the matrix-multiply peak of this rank while all ranks compute, a few times in a run, and keeps the largest:
 * where the host was busy for a moment, steps would look better than they are. Nothing if metrics.peak_flops gives it.
 * Collective.
 */
int tt_reporter_measure_peak(struct tt_reporter *reporter) TT_MUST_CHECK;

/** Sets predicted_step_sec: by the cost table, or by the built-in one at the rate of the measured peak. */
void tt_reporter_predict(struct tt_reporter *reporter);

/* --- steps --- */

/** Steps begin: the first window opens. */
void tt_reporter_begin_steps(struct tt_reporter *reporter);

/** Counts a step that was done; data_sec is the time that loading took. */
void tt_reporter_count(struct tt_reporter *reporter, double data_sec);

/** Reports the step just done, averaged over the steps since the last report, and opens the next window. Collective. */
int tt_reporter_step(struct tt_reporter *reporter, const struct tt_train_step *done, const struct tt_train_progress *at,
                     int64_t last_step) TT_MUST_CHECK;

struct tt_pause {
    double begin, wait_sec;
    int64_t payload_bytes;
};

struct tt_pause tt_reporter_pause(const struct tt_reporter *reporter);
void tt_reporter_resume(struct tt_reporter *reporter, const struct tt_pause *pause);

/* --- begin and end: banner.c --- */

/** The record of the run, and what is about to happen, on stderr. */
void tt_reporter_begin(struct tt_reporter *reporter, const struct tt_run_about *about);

/** What the run gave and what one might do next, on stderr. */
void tt_reporter_farewell(const struct tt_reporter *reporter, const struct tt_run_about *about);

/* --- what happens: events.c --- */

void tt_reporter_validated(struct tt_reporter *reporter, int64_t step, const struct tt_validation_result *result);
void tt_reporter_saved(struct tt_reporter *reporter, const struct tt_ckpt_saved *saved, bool async);

/** A save failed, with this thread's error message, and training continues. */
void tt_reporter_save_failed(struct tt_reporter *reporter, int64_t step);

/** A save is due, and the one of step `writing` is not written yet. */
void tt_reporter_save_waits(const struct tt_reporter *reporter, int64_t due, int64_t writing);
void tt_reporter_exported(const struct tt_reporter *reporter, const char *folder,
                          const struct tt_consolidated *exported);

/** There is room for `fits` checkpoints, not for as many as checkpoint.keep_latest_k keeps. */
void tt_reporter_space_is_scarce(const struct tt_reporter *reporter, const char *folder, double need, double have,
                                 int64_t fits);

/** The folder that the model comes from has weights, which are not used. */
void tt_reporter_random_weights(const struct tt_reporter *reporter, const char *folder);

/** load_step and exclude_from_loading are not applied a second time: the run continues from `step`. */
void tt_reporter_request_was_applied(const struct tt_reporter *reporter, int64_t step);

/** The gradient_sync of the run that is resumed; says something if this one has another. NULL: not known. */
void tt_reporter_sync_changed(const struct tt_reporter *reporter, const char *before);

/** A trace was not written, with this thread's error message. */
void tt_reporter_trace_failed(const struct tt_reporter *reporter, int64_t step);

/* What the first signal is answered: during the step that begins, in the middle of which a long one may end; during
 * what follows a step ("checkpoint", "validation"); after everything. */
void tt_reporter_answer_in_step(const struct tt_reporter *reporter, int64_t steps_done, bool is_long, bool saves);
void tt_reporter_answer_in(const struct tt_reporter *reporter, const char *what, int64_t step);
void tt_reporter_answer_at_end(const struct tt_reporter *reporter);

#endif
