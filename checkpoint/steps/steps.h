/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_STEPS_H
#define TT_CHECKPOINT_STEPS_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"
#include "core/base/error.h"
#include "core/comm/comm.h"
#include "core/os/file.h"
#include "core/os/lock.h"
#include "parallel/layout/mesh.h"

/**
 * Steps whose manifests this process has read or written, so that a save does not read them again: the manifest of a
 * large job takes a hundred megabytes. A manifest is unchanged if it is the same file with the same size and time. An
 * all-zero struct is an empty list.
 */
struct tt_known_step {
    int64_t step;
    struct tt_path_info manifest; /* the file when it was read or written */
    struct tt_manifest files;     /* the manifest's list of files only */
};

struct tt_known_steps {
    struct tt_known_step *list;
    int n, cap;
    int64_t n_read; /* how many manifests were read so far */
};

/** Like tt_step_check of folder/step-N: checks the files' sizes, but reads the manifest only if it is not known. */
int tt_known_check(struct tt_known_steps *known, const char *folder, int64_t step) TT_MUST_CHECK;

/**
 * Remembers a manifest that was just written to path; its folder may be renamed later. Moves the list of files out of
 * the manifest. If the file cannot be examined, the manifest is read again later.
 */
void tt_known_note(struct tt_known_steps *known, int64_t step, const char *path, struct tt_manifest *manifest);

/** Forgets all steps except these. */
void tt_known_keep(struct tt_known_steps *known, const int64_t *steps, int n);

void tt_known_release(struct tt_known_steps *known);

/**
 * A checkpoint folder opened for saving by the ranks of a job.
 *
 * Opening it (collective) creates it, checks that every rank sees the same folder, takes the lock that keeps a second
 * job out, and removes what earlier jobs left: half-written and half-removed steps of any run, since only the holder of
 * the lock makes them, and unfinished exports into steps. Nothing else is ever removed without a request.
 */
enum { TT_RUN_ID_BYTES = 64 };

struct tt_ckpt_writer;

struct tt_ckpt_store {
    struct tt_comm *comm; /* borrowed */
    struct tt_mesh mesh;
    char *folder;
    char run_id[TT_RUN_ID_BYTES]; /* of rank 0 */
    struct tt_lock lock;          /* on rank 0; the other ranks hold none */
    /* the step that this run's first step will replace (checkpoint/steps/line.h); -1: none */
    int64_t parent_step;
    struct tt_known_steps known;     /* rank 0's; shared with `retiring` while it removes steps */
    struct tt_ckpt_writer *retiring; /* a writer whose thread is removing older steps; NULL: none */
};

/**
 * Collective. run_id: letters, digits, '-', '_', '.'; rank 0's id is used. Errors: TT_EUSAGE if another job holds the
 * folder, TT_EDATA if a rank does not see rank 0's file (the message names its host), TT_EIO.
 */
int tt_ckpt_store_open(struct tt_comm *comm, const struct tt_mesh *mesh, const char *folder, const char *run_id,
                       struct tt_ckpt_store **ret_store) TT_MUST_CHECK;

/** Releases the lock. Not collective. NULL is allowed. */
void tt_ckpt_store_close(struct tt_ckpt_store *store);

/**
 * Takes the folder's lock for a command (local); release it with tt_lock_release. TT_EUSAGE when a job holds it; the
 * message names its run, process and host.
 */
int tt_ckpt_folder_lock(const char *folder, struct tt_lock *ret_lock) TT_MUST_CHECK;

/** The hidden name ".KIND-step-N-RUNID" of a step's folder; kind is "tmp", "old" or "trash". The caller frees. */
char *tt_ckpt_store_aside(const struct tt_ckpt_store *store, const char *kind, int64_t step);

/** The steps of a checkpoint folder, and the meaning of a PATH argument. All local. */

/** The number in "step-120"; -1 when the name is not a step's (leading zeros, trailing characters). */
int64_t tt_step_number(const char *name);

/** The same, but also for the name of a step that was set aside. */
int64_t tt_step_number_aside(const char *name);

/** folder/step-N; the caller frees. */
char *tt_step_path(const char *folder, int64_t step);

/**
 * All steps in a folder, good or damaged, in ascending order; none if the folder does not exist. Steps that a newer
 * line has replaced (.parent-step-N-RUN, see below) are left out. The caller frees ret_steps with tt_free.
 */
int tt_step_list(const char *folder, int64_t **ret_steps, int *ret_n) TT_MUST_CHECK;

/**
 * The manifest of a step, which must belong to step N: a folder step-N that is a link or contains another step is
 * TT_EDATA. The caller releases ret_manifest.
 */
int tt_step_manifest(const char *step_path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * Checks a step without reading its data: the manifest is intact, the coverage is exact, and every file exists with its
 * size. TT_EDATA means proven damage and says what is wrong. Any other code means that the step could not be read at
 * the moment and may be good. The caller releases ret_manifest (may be NULL).
 */
int tt_step_check(const char *step_path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * A running job removes old steps, and may replace one, while others read them: the folder is renamed, and then
 * emptied. Files that a reader then misses are not damage. So a reader remembers the folder that it has begun to read:
 *
 *     TT_TRY(tt_step_place(path, &place));
 *     rc = tt_step_explain(read(path), path, &place);
 *
 * A command that was given a folder of steps begins again with the newest step at that moment (tt_step_try_again).
 */
struct tt_step_place {
    uint64_t device, inode;
};

/** Identifies the folder or file at a path; zeros if nothing is there. */
int tt_step_place(const char *path, struct tt_step_place *ret_place) TT_MUST_CHECK;

/** TT_EREMOVED, with its message, if rc is an error and the path now leads to something else or to nothing; otherwise
 * rc. */
int tt_step_explain(int rc, const char *path, const struct tt_step_place *place);

/**
 * Whether to begin again with the user's path after the error rc. Counts the attempts in `tries`, which the caller sets
 * to 0, to limit their number.
 */
bool tt_step_try_again(int rc, const char *given, int *tries);

enum tt_path_kind {
    TT_PATH_STEP,   /* a folder step-N with a manifest */
    TT_PATH_PLAIN,  /* a folder of safetensors files without a manifest, or one such file */
    TT_PATH_DCP,    /* a PyTorch folder (torch.distributed.checkpoint): .metadata and .distcp files */
    TT_PATH_FOLDER, /* a checkpoint folder, which contains folders step-N */
};

/**
 * The kind of a step's folder: TT_PATH_STEP, or TT_PATH_DCP if it is PyTorch's and has no manifest. With `check`, the
 * step must be good as far as tt_step_check can tell without reading the data; ret_manifest (may be NULL) then
 * describes it.
 */
int tt_step_look(const char *step_path, bool check, enum tt_path_kind *ret_kind,
                 struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * The kind of a path. ret_folder: for a run folder its checkpoint folder, else the path itself. The caller frees it.
 */
int tt_path_find(const char *given, enum tt_path_kind *ret_kind, char **ret_folder) TT_MUST_CHECK;

/**
 * The checkpoint to which a path leads: a step, a plain folder, a PyTorch folder, or the newest step of a run or
 * checkpoint folder, titan's or torchtitan's (TT_PATH_DCP). With good_only, newer damaged steps are skipped with a
 * warning, a step that cannot be read at the moment is an error, and if a running job removes a step meanwhile, the
 * search begins again. The caller frees ret_path.
 *
 * ret_manifest (may be NULL) describes the step that good_only found in a folder of steps. For any other path it is not
 * changed.
 */
int tt_path_resolve(const char *path, bool good_only, enum tt_path_kind *ret_kind, char **ret_path,
                    struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * Steps that were set aside by name: step-60 becomes step-60.abandoned-RUN when a run goes back to an older step, and
 * step-60.damaged-RUN when a resume passed over it; RUN is the run that set it aside. Nothing is removed. They no
 * longer count as steps of the run: resume, retention and "the newest step" ignore them. A command can still read them
 * by their path.
 *
 * A run that counts its steps from 0 again (exclude_from_loading: [train_state]) needs the step from which it began
 * until it has saved a step of its own, whose number is smaller. The empty file .parent-step-60-RUN says that step-60
 * gives way to RUN's first step. tt_step_list takes it into account, so that there are never two newest steps.
 */
enum tt_aside_kind { TT_ASIDE_ABANDONED, TT_ASIDE_DAMAGED };

/** The parts of the name of a step that was set aside; run_id points into the name. */
struct tt_aside {
    enum tt_aside_kind kind;
    const char *word; /* the kind: "abandoned" or "damaged"; static */
    int64_t step;
    const char *run_id;
};

/** Whether `name` is the name of a step that was set aside. */
bool tt_aside_parse(const char *name, struct tt_aside *ret_aside);

/** step-60.abandoned-RUN; the caller frees. */
char *tt_aside_name(int64_t step, enum tt_aside_kind kind, const char *run_id);

/** Sets folder/step-N aside durably, with a note. Local; the caller holds the folder's lock. */
int tt_aside_step(const char *folder, int64_t step, enum tt_aside_kind kind, const char *run_id) TT_MUST_CHECK;

/** Whether name is .parent-step-N-RUN; ret_run_id points into it. */
bool tt_parent_parse(const char *name, int64_t *ret_step, const char **ret_run_id);

/** Creates the file of this name, durably, or removes it (a missing file is no error). */
int tt_parent_mark(const char *folder, int64_t step, const char *run_id) TT_MUST_CHECK;
int tt_parent_unmark(const char *folder, int64_t step, const char *run_id) TT_MUST_CHECK;

/**
 * Hidden folders of a checkpoint folder: .tmp-step-N-RUN (being written), .old-step-N-RUN (being replaced),
 * .trash-step-N-RUN (being removed), and in a step .tmp-hf-RANDOM, .old-hf-RANDOM. If no job holds the lock, a killed
 * job left them.
 */
struct tt_leftover {
    const char *kind; /* "temporary", "replaced" or "trash"; static */
    bool is_step;     /* a step's folder; false: the folder of an export in a step */
    const char *name; /* name of the step or export, of `size` bytes */
    size_t size;
};
bool tt_leftover_parse(const char *name, struct tt_leftover *ret_leftover);

/** The original path in parent of a folder that was being replaced; NULL for others. The caller frees. */
char *tt_leftover_home(const char *parent, const char *name);

#endif
