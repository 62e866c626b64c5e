/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_H
#define TT_CHECKPOINT_SAVE_H

#include <stdint.h>

#include "checkpoint/state.h"
#include "checkpoint/store.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * What to save. meta goes into manifest.json as it is; it has at least the integer "step", and should have
 * "ntokens_seen", "sample_cursor", "mesh" {pp, dp_replicate, dp_shard, cp, tp} and "config". The keys "world", "policy",
 * "run_id" and "time" are set by the save; "titan_ckpt", "files", "tensors" and "self_crc32c" may not be used.
 */
struct tt_ckpt_save {
    const struct tt_ckpt_state *state;
    const json_t *meta;                /* read on rank 0; every rank's must have the same step */
    const struct tt_ckpt_asset *asset; /* rank 0's are written */
    int n_assets;
    const char *policy; /* "all" */
    int keep_latest_k;  /* 0: all */
};

struct tt_ckpt_saved {
    int64_t bytes; /* of the shard files of all ranks */
    int files;
    double seconds;
};

/**
 * Saves folder/step-N (collective). On return 0 the checkpoint is committed and durable, older ones are retired. On
 * failure every rank gets the same code, the folder is as before, the temporary files are gone, and training may go on:
 * TT_EIO (disk full, with need and have), TT_ECOMM, TT_EINTERNAL (ranks disagree on the tensors). Only a failed fsync
 * after the final rename leaves a new step that may not survive a power cut.
 */
int tt_ckpt_save(struct tt_ckpt_store *store, const struct tt_ckpt_save *save,
                 struct tt_ckpt_saved *ret_saved) TT_MUST_CHECK;

#endif
