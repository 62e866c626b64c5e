/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_SCREEN_H
#define TT_CLI_TRAIN_SCREEN_H

#include <stdbool.h>
#include <stdio.h>

#include "core/base/text.h"
#include "trainer/dry.h"
#include "trainer/loop.h"

/** The output of a training run on the terminal and in console.log; rank 0 only. */
struct tt_train_screen {
    struct tt_run_events events; /* for the training loop */
    bool json;                   /* print records on stdout instead of lines */
    bool verbose;                /* print the whole banner */
    bool color;
    int columns; /* of the terminal; 0: lines of any length */
    /* when the live line was last shown (tt_clock_sec), and the seconds between two of them */
    double shown_sec, every_sec;
};

/** The screen must not be moved afterwards. */
void tt_train_screen_init(const struct tt_setup *setup, bool json, bool verbose, struct tt_train_screen *ret_screen);

/**
 * Prints the plan of a run to `file`, unless that is NULL; then warns if the run is very long, or consists of warm-up
 * only.
 *   verbose  print the whole banner
 */
void tt_describe_run(const struct tt_run_about *about, bool verbose, FILE *file);

/**
 * Appends how a run spent its time and, if communication, data or memory slows it down, a remedy. Uses rank 0's
 * numbers; not collective. titan-parallel(7), CHOOSING POLICIES, explains the choices.
 */
void tt_advice(const struct tt_setup *setup, const struct tt_spent *spent, struct tt_text *out);

/**
 * Appends a hint if steps took more than twice as long as predicted, for long enough that it matters.
 *   others  who uses this machine too (tt_load_text), or ""
 */
void tt_advice_pace(const struct tt_spent *spent, double predicted_step_sec, const char *others, struct tt_text *out);

/* --- banner.c: what a run will do, from the first core to the last byte --- */

enum { TT_BANNER_INDENT = 11 }; /* columns of a label, "  sharding " */

/** "" or "s". */
const char *tt_plural(int64_t n);

/** The last step of the run. */
int64_t tt_last_step_of(const struct tt_run_about *about);

/** The last step that training.steps and the data allow. */
int64_t tt_most_steps_of(const struct tt_run_about *about);

/** The number of steps that are left, by the predicted time of a step if lr_scheduler.finish_by limits it. */
int64_t tt_steps_left_of(const struct tt_run_about *about);

/** Appends the whole banner: for console.log, --verbose and a dry run. */
void tt_banner_all(const struct tt_run_about *about, struct tt_text *out);

/**
 * Appends the short banner: six lines, each cut to `columns` (0: uncut). Then follow the changes since the step from
 * which the run continues and, with job.print_config, the configuration.
 */
void tt_banner_brief(const struct tt_run_about *about, int columns, struct tt_text *out);

#endif
