/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_SAVE_SAVER_H
#define TT_TRAINER_SAVE_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/export/hf.h"
#include "checkpoint/save/internal.h"
#include "checkpoint/save/plan.h"
#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "core/tokenizer/tokenizer.h"
#include "trainer/job/setup.h"
#include "trainer/job/tensors.h"
#include "trainer/step/reporter.h"
#include "trainer/step/step.h"

/** Small files that go into every checkpoint. Rank 0 writes its own. */
struct tt_train_assets {
    struct tt_ckpt_asset *asset;
    int n, cap;
    char *model_config;      /* the bytes of model.json; those of the tokenizer's files belong to the tokenizer */
    struct tt_hf_file *file; /* the files of model.hf_assets_path, for an export; rank 0 only */
    int n_files;
};

/* --- the saver --- */

/**
 * The checkpoints that a run saves: when, with what content, and the save that is under way. With async_mode at most
 * one save is under way. All ranks end it together at the end of a step, when they agree on it and publish it.
 */
struct tt_saver {
    const struct tt_setup *setup;
    struct tt_reporter *reporter;
    const struct tt_train_data *data;
    struct tt_job_tensors tensors;
    struct tt_train_assets assets;
    struct tt_ckpt_store *store;   /* NULL: nothing is saved */
    struct tt_ckpt_writer *writer; /* NULL: a save blocks training */
    struct tt_ckpt_saving *saving; /* the save that is under way; only with a writer */
    int64_t saving_step;
    int64_t saved_step; /* the last step of this run's line that it published or from which it continues, or -1 */
    json_t *base;       /* describes frozen weights that checkpoints leave out (trainer/start/base.h); else NULL */
    json_t *line;       /* line of the steps that this process saves (checkpoint/steps/line.h) */
};

/** Call after tt_engine_allocate. The arguments must outlive the saver. Nothing is saved before tt_saver_open. */
void tt_saver_init(const struct tt_setup *setup, struct tt_reporter *reporter, const struct tt_train_data *data,
                   struct tt_saver *ret_saver);

/** Opens the folder for saving, and with async_mode the writer and its memory. Collective. */
int tt_saver_open(struct tt_saver *saver, const char *folder, const char *run_id) TT_MUST_CHECK;

/** Abandons a save that is under way, and releases everything. Not collective. */
void tt_saver_close(struct tt_saver *saver);

/**
 * Saves the current state, after ending a save that is under way. With `last`, last_save_model_only applies. The save
 * blocks if `last` or `stop`. A save that fails for lack of space or memory is only a warning, unless `last` or `stop`.
 * Collective.
 */
int tt_saver_save(struct tt_saver *saver, const struct tt_train_progress *at, bool last, bool stop) TT_MUST_CHECK;

/** Whether this rank has no more files to write; local. */
static inline bool tt_saver_is_written(const struct tt_saver *saver)
{
    return !saver->saving || tt_ckpt_saving_is_written(saver->saving);
}

/** Waits for the save that is under way, if any, and publishes it. Collective. Does not wait if all ranks have written
 * their files. */
int tt_saver_end(struct tt_saver *saver) TT_MUST_CHECK;

/**
 * For a run that was already complete when it started, at a step of its own folder. Completes the last save, in case
 * the process was killed or the disk failed: removes older steps as keep_latest_k says, if `retains`, and makes a
 * missing export if last_save_in_hf. Collective.
 */
int tt_saver_complete(struct tt_saver *saver, int64_t step, bool retains) TT_MUST_CHECK;

/** Compares the weights and moments of all replicas, as a save does, without saving. Collective. */
int tt_saver_check_replicas(const struct tt_saver *saver, int64_t step) TT_MUST_CHECK;

/**
 * Calls tt_saver_end when training ends with `code`. Returns `code` with its message, or the error of the save if
 * `code` is 0. Does nothing if ranks cannot be reached (TT_ECOMM).
 */
int tt_saver_drain(struct tt_saver *saver, int code) TT_MUST_CHECK;

/* --- space on the disk --- */

/** The disk space that the checkpoints of a run need, and the free space, in bytes. */
struct tt_saver_disk {
    char *folder;                 /* of the checkpoints; NULL: the run saves none */
    struct tt_ckpt_demand demand; /* checkpoints that the run saves from here on */
    int64_t replaced;             /* bytes of checkpoints that the run will remove when it starts; not free yet */
    /* have: free bytes (negative: not known); most: bytes needed for all that keep_latest_k keeps */
    double have, most;
    /* for how many checkpoints there is space; 0: for all that keep_latest_k keeps */
    int64_t fits;
};

/**
 * Examines the disk before a run starts. TT_EIO if there is no space for one save and the older one that is kept until
 * it is complete. Not collective. May be released after an error too.
 *   overwrite  the run removes the checkpoints in its folder
 */
int tt_saver_look_at_disk(const struct tt_setup *setup, const struct tt_train_data *data,
                          const struct tt_train_progress *at, bool overwrite,
                          struct tt_saver_disk *ret_disk) TT_MUST_CHECK;
void tt_saver_disk_release(struct tt_saver_disk *disk);

/** Warns if there is space for fewer checkpoints than checkpoint.keep_latest_k keeps. */
void tt_saver_warn_of_space(const struct tt_config *cfg, const struct tt_saver_disk *disk);

/**
 * Checks that the coming checkpoints fit on the disk. TT_EIO if there is no space for one save and the older one that
 * is kept until it is complete. Warns if there is less than checkpoint.keep_latest_k needs. Succeeds if the free space
 * is not known. Collective.
 */
int tt_saver_check_space(const struct tt_saver *saver, const struct tt_train_progress *at) TT_MUST_CHECK;

#endif
