/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_LOADING_H
#define TT_CHECKPOINT_LOAD_LOADING_H

#include <stdbool.h>

#include "checkpoint/load/load.h"
#include "checkpoint/steps/steps.h"

/** What load.c does for resume.c; for no other file. */

/* An attempt to load one checkpoint. */
struct tt_ckpt_attempt {
    const struct tt_mesh *mesh;
    const struct tt_ckpt_state *state; /* NULL: examine the checkpoint without loading */
    unsigned skip;
    enum tt_ckpt_reading reading;
    const struct tt_ckpt_request *request; /* its accept is called; may be NULL */
};

/**
 * Loads one checkpoint (collective). After a failure, ret_damaged says whether the checkpoint is damaged, so that an
 * older one may be tried. Sets attempt->skip to what was left out.
 */
int tt_ckpt_load_one(struct tt_comm *comm, const char *path, enum tt_path_kind kind, struct tt_ckpt_attempt *attempt,
                     json_t **ret_meta, bool *ret_damaged) TT_MUST_CHECK;

#endif
