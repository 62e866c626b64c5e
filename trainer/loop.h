/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_LOOP_H
#define TT_TRAINER_LOOP_H

#include <stdbool.h>

#include "checkpoint/steps/store.h"
#include "trainer/data/data.h"
#include "trainer/job/setup.h"
#include "trainer/run/folder.h"
#include "trainer/save/saver.h"
#include "trainer/start/start.h"
#include "trainer/step/reporter.h"
#include "trainer/step/step.h"
#include "trainer/step/validation.h"
#include "trainer/text.h"

/**
 * The training loop of one rank. It is made of parts that have one job each. The order of calls is that of a run:
 *
 *     tt_setup_init      model, mesh, engine: what will happen, before anything is changed
 *     tt_loop_open       run folder, data, memory, weights or checkpoint
 *     tt_loop_run        load, step, report, save, validate, sample a text
 *     tt_loop_close
 *     tt_setup_release
 *
 * All but closing are collective: every rank returns the same code, with the message of the lowest failing rank.
 */
struct tt_loop_options {
    const struct tt_run_events *events; /* outlive the loop */
    bool overwrite;                     /* replace the run that the folder holds */
    int argc;                           /* of the command line, for run.yaml */
    char **argv;
};

/* The parts of a run that the lines at its begin and end describe. */
struct tt_run_about {
    const struct tt_reporter *reporter;
    const struct tt_start *start;
    const struct tt_train_progress *at;
    const struct tt_train_data *data;
    const struct tt_validator *validator;
};

/* The length of steps, which decides how a signal stops them. */
struct tt_pace {
    double step_sec; /* of the last step; at the start, as predicted */
    bool is_long;    /* steps are long on some rank, so a stop signal ends them in the middle */
};

struct tt_loop {
    const struct tt_setup *setup;
    struct tt_loop_options options;
    char run_id[TT_RUN_ID_BYTES]; /* of the part of the run from this start on; the same on all ranks */
    struct tt_run_folder folder;
    struct tt_train_data data;
    struct tt_validator validator;
    struct tt_train_text text;
    struct tt_train_progress at;
    struct tt_start start;
    struct tt_saver saver;
    struct tt_reporter reporter;
    struct tt_pace pace;
    bool has_begun;       /* all parts are open */
    bool owes_validation; /* the one that is due after the present step is not done yet */
};

/** The set-up must outlive the loop, which may be closed after an error too. */
int tt_loop_open(const struct tt_setup *setup, const struct tt_loop_options *options,
                 struct tt_loop *ret_loop) TT_MUST_CHECK;

/** Trains to the last step. TT_ESTOPPED or TT_EINTERRUPTED after a signal, with everything saved. */
int tt_loop_run(struct tt_loop *loop) TT_MUST_CHECK;

/**
 * Writes the end record with the exit code and releases everything. After an opening that failed nothing stays in the
 * run folder that was not there before. Does nothing for a loop that is all zero.
 */
void tt_loop_close(struct tt_loop *loop, int exit_code);

/* --- trace.c --- */

/**
 * Chrome traces: what one rank did in one step, for chrome://tracing, ui.perfetto.dev and `titan trace summary`.
 * titan-trace(1) describes the file.
 */

/* The step just done. Times are of tt_clock_sec. */
struct tt_trace_step {
    int64_t step;
    int rank, world, threads;
    struct tt_span load; /* loading the batch, until all ranks have theirs */
    double end;          /* of the step */
    double lead; /* the longest load of all ranks: traces begin this long before the end of the load, so that the
                            ranks' traces lie right above each other although their clocks differ */
};

/** Writes FOLDER/iteration_N/rankR_trace.json. Not collective: every rank writes its own. Errors: TT_EIO. */
int tt_trace_write(const struct tt_engine *engine, const struct tt_trace_step *step, const char *folder) TT_MUST_CHECK;

#endif
