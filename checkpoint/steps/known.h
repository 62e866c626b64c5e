/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_KNOWN_H
#define TT_CHECKPOINT_STEPS_KNOWN_H

#include "checkpoint/format/manifest.h"
#include "core/os/path.h"

/**
 * Steps whose manifests a process has read or written, so that none is read at every save: that of a large job has a hundred
 * megabytes. A manifest is the same as long as it is the same file, of the same size and time. Zero is an empty list.
 */
struct tt_known_step {
    int64_t step;
    struct tt_path_info manifest; /* the file, as it was when it was read or written */
    struct tt_manifest files;     /* of the manifest, its list of files alone */
};

struct tt_known_steps {
    struct tt_known_step *list;
    int n, cap;
    int64_t n_read; /* manifests, so far */
};

/** Like tt_step_check of folder/step-N: the files' sizes are looked at, the manifest is read only if it is not known. */
int tt_known_check(struct tt_known_steps *known, const char *folder, int64_t step) TT_MUST_CHECK;

/**
 * Notes a manifest that was just written to path, where it may be moved from with its folder. Takes the list of files out of
 * it. A failure to look at the file is none: it will be read.
 */
void tt_known_note(struct tt_known_steps *known, int64_t step, const char *path, struct tt_manifest *manifest);

/** Forgets all steps but these. */
void tt_known_keep(struct tt_known_steps *known, const int64_t *steps, int n);

void tt_known_release(struct tt_known_steps *known);

#endif
