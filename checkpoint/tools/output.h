/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_TOOLS_OUTPUT_H
#define TT_CHECKPOINT_TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A folder that a command makes. It is built next to its final place, under a hidden name, and published by one rename,
 * so that it appears complete or not at all. Local.
 */
struct tt_output {
    char *parent, *name, *temporary, *aside;
    char *folder; /* the hidden folder that the files are written to */
    int lock_fd;  /* of that folder, which may be removed when it is unlocked; -1: none */
};

/**
 * Checks that `path` may be made: it does not exist, or is empty, or with force is an earlier output, which is replaced
 * (a flat folder of safetensors that titan wrote with the files that belong to them, a converted step, or a folder that
 * titan wrote for PyTorch). Anything else, including a downloaded folder, is TT_EUSAGE.
 */
int tt_output_check(const char *path, bool force) TT_MUST_CHECK;

/** Checks an output that may be made: TT_EUSAGE if it would replace the file or folder from which it is made. */
int tt_output_check_apart(const char *path, const char *source) TT_MUST_CHECK;

/**
 * Begins an output. Its parent folder is made if it is missing and must have space for `bytes`. What a killed command
 * left of the same output is removed.
 */
int tt_output_begin(const char *path, int64_t bytes, struct tt_output *ret_output) TT_MUST_CHECK;

/**
 * Removes what killed or failed commands left of the output `name` in the folder `parent`. An output that is being made
 * is locked and stays. tt_output_begin does this too.
 */
int tt_output_sweep(const char *parent, const char *name) TT_MUST_CHECK;

/** Makes everything durable and publishes; releases. On failure call tt_output_abandon. */
int tt_output_publish(struct tt_output *output) TT_MUST_CHECK;

/** Gives up and removes everything. Keeps this thread's error message. */
void tt_output_abandon(struct tt_output *output);

/** Writes a small file of the output. */
int tt_output_put(const struct tt_output *output, const char *name, const void *bytes, size_t size) TT_MUST_CHECK;

/** Copies folder/name, for every name in a folder that `want` accepts (a missing folder has none). */
int tt_output_copy(const struct tt_output *output, const char *from_folder, const char *to_folder,
                   bool (*want)(const char *name)) TT_MUST_CHECK;

#endif
