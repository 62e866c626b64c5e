/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_TRANSFER_H
#define TT_PARALLEL_ENGINE_TRANSFER_H

#include "core/comm/comm.h"
#include "core/program/executor.h"
#include "parallel/layout/mesh.h"

/**
 * The exchange of a program. Before the first step, every instruction that begins a collective gets one, with segment
 * lists that point into the arena. Parameters arrive in place; nothing is copied out of a bucket.
 */
struct tt_transfers;

/**
 * Makes the transfers, which the caller frees with tt_transfers_free, and installs the exchange in the executor.
 * Collective over all ranks of comm. The executor, comm and mesh must outlive the transfers.
 */
int tt_transfers_new(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_program *program,
                     struct tt_state *state, struct tt_executor *executor,
                     struct tt_transfers **ret_transfers) TT_MUST_CHECK;

/** When the collective that an instruction begins was under way in the last run; {0, 0} if it begins none. */
struct tt_span tt_transfers_span(const struct tt_transfers *transfers, int instr);

void tt_transfers_free(struct tt_transfers *transfers);

#endif
