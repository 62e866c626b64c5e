/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_PREVIEW_H
#define TT_CHECKPOINT_SAVE_PREVIEW_H

#include "checkpoint/save/plan.h"

/**
 * What a save will write, before there is anything to save: a function of tensors, mesh and policy. The save lays out
 * its files with the same code, so the bytes are those of the files.
 */
struct tt_ckpt_preview_file {
    enum tt_ckpt_group group;
    int writer;  /* rank */
    int tensors; /* of which the file has rows */
    int64_t bytes;
};

struct tt_ckpt_preview {
    int n;
    struct tt_ckpt_preview_file *file; /* by writer, then group; only files that will exist */
    int writers;                       /* ranks that write files */
    int64_t bytes;                     /* of all files */
    int64_t most_bytes;                /* of one writer */
};

/**
 * The shard files of a save; manifest.json and the assets are not counted. Release with tt_ckpt_preview_release.
 *   state  names, stored dtypes, shapes and placements are read, neither parts nor data
 *   step   is in each file's header
 */
int tt_ckpt_preview_make(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                         const struct tt_ckpt_policy *policy, int64_t step,
                         struct tt_ckpt_preview *ret_preview) TT_MUST_CHECK;
void tt_ckpt_preview_release(struct tt_ckpt_preview *preview);

#endif
