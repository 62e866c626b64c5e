/* SPDX-License-Identifier: MIT
 *
 * Waiting for other ranks: reports of long waits, the timeout, and what a rank does after a failure.
 */
#include "core/comm/wait.h"

#include <stdio.h>
#include <time.h>

#include <sched.h>

#include "core/base/mem.h"
#include "core/comm/pulse.h"

static const char *purpose(const struct tt_comm *comm)
{
    return comm->waiting_for ? comm->waiting_for : "start";
}

struct wait {
    double start, reported; /* tt_comm_clock */
    double quiet;           /* when the job last made progress */
    int64_t mark;           /* the job's progress then */
};

static void begin_wait(struct tt_comm *comm, struct wait *w)
{
    double now = tt_comm_clock(comm);

    *w = (struct wait){now, now, now, tt_pulse_progress(comm)};
}

/* Whether the job has made progress since the last call that returned true. */
static bool gets_on(const struct tt_comm *comm, struct wait *w, double now)
{
    int64_t progress = tt_pulse_progress(comm);

    if (progress == w->mark)
        return false;
    w->mark = progress;
    w->quiet = now;
    return true;
}

/*
 * Reports from time to time which rank a long wait is for: a silent rank, else one that is at work (it reads or writes
 * files), else the one that has not sent.
 */
static void report(struct tt_comm *comm, struct wait *w, int peer, double now)
{
    int silent = tt_pulse_silent(comm, now), working = tt_pulse_working(comm);
    int rank = silent >= 0 ? silent : working >= 0 ? working : peer;
    char text[512];

    comm->waits_long = comm->report_sec > 0.0 && now - w->start >= comm->report_sec / 2.0;
    if (comm->report_sec <= 0.0 || now - w->reported < comm->report_sec || rank < 0)
        return;
    w->reported = now;
    if (!comm->say || !tt_pulse_speaks(comm, now))
        return;
    (void)snprintf(text, sizeof text, "rank %d has waited %.0f s for rank %d on %s in '%s': %s", comm->rank,
                   now - w->start, rank, tt_comm_host(comm, rank), purpose(comm),
                   silent >= 0    ? "it does not answer"
                   : working >= 0 ? "it reads or writes files"
                                  : "it has not got this far");
    comm->say(text);
}

/* After a timeout, keeps answering for a while, so that the other ranks do not find this rank missing. */
static bool still_nothing(struct tt_comm *comm, struct wait *w)
{
    double wait_sec = comm->timeout_sec / 4.0, now = tt_comm_clock(comm);
    double end = now + (wait_sec < 0.5 ? 0.5 : wait_sec > 10.0 ? 10.0 : wait_sec);

    while (now < end && tt_comm_advance(comm) == 0) {
        now = tt_comm_clock(comm);
        tt_comm_beat(comm, now);
        if (gets_on(comm, w, now))
            return false;
        (void)sched_yield();
    }
    return true;
}

static int fail_timeout(struct tt_comm *comm, const struct wait *w, int peer, int missing)
{
    double waited = comm->clock_sec - w->start;

    if (missing < 0)
        return tt_fail(TT_ECOMM,
                       "rank %d waited %.0f s for rank %d on %s in '%s': all ranks answer, but none makes progress: "
                       "they wait for each other",
                       comm->rank, waited, peer, tt_comm_host(comm, peer), purpose(comm));
    return tt_fail(TT_ECOMM,
                   "rank %d waited %.0f s for rank %d on %s in '%s': that rank is dead or stopped\n"
                   "help: look at its log and its host; %s (at the start %s) sets how long ranks wait without progress",
                   comm->rank, waited, missing, tt_comm_host(comm, missing), purpose(comm),
                   tt_key_name(TT_KEY_TRAIN_TIMEOUT), tt_key_name(TT_KEY_INIT_TIMEOUT));
}

void tt_comm_rest(const struct tt_comm *comm, int peer, double waited_sec)
{
    static const double patience_sec = 100e-6;
    static const struct timespec nap = {0, 50000};
    bool near = peer >= 0 && tt_comm_same_host(comm, peer, comm->rank);

    if (near || waited_sec < patience_sec)
        (void)sched_yield();
    else
        (void)nanosleep(&nap, NULL);
}

static int wait_until(struct tt_comm *comm, tt_comm_poll_fn poll, void *arg)
{
    struct wait w;
    bool done = false;
    int peer = -1, silent = -1;
    double now;
    int rc = 0;

    TT_TRY(poll(arg, &done, &peer));
    if (done)
        goto out;
    begin_wait(comm, &w);
    for (;;) {
        TT_TRY(tt_comm_advance_all(comm));
        TT_TRY(poll(arg, &done, &peer));
        now = comm->clock_sec;
        if (done)
            break;
        (void)gets_on(comm, &w, now);
        if (comm->timeout_sec > 0.0 && now - w.quiet > comm->timeout_sec) {
            silent = tt_pulse_silent(comm, now);
            if (still_nothing(comm, &w)) {
                rc = fail_timeout(comm, &w, peer, silent);
                goto out;
            }
        }
        report(comm, &w, peer, now);
        tt_comm_rest(comm, peer, now - w.start);
    }
    comm->wait_sec += now - w.start;
out:
    comm->waits_long = false;
    return rc;
}

void tt_comm_keep_failure(struct tt_comm *comm)
{
    enum { MOST_BEFORE = 5 };
    static const double each_sec = 10.0; /* for printing, and for the launcher on a busy host to end the other ranks */
    double now = tt_comm_clock(comm);
    int before = comm->rank < MOST_BEFORE ? comm->rank : MOST_BEFORE, silent = tt_pulse_silent(comm, now);

    if (comm->failure)
        return;
    if (before > 0 && silent >= 0 && silent < comm->rank)
        before--; /* that rank will not report */
    comm->failure = tt_strdup(tt_error_message());
    comm->turn_sec = now + before * each_sec;
}

int tt_comm_give_way(struct tt_comm *comm, int code)
{
    if (code != TT_ECOMM)
        return code;
    if (comm->failure)
        return tt_fail(TT_ECOMM, "%s", comm->failure);
    tt_comm_keep_failure(comm);
    while (comm->ops->advance && comm->clock_sec < comm->turn_sec && tt_comm_advance(comm) == 0) {
        tt_comm_beat(comm, tt_comm_clock(comm));
        (void)sched_yield();
    }
    return tt_fail(TT_ECOMM, "%s", comm->failure);
}

int tt_comm_wait_until(struct tt_comm *comm, tt_comm_poll_fn poll, void *arg)
{
    if (comm->failure)
        return tt_fail(TT_ECOMM, "%s", comm->failure);
    return tt_comm_give_way(comm, wait_until(comm, poll, arg));
}

struct request_poll {
    struct tt_comm *comm;
    struct tt_request *request;
    int peer;
};

static int poll_request(void *arg, bool *ret_done, int *ret_peer)
{
    struct request_poll *poll = arg;

    *ret_peer = poll->peer;
    return poll->comm->ops->test(poll->comm, poll->request, ret_done);
}

int tt_comm_wait(struct tt_comm *comm, struct tt_request *request, int peer)
{
    struct request_poll poll = {comm, request, peer};

    return tt_comm_wait_until(comm, poll_request, &poll);
}
