/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_TOOLS_OUTPUT_H
#define TT_CHECKPOINT_TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A folder that a command makes: built beside its place under a hidden name, and published by one rename, so that it
 * appears whole or not at all. Local.
 */
struct tt_output {
    char *parent, *name, *temporary, *aside;
    char *folder; /* where the files go meanwhile */
    int lock_fd;  /* of that folder: who finds it unlocked may sweep it; -1: none */
};

/**
 * Whether `path` may be made: it is not there, or empty, or with force an earlier output (a flat folder of safetensors
 * that titan wrote and what lies beside them, or a converted step), which is replaced. Anything else, a downloaded folder
 * too, is TT_EUSAGE.
 */
int tt_output_check(const char *path, bool force) TT_MUST_CHECK;

/** Of an output that may be made: TT_EUSAGE if it would replace what it is made from, a file or folder. */
int tt_output_check_apart(const char *path, const char *source) TT_MUST_CHECK;

/**
 * Begins; there must be room for `bytes` in the folder that will hold it, which is made if it is missing. What a killed
 * command left of the same output is removed.
 */
int tt_output_begin(const char *path, int64_t bytes, struct tt_output *ret_output) TT_MUST_CHECK;

/**
 * Removes what killed or failed commands left of the output `name` in the folder `parent`. One that is being made is locked by
 * who makes it, and stays. tt_output_begin does this too.
 */
int tt_output_sweep(const char *parent, const char *name) TT_MUST_CHECK;

/** Makes everything durable and publishes; releases. On failure call tt_output_abandon. */
int tt_output_publish(struct tt_output *output) TT_MUST_CHECK;

/** Gives up: nothing stays, and this thread's error message is kept. */
void tt_output_abandon(struct tt_output *output);

/** A small file of the output. */
int tt_output_put(const struct tt_output *output, const char *name, const void *bytes, size_t size) TT_MUST_CHECK;

/** Copies folder/name, for every name in a folder that `want` accepts (a folder that is not there has none). */
int tt_output_copy(const struct tt_output *output, const char *from_folder, const char *to_folder,
                   bool (*want)(const char *name)) TT_MUST_CHECK;

#endif
