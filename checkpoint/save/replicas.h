/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_REPLICAS_H
#define TT_CHECKPOINT_SAVE_REPLICAS_H

#include <stdint.h>

#include "checkpoint/format/state.h"
#include "checkpoint/save/plan.h"
#include "core/comm/comm.h"
#include "core/os/team.h"

/**
 * Whether replicas hold the same bits. They do the same additions in the same order, so that a difference is a fault of a
 * machine or of titan, and whatever is trained or saved from then on is wrong.
 *
 * Ranks compare the digests (checkpoint/format/digest.h) of their rows: a word each, and those of all tensors only where the words
 * differ. A digest is a sum over elements, so that rows that were summed up for another purpose need not be read again.
 */

/** A part of a tensor's rows that a rank holds, which somebody else sums up. */
struct tt_summed_rows {
    int64_t row_begin, row_count;
};

/**
 * Adds the digests of this rank's rows to digest[i], of tensor i of the model, then of the optimizer.
 *   without  [n_model + n_optim] rows to leave out, all of them this rank's; NULL: none
 *   team     helps; may be NULL
 */
void tt_replicas_sum(const struct tt_ckpt_state *state, const struct tt_summed_rows *without, struct tt_team *team,
                     uint64_t *digest);

/**
 * Compares (collective). digest: as above, complete. Errors: TT_EINTERNAL on all ranks, naming the ranks that differ from
 * most replicas of their shard, or all replicas where most cannot be said, and the first tensor that differs.
 */
int tt_replicas_compare(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const struct tt_ckpt_state *state,
                        const uint64_t *digest) TT_MUST_CHECK;

/** Both of them: reads all of this rank's rows. Nothing happens with one replica. */
int tt_replicas_check(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const struct tt_ckpt_state *state,
                      struct tt_team *team) TT_MUST_CHECK;

#endif
