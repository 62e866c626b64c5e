/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_START_START_H
#define TT_TRAINER_START_START_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/load/load.h"
#include "core/base/text.h"
#include "trainer/job/setup.h"
#include "trainer/save/saver.h"
#include "trainer/step/step.h"

/* The changes since the step from which a run continues. */
struct tt_changes {
    int64_t step;       /* -1: the run does not continue */
    int64_t batch;      /* sequences per step in the run that saved the step; 0: not known */
    int64_t microbatch; /* sequences per microbatch in that run; 0: not known */
    json_t *keys;       /* {path: [before, now]}; NULL: the run does not continue */
};

/** Appends lines of the banner: the changes since the step from which the run continues, and whether they change its
 * losses. */
void tt_changed_text(const struct tt_setup *setup, const struct tt_changes *since, struct tt_text *out);

/** The origin of this start: the run's own newest checkpoint, other weights, or random ones. */
struct tt_start {
    char weights_from[512]; /* for the banner: "random init (seed 42)", "step-30", "PATH" */
    bool is_random;
    bool averages_begin;     /* the step contains no averages, so they begin as copies of the weights */
    struct tt_changes since; /* the step from which the run continues */
};

/**
 * Loads the newest checkpoint of the run's own folder, or the weights that initial_load_* names, or initialises
 * randomly. Sets the progress, and the line of steps that the saver continues. Call after tt_saver_open. Collective.
 * May be released after an error too.
 */
int tt_start_load(struct tt_saver *saver, const char *run_id, struct tt_train_progress *at,
                  struct tt_start *ret_start) TT_MUST_CHECK;

/**
 * Finds the start of tt_start_load without loading it or changing a folder. Steps and other weights are chosen and
 * compared with the configuration in the same way, but checksums are not verified.
 *   starts_over  the run replaces the run in its folder
 * Collective. May be released after an error too.
 */
int tt_start_peek(const struct tt_setup *setup, const struct tt_train_data *data, bool starts_over,
                  struct tt_train_progress *at, struct tt_start *ret_start) TT_MUST_CHECK;
void tt_start_release(struct tt_start *start);

/** Whether the run's checkpoint folder contains a step, even one that was set aside. Not collective. */
int tt_start_can_resume(const struct tt_config *cfg, bool *ret_can) TT_MUST_CHECK;

#endif
