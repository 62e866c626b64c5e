/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_KNOWN_H
#define TT_CHECKPOINT_STEPS_KNOWN_H

#include "checkpoint/format/manifest.h"
#include "core/os/path.h"

/**
 * Steps whose manifests this process has read or written, so that a save does not read them again: the manifest of a
 * large job has a hundred megabytes. A manifest is unchanged if it is the same file with the same size and time. An
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
    int64_t n_read; /* the number of manifests read so far */
};

/** Like tt_step_check of folder/step-N: checks the files' sizes, but reads the manifest only if it is not known. */
int tt_known_check(struct tt_known_steps *known, const char *folder, int64_t step) TT_MUST_CHECK;

/**
 * Remembers a manifest that was just written to path; its folder may be renamed later. Moves the list of files out of
 * it. If the file cannot be examined, the manifest is simply read again later.
 */
void tt_known_note(struct tt_known_steps *known, int64_t step, const char *path, struct tt_manifest *manifest);

/** Forgets all steps but these. */
void tt_known_keep(struct tt_known_steps *known, const int64_t *steps, int n);

void tt_known_release(struct tt_known_steps *known);

#endif
