/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_RUN_FOLDER_H
#define TT_TRAINER_RUN_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/config/config.h"
#include "core/os/lock.h"
#include "parallel/planner/cost.h"
#include "trainer/run/records.h"
#include "trainer/run/tensorboard.h"

/**
 * The folder of a run (job.dump_folder): run.yaml, metrics.jsonl, console.log, checkpoint/. For rank 0; not collective.
 */

/** A folder that this run has taken; on other ranks TT_RUN_FOLDER_NONE. */
struct tt_run_folder {
    struct tt_lock lock;
    bool replaces; /* tt_run_folder_replace will remove the run in the folder */
    /* files that existed before this start; a start that fails keeps them (tt_run_folder_undo) */
    unsigned had; /* bits for the names in folder.c */
    char *kept;   /* the last existing folder above it; NULL: not known */
};

#define TT_RUN_FOLDER_NONE ((struct tt_run_folder){.lock = TT_LOCK_NONE})

/**
 * Takes the folder for this run: creates it, locks it against a second job (until ret_folder is released or the process
 * ends), and refuses a folder that contains another run, unless that run can be resumed (`resumes`), or was killed or
 * failed before its first checkpoint while this run saves checkpoints, or `overwrite` asks for its removal
 * (tt_run_folder_replace). After an error the folder is as it was. Errors: TT_EUSAGE (another run, another job),
 * TT_EIO.
 */
int tt_run_folder_take(const struct tt_config *cfg, bool resumes, bool overwrite,
                       struct tt_run_folder *ret_folder) TT_MUST_CHECK;

/** Checks that tt_run_folder_take would succeed; same errors. Creates, locks and removes nothing. */
int tt_run_folder_examine(const struct tt_config *cfg, bool resumes, bool overwrite) TT_MUST_CHECK;

/**
 * Removes the run in a taken folder, if the new run is to replace it. Call it when the new run has loaded its data and
 * allocated its memory. Removes the old run's steps (also those that were set aside), event files, traces,
 * metrics.jsonl, console.log and run.yaml; all other files stay. TT_EUSAGE when a command is working in the checkpoint
 * folder.
 */
int tt_run_folder_replace(const struct tt_config *cfg, struct tt_run_folder *folder) TT_MUST_CHECK;

/**
 * After a start that failed before it trained: removes the files that this start made in the taken folder, and the
 * folder itself if this start made it, and releases the folder. Older files stay. metrics.jsonl and checkpoints must be
 * closed; console.log is closed here if it is removed.
 */
void tt_run_folder_undo(const struct tt_config *cfg, struct tt_run_folder *folder);

void tt_run_folder_release(struct tt_run_folder *folder);

/** The checkpoint folder of the run; the caller frees. */
char *tt_run_folder_checkpoints(const struct tt_config *cfg);

/**
 * The folder of packed tokens: dataloader.cache_dir, if set; otherwise titan's folder in the user's cache
 * (XDG_CACHE_HOME, or .cache in HOME), so that a text is tokenized once for all dump folders; if that cannot be
 * written, dump_folder with ".cache" appended. The caller frees.
 */
char *tt_run_folder_cache(const struct tt_config *cfg);

/** Opens a TensorBoard event file in metrics.save_tb_folder. */
int tt_run_folder_board(const struct tt_config *cfg, struct tt_tensorboard **ret_board) TT_MUST_CHECK;

/** Opens console.log for appending: for the output so far (console.h) and all later output. */
void tt_run_folder_console(const struct tt_config *cfg, int argc, char **argv);

/** Opens metrics.jsonl for appending and repairs an incomplete last line. */
int tt_run_folder_metrics(const struct tt_config *cfg, struct tt_records **ret_records) TT_MUST_CHECK;

/**
 * Adds to metrics.jsonl the end record that a run could not write itself, with this exit code and reason, if the newest
 * start in the file came after started_sec (since 1970) and has no end record. For the process that started the ranks,
 * after they have ended; waits up to five seconds while a dying rank still holds the lock.
 */
int tt_run_folder_end(const struct tt_config *cfg, double started_sec, int code, const char *why) TT_MUST_CHECK;

/** Whether metrics.jsonl contains a validation after this step, on the line of steps that the run continues. */
int tt_run_folder_has_validation(const struct tt_config *cfg, int64_t step, bool *ret_has) TT_MUST_CHECK;

/**
 * Writes run.yaml: the resolved configuration, which `titan train --config` reads again, under comments with the
 * command line, the git revision that titan was built from, host, world size and versions, and the cost table if a plan
 * was made with it.
 */
int tt_run_folder_record(const struct tt_config *cfg, int argc, char **argv, int ranks, int threads,
                         const struct tt_machine *machine) TT_MUST_CHECK;

#endif
