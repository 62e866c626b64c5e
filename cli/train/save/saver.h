/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_SAVE_SAVER_H
#define TT_CLI_TRAIN_SAVE_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/save/save.h"
#include "checkpoint/save/writer.h"
#include "checkpoint/steps/store.h"
#include "cli/train/progress.h"
#include "cli/train/report/reporter.h"
#include "cli/train/save/assets.h"
#include "cli/train/save/view.h"
#include "cli/train/setup.h"

/**
 * The checkpoints that a run saves: which are due, what goes into them, and the one that is under way. With
 * async_mode at most one save is under way; it is ended, with its agreement and renaming, at the end of a step by
 * all ranks at once.
 */
struct tt_saver {
    const struct tt_setup *setup;
    struct tt_reporter *reporter;
    const struct tt_train_data *data;
    struct tt_state_view view;
    struct tt_train_assets assets;
    struct tt_ckpt_store *store;   /* NULL: nothing is saved */
    struct tt_ckpt_writer *writer; /* NULL: saves block */
    struct tt_ckpt_saving *saving; /* under way; only with a writer */
    int64_t saving_step;
    int64_t saved_step; /* the last one that this run published or resumed from, or -1 */
    json_t *line;       /* of the steps that this process saves (checkpoint/steps/line.h) */
};

/** After tt_engine_allocate; what is given must outlive the saver. Saves nothing until it is opened. */
void tt_saver_init(const struct tt_setup *setup, struct tt_reporter *reporter, const struct tt_train_data *data,
                   struct tt_saver *ret_saver);

/** Opens the folder for saving, and with async_mode the writer and its memory. Collective. */
int tt_saver_open(struct tt_saver *saver, const char *folder, const char *run_id) TT_MUST_CHECK;

/** Gives up a save that is under way, and releases everything. Not collective. */
void tt_saver_close(struct tt_saver *saver);

/** Whether a save is due after a step; `last`: after the last one, or because training stops. */
bool tt_saver_is_due(const struct tt_saver *saver, int64_t step, bool last);

/**
 * Saves the state as it is now, after ending a save under way. `last` applies last_save_model_only; it and `stop` make
 * the save block. One that fails for want of space is a warning, unless it is the last or training stops. Collective.
 */
int tt_saver_save(struct tt_saver *saver, const struct tt_train_progress *at, bool last, bool stop) TT_MUST_CHECK;

/** Whether this rank has nothing left to write; local. */
bool tt_saver_is_written(const struct tt_saver *saver);

/** Waits for the save under way, if any, and publishes it. Collective; at once when all ranks' files are written. */
int tt_saver_end(struct tt_saver *saver) TT_MUST_CHECK;

/**
 * For a run that was complete when it started, at a step of its own folder: does what its last save left undone because
 * the process was killed or the disk failed. Older steps are removed if `retains`, as keep_latest_k says. With
 * last_save_in_hf a missing export is made. Collective.
 */
int tt_saver_complete(struct tt_saver *saver, int64_t step, bool retains) TT_MUST_CHECK;

/** Compares the replicas' weights and moments, with several replicas (collective): what a save does, without saving. */
int tt_saver_check_replicas(const struct tt_saver *saver, int64_t step) TT_MUST_CHECK;

/**
 * tt_saver_end when training ends with `code`, which it returns with its message unless it is 0 and the save failed.
 * Does nothing when ranks cannot be reached.
 */
int tt_saver_drain(struct tt_saver *saver, int code) TT_MUST_CHECK;

/* space.c */

/**
 * Whether the checkpoints to come fit where they will be saved. TT_EIO, with need and have, when there is no room for
 * one save and the one that is kept meanwhile; a warning when there is none for checkpoint.keep_latest_k. Unknown room
 * passes. Collective.
 */
int tt_saver_check_space(const struct tt_saver *saver, const struct tt_train_progress *at) TT_MUST_CHECK;

/* export.c */

/**
 * Writes a step that was saved as a Hugging Face folder too, step-N/hf: rank 0 streams it out of the committed step and
 * publishes it by a rename, the others wait. One that the step has already stays. Collective.
 */
int tt_saver_export(const struct tt_saver *saver, int64_t step) TT_MUST_CHECK;

#endif
