/* SPDX-License-Identifier: MIT
 *
 * What all communicators have in common: activities that advance, the clock, who shares a host, the end.
 */
#include "core/comm/comm.h"

#include "core/base/mem.h"
#include "core/comm/pulse.h"
#include "core/comm/wait.h"
#include "core/os/file.h"

/* The most that counts of the time between two polls. */
static const double most_gap_sec = 0.5;

void tt_comm_link(struct tt_comm *comm, struct tt_activity *activity)
{
    struct tt_activity **link = &comm->active;

    while (*link)
        link = &(*link)->next;
    *link = activity;
    activity->link = link;
    activity->next = NULL;
    activity->begin_sec = activity->end_sec = tt_clock_sec();
}

void tt_comm_unlink(struct tt_activity *activity)
{
    if (!activity->link)
        return;
    *activity->link = activity->next;
    if (activity->next)
        activity->next->link = activity->link;
    activity->link = NULL;
    activity->next = NULL;
    activity->end_sec = tt_clock_sec();
}

int tt_comm_advance(struct tt_comm *comm)
{
    return comm->ops->advance ? comm->ops->advance(comm) : 0;
}

double tt_comm_clock(struct tt_comm *comm)
{
    double now = tt_clock_sec(), gap = comm->seen_sec > 0.0 ? now - comm->seen_sec : 0.0;

    comm->seen_sec = now;
    comm->clock_sec += gap < most_gap_sec ? gap : most_gap_sec;
    return comm->clock_sec;
}

void tt_comm_beat(struct tt_comm *comm, double now)
{
    if (comm->size == 1)
        return;
    if (!comm->pulse)
        comm->pulse = tt_pulse_new(comm);
    tt_pulse_beat(comm, now);
}

int tt_comm_advance_all(struct tt_comm *comm)
{
    struct tt_activity *next;
    int rc = 0;

    TT_TRY(tt_comm_advance(comm));
    for (struct tt_activity *activity = comm->active; activity; activity = next) {
        next = activity->next; /* advance may unlink the activity */
        TT_TRY(activity->advance(activity));
    }
    tt_comm_beat(comm, tt_comm_clock(comm));
out:
    return rc;
}

int tt_comm_progress(struct tt_comm *comm)
{
    if (comm->failure)
        return tt_fail(TT_ECOMM, "%s", comm->failure);
    comm->progress++;
    return tt_comm_give_way(comm, tt_comm_advance_all(comm));
}

int tt_comm_host_leader(const struct tt_comm *comm, int rank)
{
    return comm->host_leader ? comm->host_leader[rank] : 0;
}

bool tt_comm_same_host(const struct tt_comm *comm, int a, int b)
{
    return tt_comm_host_leader(comm, a) == tt_comm_host_leader(comm, b);
}

void tt_comm_node(const struct tt_comm *comm, int *ret_local_rank, int *ret_local_size)
{
    int before = 0, together = 0;

    for (int rank = 0; rank < comm->size; rank++) {
        if (!tt_comm_same_host(comm, rank, comm->rank))
            continue;
        before += rank < comm->rank;
        together++;
    }
    *ret_local_rank = before;
    *ret_local_size = together;
}

const char *tt_comm_host(const struct tt_comm *comm, int rank)
{
    return comm->hosts ? comm->hosts[rank] : "this host";
}

void tt_comm_free(struct tt_comm *comm)
{
    struct tt_pulse *pulse;
    char *failure;

    if (!comm)
        return;
    pulse = comm->pulse; /* the transport ends the transfers of the pulse */
    failure = comm->failure;
    comm->ops->free(comm);
    tt_pulse_free(pulse);
    tt_free(failure);
}

void tt_comm_abort(struct tt_comm *comm, int exit_code, const char *message)
{
    /* Transfers must not advance here: the memory that they write may be gone. */
    while (comm->failure && tt_comm_clock(comm) < comm->turn_sec)
        tt_comm_rest(comm, -1, 1.0);
    comm->ops->abort(comm, exit_code, message);
}
