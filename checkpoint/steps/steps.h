/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_STEPS_H
#define TT_CHECKPOINT_STEPS_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "core/base/error.h"

/** The steps of a checkpoint folder, and what a PATH argument means. All local. */

/** The number in "step-120"; -1 when the name is not one (leading zeros, anything behind it). */
int64_t tt_step_number(const char *name);

/** The same of a step that was set aside too (checkpoint/steps/aside.h). */
int64_t tt_step_number_aside(const char *name);

/** folder/step-N; the caller frees. */
char *tt_step_path(const char *folder, int64_t step);

/**
 * The committed or half-broken steps in a folder, ascending; a folder that does not exist has none. Not listed is one that a
 * newer line has replaced (tt_step_gives_way). Caller: tt_free.
 */
int tt_step_list(const char *folder, int64_t **ret_steps, int *ret_n) TT_MUST_CHECK;

/** Whether step-N, marked as what run_id began from, has given way: run_id has saved a step of its own. */
int tt_step_gives_way(const char *folder, int64_t step, const char *run_id, bool *ret_gives_way) TT_MUST_CHECK;

/**
 * The manifest of a step, which must be that of its name: a folder step-N that is a link or holds another step is TT_EDATA.
 * ret_manifest is the caller's to release.
 */
int tt_step_manifest(const char *step_path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * Whether a step is good as far as can be said without reading its data: manifest intact, coverage exact, every file
 * there with its size. TT_EDATA is damage, proven, and says what is wrong; any other code says that it could not be read
 * just now and may be good. ret_manifest (may be NULL) is the caller's to release.
 */
int tt_step_check(const char *step_path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/** Of that, whether every file of the manifest is there with its size. */
int tt_step_check_sizes(const char *step_path, const struct tt_manifest *manifest) TT_MUST_CHECK;

enum tt_path_kind {
    TT_PATH_STEP,   /* a folder step-N with a manifest */
    TT_PATH_PLAIN,  /* a folder of safetensors files without one, or one such file */
    TT_PATH_FOLDER, /* a checkpoint folder: has step-N below it */
};

/** What a path is; ret_folder is the checkpoint folder for a run folder, else the path itself. The caller frees ret_folder. */
int tt_path_find(const char *given, enum tt_path_kind *ret_kind, char **ret_folder) TT_MUST_CHECK;

/**
 * The checkpoint folder of a run or the folder itself, also when it holds no step (any more); verb: which command takes it,
 * for the message. The caller frees ret_folder.
 */
int tt_step_folder_find(const char *path, const char *verb, char **ret_folder) TT_MUST_CHECK;

/**
 * The one checkpoint that path means: a step, a plain folder, or the newest step of a run or checkpoint folder. With
 * good_only newer damaged steps are passed over with a warning; one that cannot be read just now is an error. ret_path is the caller's to free.
 */
int tt_path_resolve(const char *path, bool good_only, enum tt_path_kind *ret_kind, char **ret_path) TT_MUST_CHECK;

#endif
