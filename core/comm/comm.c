/* SPDX-License-Identifier: MIT
 *
 * Waiting and the small collectives, over the point-to-point functions of struct tt_comm_ops.
 *
 * The small collectives run along a binomial tree: counted from the root, rank r receives from r without its lowest set
 * bit. They carry a few hundred bytes once a step, so latency (2 log2 size messages in a row) is all that matters.
 */
#include "core/comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sched.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/comm/pulse.h"
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

static int advance(struct tt_comm *comm)
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

/* Signs of life must arrive even if no transfer is under way, when the transport would otherwise not be polled. */
static void beat(struct tt_comm *comm, double now)
{
    if (comm->size == 1)
        return;
    if (!comm->pulse)
        comm->pulse = tt_pulse_new(comm);
    tt_pulse_beat(comm, now);
}

static int advance_all(struct tt_comm *comm)
{
    struct tt_activity *next;
    int rc = 0;

    TT_TRY(advance(comm));
    for (struct tt_activity *activity = comm->active; activity; activity = next) {
        next = activity->next; /* advance may unlink the activity */
        TT_TRY(activity->advance(activity));
    }
    beat(comm, tt_comm_clock(comm));
out:
    return rc;
}

int tt_comm_progress(struct tt_comm *comm)
{
    if (comm->failure)
        return tt_fail(TT_ECOMM, "%s", comm->failure);
    comm->progress++;
    return advance_all(comm);
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

static const char *purpose(const struct tt_comm *comm)
{
    return comm->waiting_for ? comm->waiting_for : "start";
}

/* --- waiting --- */

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

    while (now < end && advance(comm) == 0) {
        now = tt_comm_clock(comm);
        beat(comm, now);
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

/*
 * Pauses between two polls of a wait. A rank that waits for a rank of its own host polls again at once, unless another
 * thread wants the core. A message over a network takes longer than a short sleep, and the kernel needs a core for its
 * share of the transfer, so such a wait sleeps.
 */
static void rest(const struct tt_comm *comm, int peer, double waited_sec)
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
        TT_TRY(advance_all(comm));
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
        rest(comm, peer, now - w.start);
    }
    comm->wait_sec += now - w.start;
out:
    comm->waits_long = false;
    return rc;
}

/* Keeps the message of the first failure, and when this rank may report it: after the lower ranks. */
static void keep_failure(struct tt_comm *comm)
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

/*
 * Leaves the lower ranks time to report the failure, and answers the others meanwhile. That advances the transfers
 * under way, which write into the memory of the callers, so it must happen before they return and release it.
 */
static void give_way(struct tt_comm *comm)
{
    while (comm->ops->advance && comm->clock_sec < comm->turn_sec && advance(comm) == 0) {
        beat(comm, tt_comm_clock(comm));
        (void)sched_yield();
    }
}

int tt_comm_wait_until(struct tt_comm *comm, tt_comm_poll_fn poll, void *arg)
{
    int rc;

    if (!comm->failure) {
        if ((rc = wait_until(comm, poll, arg)) != TT_ECOMM)
            return rc;
        keep_failure(comm);
        give_way(comm);
    }
    return tt_fail(TT_ECOMM, "%s", comm->failure);
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
        rest(comm, -1, 1.0);
    comm->ops->abort(comm, exit_code, message);
}

static int send_control(struct tt_comm *comm, const void *bytes, size_t size, int peer)
{
    struct tt_segment segment = {NULL, size};
    struct tt_request request = {{0}};
    int rc = 0;

    memcpy(&segment.data, &bytes, sizeof bytes); /* segments are not const; sending only reads */
    TT_TRY(comm->ops->send_begin(comm, &segment, 1, peer, TT_TAG_CONTROL, &request));
    comm->control_bytes += (int64_t)size;
    rc = tt_comm_wait(comm, &request, peer);
out:
    return rc;
}

static int receive_control(struct tt_comm *comm, void *bytes, size_t size, int peer)
{
    struct tt_segment segment = {bytes, size};
    struct tt_request request = {{0}};
    int rc = 0;

    TT_TRY(comm->ops->recv_begin(comm, &segment, 1, peer, TT_TAG_CONTROL, &request));
    rc = tt_comm_wait(comm, &request, peer);
out:
    return rc;
}

int tt_comm_broadcast(struct tt_comm *comm, void *bytes, size_t size, int root)
{
    int place = (comm->rank - root + comm->size) % comm->size; /* relative to the root */
    int bit = 1;
    int rc = 0;

    while (bit < comm->size && !(place & bit))
        bit <<= 1;
    if (place > 0)
        TT_TRY(receive_control(comm, bytes, size, (place - bit + root) % comm->size));
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (place + bit < comm->size)
            TT_TRY(send_control(comm, bytes, size, (place + bit + root) % comm->size));
out:
    return rc;
}

int tt_comm_gather_all(struct tt_comm *comm, const void *bytes, size_t size, void *all)
{
    char *table = all;
    int rank = comm->rank;
    int rc = 0;

    memmove(table + (size_t)rank * size, bytes, size);
    /* Each rank collects the rows of `bit` ranks, beginning with itself; they are adjacent in the table. */
    for (int bit = 1; bit < comm->size; bit <<= 1) {
        if (rank & bit) {
            int rows = comm->size - rank < bit ? comm->size - rank : bit;

            TT_TRY(send_control(comm, table + (size_t)rank * size, (size_t)rows * size, rank - bit));
            break;
        }
        if (rank + bit < comm->size) {
            int left = comm->size - rank - bit;
            int rows = left < bit ? left : bit;

            TT_TRY(receive_control(comm, table + (size_t)(rank + bit) * size, (size_t)rows * size, rank + bit));
        }
    }
    rc = tt_comm_broadcast(comm, all, size * (size_t)comm->size, 0);
out:
    return rc;
}

enum { MOST_WORDS = 128 };

/* Combines every rank's n 8-byte words on rank 0 with `fold` and sends the result back. */
static int all_reduce_words(struct tt_comm *comm, void *words, int n, void (*fold)(void *into, const void *from, int n))
{
    int64_t received[MOST_WORDS];
    int rank = comm->rank;
    int rc = 0;

    for (int bit = 1; bit < comm->size; bit <<= 1) {
        if (rank & bit) {
            TT_TRY(send_control(comm, words, (size_t)n * 8, rank - bit));
            break;
        }
        if (rank + bit < comm->size) {
            TT_TRY(receive_control(comm, received, (size_t)n * 8, rank + bit));
            fold(words, received, n);
        }
    }
    rc = tt_comm_broadcast(comm, words, (size_t)n * 8, 0);
out:
    return rc;
}

static void fold_sum(void *into, const void *from, int n)
{
    uint64_t *a = into; /* unsigned: an overflowing sum wraps, in the same way on every rank */
    const uint64_t *b = from;

    for (int i = 0; i < n; i++)
        a[i] += b[i];
}

static void fold_max(void *into, const void *from, int n)
{
    double *a = into;
    const double *b = from;

    for (int i = 0; i < n; i++)
        a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];
}

int tt_comm_sum_i64(struct tt_comm *comm, int64_t *values, int n)
{
    int rc = 0;

    for (int i = 0; i < n; i += MOST_WORDS)
        TT_TRY(all_reduce_words(comm, values + i, n - i < MOST_WORDS ? n - i : MOST_WORDS, fold_sum));
out:
    return rc;
}

int tt_comm_max_f64(struct tt_comm *comm, double *values, int n)
{
    int rc = 0;

    for (int i = 0; i < n; i += MOST_WORDS)
        TT_TRY(all_reduce_words(comm, values + i, n - i < MOST_WORDS ? n - i : MOST_WORDS, fold_max));
out:
    return rc;
}

int tt_comm_barrier(struct tt_comm *comm)
{
    int64_t nothing = 0;

    return tt_comm_sum_i64(comm, &nothing, 1);
}

int tt_comm_agree(struct tt_comm *comm, int code)
{
    static _Thread_local char message[TT_ERROR_MESSAGE_BYTES];
    double urgency = code < 0 ? comm->size - comm->rank : 0; /* greatest for the lowest failing rank */
    int64_t fault[3] = {code, 0, (int64_t)tt_error_key()};   /* code, bytes of the message, key */
    int rc = 0, failed;

    if (code == TT_ECOMM) {
        keep_failure(comm);
        return code;
    }
    TT_TRY(tt_comm_max_f64(comm, &urgency, 1));
    if (urgency == 0)
        goto out;
    failed = comm->size - (int)urgency;
    (void)snprintf(message, sizeof message, "%s", tt_error_message());
    fault[1] = (int64_t)strlen(message) + 1;
    TT_TRY(tt_comm_broadcast(comm, fault, sizeof fault, failed));
    TT_TRY(tt_comm_broadcast(comm, message, (size_t)fault[1], failed));
    rc = failed == 0 ? tt_fail_key((int)fault[0], (enum tt_key)fault[2], "%s", message)
                     : tt_fail_key((int)fault[0], (enum tt_key)fault[2], "rank %d: %s", failed, message);
out:
    return rc;
}
