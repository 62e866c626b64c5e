/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_STORE_H
#define TT_CHECKPOINT_STEPS_STORE_H

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

#endif
