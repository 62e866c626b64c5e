/* SPDX-License-Identifier: MIT
 *
 * Waiting and the small collectives, written once over the point-to-point functions of struct tt_comm_ops.
 *
 * The small collectives run along a binomial tree: counted from the root, rank r receives from r without its lowest set
 * bit. They carry a few hundred bytes once a step, so latency (2 log2 size messages in a row) is all that matters.
 */
#include "core/base/comm.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sched.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/mem.h"

enum { CONTROL_TAG = 1, STALL_TAG = 2 };

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

int tt_comm_progress(struct tt_comm *comm)
{
    struct tt_activity *next;
    int rc = 0;

    for (struct tt_activity *activity = comm->active; activity; activity = next) {
        next = activity->next; /* advance may take itself out of the list */
        TT_TRY(activity->advance(activity));
    }
out:
    return rc;
}

/* What ranks that timed out tell each other. Outlives the wait, since some of its transfers never complete. */
struct tt_stall {
    int64_t mine;                        /* the rank this one waits for */
    int64_t *waits_for;                  /* [size] what each rank said; -1: nothing, so it is missing or still busy */
    struct tt_request *sends, *receives; /* [size] */
};

static struct tt_stall *stall_new(int size)
{
    struct tt_stall *stall =
        tt_calloc(1, sizeof *stall + (size_t)size * (sizeof(int64_t) + 2 * sizeof(struct tt_request)));

    stall->sends = (struct tt_request *)(stall + 1);
    stall->receives = stall->sends + size;
    stall->waits_for = (int64_t *)(stall->receives + size);
    for (int rank = 0; rank < size; rank++)
        stall->waits_for[rank] = -1;
    return stall;
}

/* Exchanges with all ranks what each waits for, as far as they answer in time. What fails here counts as no answer. */
static void exchange_stalls(struct tt_comm *comm, int peer)
{
    double wait_sec = comm->timeout_sec / 4.0;
    double end = tt_clock_sec() + (wait_sec < 0.5 ? 0.5 : wait_sec > 10.0 ? 10.0 : wait_sec);
    struct tt_stall *stall = stall_new(comm->size);
    struct tt_segment mine = {&stall->mine, sizeof stall->mine};
    bool done;

    comm->stall = stall;
    stall->mine = stall->waits_for[comm->rank] = peer;
    for (int rank = 0; rank < comm->size; rank++) {
        struct tt_segment theirs = {&stall->waits_for[rank], sizeof(int64_t)};

        if (rank == comm->rank)
            continue;
        if (comm->ops->recv_begin(comm, &theirs, 1, rank, STALL_TAG, &stall->receives[rank]) < 0 ||
            comm->ops->send_begin(comm, &mine, 1, rank, STALL_TAG, &stall->sends[rank]) < 0)
            return;
    }
    while (tt_clock_sec() < end) {
        for (int rank = 0; rank < comm->size; rank++)
            (void)(comm->ops->test(comm, &stall->sends[rank], &done) |
                   comm->ops->test(comm, &stall->receives[rank], &done));
        (void)sched_yield();
    }
}

static int fail_timeout(struct tt_comm *comm, int peer, double waited)
{
    const char *what = comm->waiting_for ? comm->waiting_for : "start";
    int missing = peer;

    if (!comm->stall)
        exchange_stalls(comm, peer);
    for (int hops = 0; hops < comm->size && comm->stall->waits_for[missing] >= 0; hops++)
        missing = (int)comm->stall->waits_for[missing];
    if (comm->stall->waits_for[missing] >= 0)
        return tt_fail(TT_ECOMM, "rank %d waited %.0f s for rank %d in '%s': ranks wait for each other", comm->rank,
                       waited, peer, what);
    return tt_fail(TT_ECOMM,
                   "rank %d waited %.0f s for rank %d in '%s': that rank is dead, stopped or far behind\n"
                   "help: look at its log; comm.train_timeout_seconds sets how long to wait",
                   comm->rank, waited, missing, what);
}

/*
 * Between two looks at what has not come. Who waits for a rank of this host looks again at once, unless another thread
 * wants the core. What crosses a network is slower than a short sleep, and needs the core itself: the kernel's share of a
 * transfer is done on some core's time, and ranks may share one.
 */
static void rest(const struct tt_comm *comm, int peer, double waited_sec)
{
    static const double patience_sec = 100e-6;
    static const struct timespec nap = {0, 50000};
    bool near = comm->reachable && peer >= 0 && comm->reachable[peer];

    if (near || waited_sec < patience_sec)
        (void)sched_yield();
    else
        (void)nanosleep(&nap, NULL);
}

int tt_comm_wait_until(struct tt_comm *comm, tt_comm_poll_fn poll, void *arg)
{
    double start, now;
    bool done = false;
    int peer = -1;
    int rc = 0;

    TT_TRY(poll(arg, &done, &peer));
    if (done)
        goto out;
    start = tt_clock_sec();
    for (;;) {
        TT_TRY(tt_comm_progress(comm));
        TT_TRY(poll(arg, &done, &peer));
        now = tt_clock_sec();
        if (done)
            break;
        if (comm->timeout_sec > 0.0 && now - start > comm->timeout_sec) {
            rc = fail_timeout(comm, peer, now - start);
            goto out;
        }
        rest(comm, peer, now - start);
    }
    comm->wait_sec += now - start;
out:
    return rc;
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
    struct tt_stall *stall;

    if (!comm)
        return;
    stall = comm->stall;
    comm->ops->free(comm);
    tt_free(stall);
}

void tt_comm_abort(struct tt_comm *comm, int exit_code, const char *message)
{
    const struct timespec others_first = {.tv_sec = 3};
    int speaker = 0;

    while (comm->stall && speaker < comm->rank && comm->stall->waits_for[speaker] < 0)
        speaker++;
    if (comm->stall && speaker < comm->rank)
        (void)nanosleep(&others_first, NULL);
    comm->ops->abort(comm, exit_code, message);
}

static int send_control(struct tt_comm *comm, const void *bytes, size_t size, int peer)
{
    struct tt_segment segment = {NULL, size};
    struct tt_request request = {{0}};
    int rc = 0;

    memcpy(&segment.data, &bytes, sizeof bytes); /* a segment has no const; sending only reads */
    TT_TRY(comm->ops->send_begin(comm, &segment, 1, peer, CONTROL_TAG, &request));
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

    TT_TRY(comm->ops->recv_begin(comm, &segment, 1, peer, CONTROL_TAG, &request));
    rc = tt_comm_wait(comm, &request, peer);
out:
    return rc;
}

int tt_comm_broadcast(struct tt_comm *comm, void *bytes, size_t size, int root)
{
    int place = (comm->rank - root + comm->size) % comm->size; /* counted from the root */
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
    /* Each rank collects the rows of the `bit` ranks from itself on, which are neighbours in the table. */
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

/* Folds every rank's n 8-byte words on rank 0 with `fold` and sends the result back. */
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
    uint64_t *a = into; /* unsigned: a sum that overflows wraps, the same on every rank */
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
    double urgency = code < 0 ? comm->size - comm->rank : 0; /* the lowest failing rank has the most */
    int64_t fault[2] = {code, 0};
    int rc = 0, failed;

    TT_TRY(tt_comm_max_f64(comm, &urgency, 1));
    if (urgency == 0)
        goto out;
    failed = comm->size - (int)urgency;
    (void)snprintf(message, sizeof message, "%s", tt_error_message());
    fault[1] = (int64_t)strlen(message) + 1;
    TT_TRY(tt_comm_broadcast(comm, fault, sizeof fault, failed));
    TT_TRY(tt_comm_broadcast(comm, message, (size_t)fault[1], failed));
    rc = failed == 0 ? tt_fail((int)fault[0], "%s", message) : tt_fail((int)fault[0], "rank %d: %s", failed, message);
out:
    return rc;
}

int tt_comm_node(struct tt_comm *comm, int *ret_local_rank, int *ret_local_size)
{
    enum { HOST_BYTES = 256 };
    char host[HOST_BYTES] = {0};
    char *hosts = tt_calloc((size_t)comm->size, HOST_BYTES);
    int rc = 0, before = 0, together = 0;

    (void)gethostname(host, HOST_BYTES - 1);
    TT_TRY(tt_comm_gather_all(comm, host, HOST_BYTES, hosts));
    for (int rank = 0; rank < comm->size; rank++) {
        if (memcmp(hosts + (size_t)rank * HOST_BYTES, host, HOST_BYTES) != 0)
            continue;
        before += rank < comm->rank;
        together++;
    }
    *ret_local_rank = before;
    *ret_local_size = together;
out:
    tt_free(hosts);
    return rc;
}
