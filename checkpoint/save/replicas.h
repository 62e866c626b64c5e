/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_REPLICAS_H
#define TT_CHECKPOINT_SAVE_REPLICAS_H

#include <stdint.h>

#include "checkpoint/format/state.h"
#include "checkpoint/save/plan.h"
#include "core/comm/comm.h"
#include "core/os/team.h"

/**
 * Checks that replicas have the same bits. They do the same additions in the same order, so a difference is a fault of
 * a machine or of titan, and whatever is trained or saved from then on is wrong.
 *
 * Ranks compare the digests (checkpoint/format/digest.h) of their rows: one word per rank, and the digests of all
 * tensors only if the words differ. A digest is a sum over elements, so rows that have been summed for another purpose
 * need not be read again.
 */

/** A part of a rank's rows of a tensor that has already been summed elsewhere. */
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
 * Compares the replicas (collective). digest: as above, complete. Errors: TT_EINTERNAL on all ranks. The message
 * names the first tensor that differs and the ranks that differ from most replicas of their shard, or all replicas if
 * there is no majority.
 */
int tt_replicas_compare(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const struct tt_ckpt_state *state,
                        const uint64_t *digest) TT_MUST_CHECK;

/** Sums and compares: reads all of this rank's rows. Does nothing with one replica. */
int tt_replicas_check(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const struct tt_ckpt_state *state,
                      struct tt_team *team) TT_MUST_CHECK;

#endif
