/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_COMM_WAIT_H
#define TT_CORE_COMM_WAIT_H

#include "core/comm/comm.h"

/* What the files of this folder use of each other. */

/** Advances the transport; never blocks. */
int tt_comm_advance(struct tt_comm *comm) TT_MUST_CHECK;

/** Sends the signs of life that are due. They must arrive even if no transfer is under way, when the transport would
 * otherwise not be polled. */
void tt_comm_beat(struct tt_comm *comm, double now);

/** Advances the transport, all activities and the signs of life. */
int tt_comm_advance_all(struct tt_comm *comm) TT_MUST_CHECK;

/**
 * Pauses between two polls of a wait. A rank that waits for a rank of its own host polls again at once, unless another
 * thread wants the core. A message over a network takes longer than a short sleep, and the kernel needs a core for its
 * share of the transfer, so such a wait sleeps.
 *   peer        the rank that is waited for, or negative
 *   waited_sec  so far
 */
void tt_comm_rest(const struct tt_comm *comm, int peer, double waited_sec);

/** Keeps the message of the first failure, and when this rank may report it: after the lower ranks. */
void tt_comm_keep_failure(struct tt_comm *comm);

#endif
