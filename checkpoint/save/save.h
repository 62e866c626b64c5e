/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_SAVE_H
#define TT_CHECKPOINT_SAVE_SAVE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/state.h"
#include "checkpoint/save/internal.h"
#include "checkpoint/save/plan.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/os/team.h"
#include "parallel/layout/mesh.h"

/**
 * Checks that ranks with copies of the same parts have the same bits: replicas, ranks along tp for tensors that tensor
 * parallelism does not split, and all ranks of a stage for buffers, such as the biases of experts. These ranks compute
 * the same sums in the same order, so a difference is a fault of a machine or of titan, and all later training is
 * wrong.
 *
 * Ranks compare the digests (checkpoint/format/digest.h) of their parts: one word per rank, and the digests of all
 * tensors only if the words differ. A digest is a sum over elements, so elements that were summed for another purpose
 * need not be read again.
 */

/** Elements [begin, end) of a rank's packed part of a tensor, which have been summed elsewhere. */
struct tt_summed {
    int64_t begin, end;
};

/** Sums and compares: reads all of this rank's parts. Does nothing if there are no copies. */
int tt_replicas_check(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state,
                      struct tt_team *team) TT_MUST_CHECK;

/**
 * A checkpoint to save. meta is written to manifest.json unchanged. It must have the integer "step" and should have
 * "ntokens_seen", "sample_cursor", "mesh" {pp, dp_replicate, dp_shard, cp, tp} and "config". The save sets the keys
 * "world", "policy", "filter", "run_id" and "time"; the caller must not use "titan_ckpt", "files", "tensors" and
 * "self_crc32c".
 */
struct tt_ckpt_save {
    const struct tt_ckpt_state *state;
    json_t *meta;                      /* rank 0's meta is written, but every rank must give the same step */
    const struct tt_ckpt_asset *asset; /* rank 0's assets are written */
    int n_assets;
    const char *policy, *filter; /* a row of the table in plan.c; filter may be NULL */
    int keep_latest_k;           /* 0: all */
    bool cast_model;             /* store the model's floating-point tensors as model_dtype (TT_F32, TT_BF16, TT_F16) */
    enum tt_dtype model_dtype;
    struct tt_team *team;          /* copies and writes the data; may be NULL */
    struct tt_ckpt_writer *writer; /* writes during training; NULL: the save blocks training */
};

/* Times of the slowest rank. */
struct tt_ckpt_saved {
    int64_t step;
    int64_t bytes; /* of the shard files of all ranks */
    int files;
    double seconds;     /* from the beginning to the publication */
    double blocked_sec; /* the part of `seconds` in which training waited */
    double stage_sec;   /* the part of blocked_sec that goes into the copy, and into sending rows to their writers */
    double write_sec;   /* the time from the first write until the files are durable */
};

struct tt_ckpt_saving;

/**
 * Begins to save folder/step-N (collective). With a writer, the state may change after this returns. The names and
 * assets must stay until the save has ended, and no other save may begin before that. The store must outlive the
 * writer. Without a writer, the files are written on return. On failure every rank gets the same code, the folder is as
 * before, and there is no save to end.
 */
int tt_ckpt_save_begin(struct tt_ckpt_store *store, const struct tt_ckpt_save *save,
                       struct tt_ckpt_saving **ret_saving) TT_MUST_CHECK;

/**
 * Whether this rank's files are written or have failed; local. If this holds on all ranks, tt_ckpt_saving_end does not
 * wait.
 */
bool tt_ckpt_saving_is_written(const struct tt_ckpt_saving *saving);

/**
 * Waits for the files, publishes the step, removes older checkpoints, and frees `saving` (collective). With a writer,
 * its thread removes the older ones; the next save, or freeing the writer, waits for that. If this returns 0, the
 * checkpoint is committed and durable. On failure every rank gets the same code, the folder is as before, the temporary
 * files are gone, and training may continue. Errors: TT_EIO (a full disk, with the space needed and available),
 * TT_EINTERNAL (ranks disagree on the tensors), TT_ENONFINITE (a tensor has NaN or infinity; such a state never becomes
 * a checkpoint), TT_ECOMM. Only a failed fsync after the final rename leaves a new step that may not survive a power
 * cut.
 */
int tt_ckpt_saving_end(struct tt_ckpt_saving *saving, struct tt_ckpt_saved *ret_saved) TT_MUST_CHECK;

/** Abandons the save without the other ranks, when they can no longer be reached. The next job cleans up. NULL is
 * allowed. */
void tt_ckpt_saving_drop(struct tt_ckpt_saving *saving);

/** Begins and ends a save. */
int tt_ckpt_save(struct tt_ckpt_store *store, const struct tt_ckpt_save *save,
                 struct tt_ckpt_saved *ret_saved) TT_MUST_CHECK;

/**
 * How many free bytes a save of these tensors requires in its folder before it begins. Reads the stored dtypes, shapes
 * and placements from the state, but not its parts or data.
 */
int64_t tt_ckpt_save_room(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                          const struct tt_ckpt_policy *policy, const struct tt_ckpt_asset *asset, int n_assets);

/**
 * Staging memory that a save of these tensors needs: the maximum over the ranks that hold the same parts as `rank`, in
 * any pipeline stage. Reads the names, dtypes, shapes and placements from the state, but not its parts or data.
 */
int64_t tt_ckpt_staging_bytes(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                              const struct tt_ckpt_policy *policy, int rank);

/**
 * Removes old steps (rank 0, after a commit). Keeps `just_saved` and the newest good steps before it, `keep` in total;
 * 0 keeps all. Steps that are damaged, cannot be read at the moment, are newer (a user put them there) or were set
 * aside are neither counted nor removed. Failures are warnings. If an idle writer is given, its thread does the work
 * during training, since freeing the blocks of a large checkpoint takes the disk some time.
 */
void tt_ckpt_retain(struct tt_ckpt_store *store, int64_t just_saved, int keep, struct tt_ckpt_writer *writer);

#endif
