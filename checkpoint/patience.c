/* SPDX-License-Identifier: MIT
 *
 * The communicator's timeout while ranks wait for storage.
 */
#include "checkpoint/patience.h"

static const double storage_timeout_sec = 1800.0;

struct tt_patience tt_patience_begin(struct tt_comm *comm, const char *waiting_for)
{
    struct tt_patience before = {comm->timeout_sec, comm->waiting_for};

    if (comm->timeout_sec > 0.0 && comm->timeout_sec < storage_timeout_sec)
        comm->timeout_sec = storage_timeout_sec;
    comm->waiting_for = waiting_for;
    return before;
}

void tt_patience_end(struct tt_comm *comm, const struct tt_patience *before)
{
    comm->timeout_sec = before->timeout_sec;
    comm->waiting_for = before->waiting_for;
}
