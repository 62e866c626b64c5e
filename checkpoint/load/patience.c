/* SPDX-License-Identifier: MIT
 *
 * Work on files, for which other ranks wait.
 */
#include "checkpoint/load/patience.h"

struct tt_patience tt_patience_begin(struct tt_comm *comm, const char *waiting_for)
{
    struct tt_patience before = {comm->waiting_for};

    comm->waiting_for = waiting_for;
    return before;
}

void tt_patience_end(struct tt_comm *comm, const struct tt_patience *before)
{
    comm->waiting_for = before->waiting_for;
}

int tt_patience_work(struct tt_comm *comm, bool mine, int (*work)(void *arg), void *arg)
{
    return tt_comm_agree(comm, mine ? tt_comm_work(comm, work, arg) : 0);
}
