/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_START_START_H
#define TT_CLI_TRAIN_START_START_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/load/load.h"
#include "cli/train/save/saver.h"
#include "trainer/step/step.h"

/** What this start of the run began from: the run's own newest checkpoint, other weights, or random ones. */
struct tt_start {
    char weights_from[512]; /* for the banner: "random init (seed 42)", "step-30", "PATH" */
    bool is_random;
    int64_t resumed_from;      /* step, or -1 */
    int64_t batch_before;      /* sequences of a step in the run that saved it; 0: not known */
    int64_t microbatch_before; /* and of a microbatch; 0: not known */
    bool averages_begin;       /* the step had no averages of the weights, which begin as the weights */
    json_t *changed;           /* keys changed since that step: {path: [before, now]}; NULL: not resumed */
};

/**
 * Loads the newest checkpoint of the run's own folder, else what initial_load_* names, else initialises randomly. Sets
 * the progress, and the line of steps that the saver continues. Call after tt_saver_open. Collective. May be released
 * after an error too.
 */
int tt_start_load(struct tt_saver *saver, const char *run_id, struct tt_train_progress *at,
                  struct tt_start *ret_start) TT_MUST_CHECK;

/**
 * What tt_start_load would begin from, without loading it or changing a folder. A step is chosen and compared with the
 * configuration in the same way, and so are other weights, but checksums are not verified.
 *   starts_over  the run replaces the one in its folder
 * Collective. May be released after an error too.
 */
int tt_start_peek(const struct tt_setup *setup, const struct tt_train_data *data, const struct tt_reporter *reporter,
                  bool starts_over, struct tt_train_progress *at, struct tt_start *ret_start) TT_MUST_CHECK;
void tt_start_release(struct tt_start *start);

/* resume.c */

/** Whether the run's checkpoint folder has a step, even one that was set aside. Not collective. */
int tt_start_can_resume(const struct tt_config *cfg, bool *ret_can) TT_MUST_CHECK;

/**
 * Loads the step from which the run continues, if its folder has one, and decides the line of its coming steps. Steps
 * that are not of that line are set aside after everything is loaded. Collective.
 */
int tt_start_resume(struct tt_saver *saver, const char *folder, const char *run_id, struct tt_train_progress *at,
                    struct tt_start *start, bool *ret_resumed) TT_MUST_CHECK;

/**
 * Takes step, samples and schedule from a manifest's description, except what `skip` excludes. TT_EDATA if this run's
 * samples are other ones.
 */
int tt_start_restore(const struct tt_config *cfg, const struct tt_train_data *data, const json_t *meta, unsigned skip,
                     struct tt_train_progress *at) TT_MUST_CHECK;

/** Compares the tensors of a checkpoint, except what `skip` excludes, with those of the run (tt_ckpt_examine). */
int tt_start_examine(const struct tt_setup *setup, const char *path, unsigned skip, json_t **ret_meta) TT_MUST_CHECK;

/** The part of tt_start_peek that looks for a step of the run's own folder. */
int tt_start_peek_step(const struct tt_setup *setup, const struct tt_train_data *data, struct tt_train_progress *at,
                       struct tt_start *start, bool *ret_resumes) TT_MUST_CHECK;

#endif
