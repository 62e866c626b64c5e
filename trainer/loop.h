/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_LOOP_H
#define TT_TRAINER_LOOP_H

#include <stdbool.h>

#include "checkpoint/steps/steps.h"
#include "trainer/data/data.h"
#include "trainer/job/setup.h"
#include "trainer/run/folder.h"
#include "trainer/save/saver.h"
#include "trainer/start/start.h"
#include "trainer/step/deadline.h"
#include "trainer/step/reporter.h"
#include "trainer/step/step.h"
#include "trainer/step/validation.h"
#include "trainer/tasks.h"
#include "trainer/text.h"

/**
 * The training loop of one rank. It consists of parts with one job each. The calls of a run, in order:
 *
 *     tt_setup_init      model, mesh, engine: all decisions, before anything is changed
 *     tt_loop_open       run folder, data, memory, weights or checkpoint
 *     tt_loop_run        load, step, report, save, validate, sample a text, score tasks
 *     tt_loop_close
 *     tt_setup_release
 *
 * All except closing are collective: every rank returns the same code, with the message of the lowest failing rank.
 */
struct tt_loop_options {
    const struct tt_run_events *events; /* must outlive the loop */
    bool overwrite;                     /* replace the run that is in the folder */
    int argc;                           /* of the command line, for run.yaml */
    char **argv;
};

/* The parts of a run that the banner and the final lines describe. */
struct tt_run_about {
    const struct tt_reporter *reporter;
    const struct tt_start *start;
    const struct tt_train_progress *at;
    const struct tt_train_data *data;
    const struct tt_validator *validator;
};

/* How long steps take, which decides how a signal stops them. */
struct tt_pace {
    double step_sec; /* time of the last step; at the start, the predicted time */
    bool is_long;    /* steps are long on some rank, so a stop signal ends them early */
};

struct tt_loop {
    const struct tt_setup *setup;
    struct tt_loop_options options;
    char run_id[TT_RUN_ID_BYTES]; /* identifies this start of the run; the same on all ranks */
    struct tt_run_folder folder;
    struct tt_train_data data;
    struct tt_validator validator;
    struct tt_train_text text;
    struct tt_train_tasks tasks;
    struct tt_train_progress at;
    struct tt_start start;
    struct tt_saver saver;
    struct tt_reporter reporter;
    struct tt_pace pace;
    struct tt_deadline_clock deadline;
    bool has_begun;       /* all parts are open */
    bool owes_validation; /* the validation that was due after the current step has not been done */
};

/** The set-up must outlive the loop. Close the loop after an error too. */
int tt_loop_open(const struct tt_setup *setup, const struct tt_loop_options *options,
                 struct tt_loop *ret_loop) TT_MUST_CHECK;

/** Trains to the last step. TT_ESTOPPED or TT_EINTERRUPTED after a signal, with everything saved. */
int tt_loop_run(struct tt_loop *loop) TT_MUST_CHECK;

/**
 * Writes the end record with the exit code and releases everything. If the opening failed, restores the run folder to
 * its state before it. Does nothing to a loop that is all zero.
 */
void tt_loop_close(struct tt_loop *loop, int exit_code);

/* --- trace.c --- */

/**
 * Chrome traces: what one rank did in one step, for chrome://tracing, ui.perfetto.dev and `titan trace summary`.
 * titan-trace(1) describes the file.
 */

/* The step just done, with times of tt_clock_sec. */
struct tt_trace_step {
    int64_t step;
    int rank, world, threads;
    struct tt_span load; /* from the beginning of loading the batch until all ranks have their batch */
    double end;          /* the end of the step */
    /* the longest load time of any rank: traces begin this long before the end of the load, so that the traces of all
     * ranks line up although their clocks differ */
    double lead;
};

/** Writes FOLDER/iteration_N/rankR_trace.json. Not collective: every rank writes its own. Errors: TT_EIO. */
int tt_trace_write(const struct tt_engine *engine, const struct tt_trace_step *step, const char *folder) TT_MUST_CHECK;

#endif
