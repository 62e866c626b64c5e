/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_DEADLINE_H
#define TT_TRAINER_STEP_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

#include "trainer/step/step.h"

/**
 * The end of a run with lr_scheduler.finish_by. Rank 0 measures the steps, and decides on a new last step if the last
 * one no longer fits. All ranks learn of a decision at the end of the step, and add it to the progress of the run.
 * Everything that follows depends on the decisions and not on the clock, so lr_scheduler.ends repeats the run.
 */

/* What a decision depends on. Times in seconds. */
struct tt_deadline_facts {
    int64_t step;       /* steps done */
    double trained_sec; /* time of training so far */
    double finish_sec;  /* lr_scheduler.finish_by */
    double step_sec;    /* a step, with its share of the pauses between steps; 0: not known yet */
    double tail_sec;    /* what follows the last step: validation and save */
    int64_t last;       /* the last step by earlier decisions */
    int64_t most;       /* the last step that training.steps and the data allow */
};

/**
 * The last step that should apply now: facts->last if it still fits about, since every change bends the curve of the
 * learning rate. At least 1 and facts->step, at most facts->most. Depends on nothing else.
 */
int64_t tt_deadline_decide(const struct tt_deadline_facts *facts);

/** The steps for which there is time, at most `left`; `left` without finish_by. For predictions. */
int64_t tt_deadline_steps(const struct tt_config *cfg, const struct tt_train_progress *at, double step_sec,
                          int64_t left);

/* Measured by every rank, and used by rank 0. */
struct tt_deadline_clock {
    double begun_sec, before_sec; /* when this process began (tt_clock_sec), and the training before it */
    bool pretends;                /* TITAN_STEP_SEC says how long steps take; before_sec then contains all of it */
    int64_t steps;                /* steps measured, except the first */
    double step_sec;              /* mean time of the last steps, without pauses */
    double pause_sec, longest_pause_sec;
    int64_t next;  /* no decision before this many steps are done */
    int64_t asked; /* the step of the last proposal */
    bool noted_most;
};

/** Begins to measure, with the progress from which the process continues. begun_sec: tt_clock_sec of its beginning. */
void tt_deadline_begin(const struct tt_train_progress *at, double begun_sec, struct tt_deadline_clock *ret_clock);

/** Counts step `step`, of which `left` others follow, and the pause after a step. */
void tt_deadline_count(struct tt_deadline_clock *clock, int64_t step, double sec, int64_t left);
void tt_deadline_pause(struct tt_deadline_clock *clock, double sec);

/** The time of training up to now. */
double tt_deadline_trained_sec(const struct tt_deadline_clock *clock);

/**
 * For rank 0, at the end of a step: the last step by a new decision; 0 if there is none, or if this is not the first
 * call at this step: what follows a last step has then been left out. most: as in the facts.
 */
int64_t tt_deadline_propose(struct tt_deadline_clock *clock, const struct tt_config *cfg,
                            const struct tt_train_progress *at, int64_t most);

#endif
