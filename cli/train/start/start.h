/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_START_START_H
#define TT_CLI_TRAIN_START_START_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/load/load.h"
#include "cli/train/progress.h"
#include "cli/train/save/saver.h"

/** What a process starts from: the run's own newest checkpoint, other weights, or random ones. */
struct tt_start {
    char weights_from[512]; /* for the banner: "random init (seed 42)", "step-30", "PATH" */
    bool is_random;
    int64_t resumed_from; /* step, or -1 */
    int64_t batch_before; /* sequences of a step when that step was saved; 0: not known */
    json_t *changed;      /* keys changed since that step: {path: [before, now]}; NULL: not resumed */
};

/**
 * Loads the run's own folder first, else initial_load_*, else random init; sets progress and the line of steps that the
 * saver continues. Collective. The saver is open, if it will be. May be released after an error too.
 */
int tt_start_load(struct tt_saver *saver, const char *run_id, struct tt_train_progress *at,
                  struct tt_start *ret_start) TT_MUST_CHECK;
void tt_start_release(struct tt_start *start);

/* resume.c */

/** Whether the run's checkpoint folder holds a step, in use or set aside (rank 0's view; not collective). */
int tt_start_can_resume(const struct tt_config *cfg, bool *ret_can) TT_MUST_CHECK;

/** What the configuration asks of a resume; the parts that it leaves out. */
int tt_start_request(const struct tt_config *cfg, struct tt_ckpt_request *ret_request) TT_MUST_CHECK;
int tt_start_skip_flags(const struct tt_config *cfg, unsigned *ret_skip) TT_MUST_CHECK;

/**
 * Loads the step that the run continues from, if its folder holds one, and settles the line that its steps belong to:
 * what is not of it is set aside once everything is loaded. Collective.
 */
int tt_start_resume(struct tt_saver *saver, const char *folder, const char *run_id, struct tt_train_progress *at,
                    struct tt_start *start, bool *ret_resumed) TT_MUST_CHECK;

/**
 * Takes step, samples and schedule from a manifest, but not what is skipped. TT_EDATA when the samples are other ones.
 */
int tt_start_restore(const struct tt_saver *saver, const json_t *meta, unsigned skip,
                     struct tt_train_progress *at) TT_MUST_CHECK;

#endif
