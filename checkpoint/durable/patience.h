/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DURABLE_PATIENCE_H
#define TT_CHECKPOINT_DURABLE_PATIENCE_H

#include "core/comm/comm.h"

/**
 * Waiting for storage. A rank with a slow disk is not dead. Work that reads or writes files runs in tt_comm_work, so
 * that the other ranks wait as long as the work takes, while a dead or stopped rank still ends the wait after the
 * communicator's timeout. Between begin and end, messages about the wait name the work. Call both in the same function.
 */
struct tt_patience {
    const char *waiting_for;
};

static inline struct tt_patience tt_patience_begin(struct tt_comm *comm, const char *waiting_for)
{
    struct tt_patience before = {comm->waiting_for};

    comm->waiting_for = waiting_for;
    return before;
}

static inline void tt_patience_end(struct tt_comm *comm, const struct tt_patience *before)
{
    comm->waiting_for = before->waiting_for;
}

/**
 * Calls work(arg) in tt_comm_work on the ranks where `mine` is true; then all ranks agree on the result. Collective.
 */
TT_MUST_CHECK static inline int tt_patience_work(struct tt_comm *comm, bool mine, int (*work)(void *arg), void *arg)
{
    return tt_comm_agree(comm, mine ? tt_comm_work(comm, work, arg) : 0);
}

#endif
