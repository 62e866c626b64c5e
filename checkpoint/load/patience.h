/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_PATIENCE_H
#define TT_CHECKPOINT_LOAD_PATIENCE_H

#include "core/comm/comm.h"

/**
 * Waiting for storage. A slow disk is no dead rank: what reads or writes files runs in tt_comm_work, so that the others
 * wait for it however long it takes, while a rank that is dead or stopped ends the wait after the communicator's
 * timeout. Messages about the wait say what is going on between begin and end, which belong in the same function.
 */
struct tt_patience {
    const char *waiting_for;
};

struct tt_patience tt_patience_begin(struct tt_comm *comm, const char *waiting_for);
void tt_patience_end(struct tt_comm *comm, const struct tt_patience *before);

/** Does work(arg) where `mine` says so, as tt_comm_work; then ranks agree on how it went. Collective. */
int tt_patience_work(struct tt_comm *comm, bool mine, int (*work)(void *arg), void *arg) TT_MUST_CHECK;

#endif
