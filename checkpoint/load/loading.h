/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_LOADING_H
#define TT_CHECKPOINT_LOAD_LOADING_H

#include <stdbool.h>

#include "checkpoint/load/load.h"
#include "checkpoint/steps/steps.h"

/** What load.c does for resume.c, and nobody else. */

/* What is tried on one checkpoint. */
struct tt_ckpt_attempt {
    const struct tt_ckpt_layout *layout;
    const struct tt_ckpt_state *state; /* NULL: look only */
    unsigned skip;
    enum tt_ckpt_reading reading;
    const struct tt_ckpt_request *request; /* whose accept is asked; NULL: nobody's */
};

/**
 * Loads one checkpoint (collective). ret_damaged says whether a failure was damage, which an older checkpoint may not have.
 * attempt->skip is then what was left out.
 */
int tt_ckpt_load_one(struct tt_comm *comm, const char *path, enum tt_path_kind kind, struct tt_ckpt_attempt *attempt,
                     json_t **ret_meta, bool *ret_damaged) TT_MUST_CHECK;

#endif
