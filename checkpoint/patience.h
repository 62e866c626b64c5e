/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_PATIENCE_H
#define TT_CHECKPOINT_PATIENCE_H

#include "core/base/comm.h"

/**
 * Waiting for storage: a slow disk is no dead rank, so while ranks wait for each other's files the communicator's
 * timeout is at least half an hour, and its message says what is going on. Begin and end in the same function.
 */
struct tt_patience {
    double timeout_sec;
    const char *waiting_for;
};

struct tt_patience tt_patience_begin(struct tt_comm *comm, const char *waiting_for);
void tt_patience_end(struct tt_comm *comm, const struct tt_patience *before);

#endif
