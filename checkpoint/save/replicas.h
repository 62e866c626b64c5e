/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_REPLICAS_H
#define TT_CHECKPOINT_SAVE_REPLICAS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/state.h"
#include "checkpoint/save/plan.h"
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

/** Whether several ranks hold the same parts of some tensor, so that there is something to compare. */
bool tt_replicas_exist(const struct tt_mesh *mesh, const struct tt_ckpt_state *state);

/** Elements [begin, end) of a rank's packed part of a tensor, which have been summed elsewhere. */
struct tt_summed {
    int64_t begin, end;
};

/**
 * Adds the digests of this rank's parts to digest[i]: one per tensor, first the model's, then the optimizer's. Parts
 * without a copy on another rank are left out.
 *   without  [n_model + n_optim] elements to leave out; NULL: none
 *   team     helps; may be NULL
 */
void tt_replicas_sum(const struct tt_mesh *mesh, const struct tt_ckpt_state *state, const struct tt_summed *without,
                     struct tt_team *team, uint64_t *digest);

/**
 * Compares the replicas (collective). digest: as above, complete. Errors: TT_EINTERNAL on all ranks. The message names
 * the first tensor that differs, and the ranks that differ from the majority; without a majority, all ranks that hold
 * copies.
 */
int tt_replicas_compare(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state,
                        const uint64_t *digest) TT_MUST_CHECK;

/** Sums and compares: reads all of this rank's parts. Does nothing if there are no copies. */
int tt_replicas_check(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state,
                      struct tt_team *team) TT_MUST_CHECK;

#endif
