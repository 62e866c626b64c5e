/* SPDX-License-Identifier: MIT
 *
 * The code that all communicators share: activities, signs of life, waits, hosts, small collectives.
 */
#include "core/comm/comm.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/math/tree.h"
#include "core/os/file.h"

/* --- activities and the clock --- */

/* At most this many seconds count between two polls. */
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

static int advance_transport(struct tt_comm *comm)
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

/*
 * --- signs of life: whether the ranks of a job are alive and whether the job makes progress ---
 *
 * The ranks form a binomial tree, in which the parent of rank r is r without its lowest set bit. Two neighbours pass
 * one small message back and forth, about once a second, whenever either of them polls. The message carries the
 * progress of the sender's side of the tree (the sum of tt_comm.progress), and the lowest ranks there that wait, work
 * or are silent. A rank that does not answer is silent: it is dead, stopped, or busy with work that does not poll. So a
 * rank has at most log2(ranks) neighbours, at most one message per neighbour is under way, and after some seconds every
 * rank knows about all others.
 *
 * Times are those of tt_comm_clock. A failure here counts as a missing answer and sets no error message.
 */

/* Seconds between two messages to a neighbour; shorter where the timeout is short. */
static const double longest_period_sec = 1.0, shortest_period_sec = 0.02;

/* A neighbour is silent after this many periods without an answer. LOOKS: polls per period. */
enum { SILENT_PERIODS = 5, LOOKS = 8 };

/* A rank's message to a neighbour, about itself and all ranks on its side of the tree. A rank of -1: none. */
struct beat {
    int64_t progress;
    int32_t waiting, working, silent; /* the lowest rank in that state */
    int32_t unused;
};

struct neighbour {
    int rank;
    bool my_turn;    /* it is this rank's turn to send; otherwise it waits for the neighbour's answer */
    bool is_awaited; /* the receive is posted */
    bool is_gone;    /* a transfer failed */
    double sent, heard;
    struct beat in, out; /* the last beat received, and the last beat sent */
    struct beat arriving;
    struct tt_request send, receive;
};

struct tt_pulse {
    double next_look;
    int n;
    bool has_parent;                /* neighbour[0] is the parent, on whose side all lower ranks are */
    struct neighbour neighbour[32]; /* the parent, and a child for each bit of a rank */
};

/* comm must have more than one rank. Free the result after the transport has ended all transfers. */
static struct tt_pulse *pulse_new(const struct tt_comm *comm)
{
    struct tt_pulse *p = tt_calloc(1, sizeof *p);
    int rank = comm->rank;

    p->has_parent = rank > 0;
    if (rank > 0)
        p->neighbour[p->n++].rank = rank & (rank - 1);
    for (int bit = 1; bit < comm->size && !(rank & bit); bit <<= 1)
        if (rank + bit < comm->size)
            p->neighbour[p->n++].rank = rank + bit;
    for (int i = 0; i < p->n; i++) {
        struct neighbour *b = &p->neighbour[i];

        b->my_turn = rank < b->rank;
        b->sent = -longest_period_sec;
        b->heard = comm->clock_sec;
        b->in.waiting = b->in.working = b->in.silent = -1;
    }
    return p;
}

static double period_of(const struct tt_comm *comm)
{
    double period = comm->timeout_sec > 0.0 ? comm->timeout_sec / 20.0 : longest_period_sec;

    return period > longest_period_sec    ? longest_period_sec
           : period < shortest_period_sec ? shortest_period_sec
                                          : period;
}

static bool is_silent(const struct tt_comm *comm, const struct neighbour *b, double now)
{
    return b->is_gone || now - b->heard > SILENT_PERIODS * period_of(comm);
}

static int lower(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

/* Combines this rank with the sides of all neighbours except one. */
static struct beat sum_up(const struct tt_comm *comm, const struct neighbour *except, double now)
{
    const struct tt_pulse *p = comm->pulse;
    struct beat sum = {.progress = comm->progress,
                       .waiting = comm->waits_long ? comm->rank : -1,
                       .working = comm->works ? comm->rank : -1,
                       .silent = -1};

    for (int i = 0; i < p->n; i++) {
        const struct neighbour *b = &p->neighbour[i];

        if (b == except)
            continue;
        sum.progress += b->in.progress; /* a silent neighbour's progress still counts */
        if (is_silent(comm, b, now)) {
            sum.silent = lower(sum.silent, b->rank);
            continue;
        }
        sum.waiting = lower(sum.waiting, b->in.waiting);
        sum.working = lower(sum.working, b->in.working);
        sum.silent = lower(sum.silent, b->in.silent);
    }
    return sum;
}

static int await(struct tt_comm *comm, struct neighbour *b)
{
    struct tt_segment in = {&b->arriving, sizeof b->arriving};

    b->is_awaited = true;
    return comm->ops->recv_begin(comm, &in, 1, b->rank, TT_TAG_PULSE, &b->receive);
}

/* Advances the exchange with a neighbour as far as it can without blocking. */
static int exchange(struct tt_comm *comm, struct neighbour *b, double now)
{
    struct tt_segment out = {&b->out, sizeof b->out};
    bool done = false;
    int rc = 0;

    if (!b->my_turn) {
        if (!b->is_awaited)
            TT_TRY(await(comm, b));
        TT_TRY(comm->ops->test(comm, &b->receive, &done));
        if (!done)
            goto out;
        b->in = b->arriving;
        b->heard = now;
        b->is_awaited = false;
        b->my_turn = true;
    }
    if (now - b->sent < period_of(comm))
        goto out;
    TT_TRY(comm->ops->test(comm, &b->send, &done)); /* the previous message */
    if (!done)
        goto out;
    b->out = sum_up(comm, b, now);
    b->sent = now;
    b->my_turn = false;
    TT_TRY(comm->ops->send_begin(comm, &out, 1, b->rank, TT_TAG_PULSE, &b->send));
    rc = await(comm, b);
out:
    return rc;
}

/*
 * Exchanges the signs of life that are due; cheap if none is due. Polls the transport for them, since they must arrive
 * even if no transfer is under way.
 */
static void beat(struct tt_comm *comm, double now)
{
    static _Thread_local char kept[TT_ERROR_MESSAGE_BYTES];
    struct tt_pulse *p;
    int rc;

    if (comm->size == 1)
        return;
    if (!comm->pulse)
        comm->pulse = pulse_new(comm);
    p = comm->pulse;
    if (now < p->next_look)
        return;
    p->next_look = now + period_of(comm) / LOOKS;
    comm->looks = true;
    if (comm->ops->advance && comm->ops->advance(comm) < 0) {
        comm->looks = false;
        return; /* the next call that advances the transport returns the error again */
    }
    comm->looks = false;
    /* keep this thread's error message, since the caller may be about to report another error */
    memcpy(kept, tt_error_message(), strlen(tt_error_message()) + 1);
    for (int i = 0; i < p->n; i++) {
        struct neighbour *b = &p->neighbour[i];

        if (b->is_gone || (rc = exchange(comm, b, now)) >= 0)
            continue;
        b->is_gone = true;
        (void)tt_fail(rc, "%s", kept);
    }
}

/* The progress of the whole job, as far as this rank knows; it never decreases. */
static int64_t pulse_progress(const struct tt_comm *comm)
{
    int64_t sum = comm->progress;

    for (int i = 0; comm->pulse && i < comm->pulse->n; i++)
        sum += comm->pulse->neighbour[i].in.progress;
    return sum;
}

/* The lowest rank known to be silent; -1: none. */
static int pulse_silent(const struct tt_comm *comm, double now)
{
    return comm->pulse ? sum_up(comm, NULL, now).silent : -1;
}

/*
 * Whether this waiting rank reports for all waiting ranks. It does if no lower rank waits. If the parent of this rank
 * is silent, it cannot know this, so it reports only if the parent is the only lower rank.
 */
static bool pulse_speaks(const struct tt_comm *comm, double now)
{
    const struct tt_pulse *p = comm->pulse;
    const struct neighbour *parent;

    if (!p || !p->has_parent)
        return true;
    parent = &p->neighbour[0];
    if (is_silent(comm, parent, now))
        return comm->rank == 1; /* the parent is rank 0, and there is no other lower rank */
    return parent->in.waiting < 0 || parent->in.waiting > comm->rank;
}

/* Advances the transport, all activities and the signs of life. */
static int advance_all(struct tt_comm *comm)
{
    struct tt_activity *next;
    int rc = 0;

    TT_TRY(advance_transport(comm));
    for (struct tt_activity *activity = comm->active; activity; activity = next) {
        next = activity->next; /* advance may unlink the activity */
        TT_TRY(activity->advance(activity));
    }
    beat(comm, tt_comm_clock(comm));
out:
    return rc;
}

/* --- waiting for other ranks --- */

static const char *purpose(const struct tt_comm *comm)
{
    return comm->waiting_for ? comm->waiting_for : "start";
}

struct wait {
    double start, reported; /* tt_comm_clock */
    double quiet;           /* time of the job's last progress */
    int64_t mark;           /* the job's progress at that time */
};

/* Whether the job has made progress since this function last returned true. */
static bool gets_on(const struct tt_comm *comm, struct wait *w, double now)
{
    int64_t progress = pulse_progress(comm);

    if (progress == w->mark)
        return false;
    w->mark = progress;
    w->quiet = now;
    return true;
}

/*
 * Reports from time to time which rank this rank waits for: a silent rank, or else a rank that reads or writes files,
 * or else the rank whose message is missing.
 */
static void report(struct tt_comm *comm, struct wait *w, int peer, double now)
{
    int silent = pulse_silent(comm, now), working = comm->pulse ? sum_up(comm, NULL, now).working : -1;
    int rank = silent >= 0 ? silent : working >= 0 ? working : peer;
    char text[512];

    comm->waits_long = comm->report_sec > 0.0 && now - w->start >= comm->report_sec / 2.0;
    if (comm->report_sec <= 0.0 || now - w->reported < comm->report_sec || rank < 0)
        return;
    w->reported = now;
    if (!comm->say || !pulse_speaks(comm, now))
        return;
    (void)snprintf(text, sizeof text, "rank %d has waited %.0f s for rank %d on %s in '%s': %s", comm->rank,
                   now - w->start, rank, tt_comm_host(comm, rank), purpose(comm),
                   silent >= 0    ? "it does not answer"
                   : working >= 0 ? "it reads or writes files"
                                  : "it has not reached this point");
    comm->say(text);
}

/* After a timeout, keeps answering for a while, so that other ranks do not take this one for dead. */
static bool still_nothing(struct tt_comm *comm, struct wait *w)
{
    double wait_sec = comm->timeout_sec / 4.0, now = tt_comm_clock(comm);
    double end = now + (wait_sec < 0.5 ? 0.5 : wait_sec > 10.0 ? 10.0 : wait_sec);

    while (now < end && advance_transport(comm) == 0) {
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
                   TT_KEY_NAME(comm.train_timeout_seconds), TT_KEY_NAME(comm.init_timeout_seconds));
}

/*
 * Pauses between two polls of a wait. A wait for a rank of the same host polls again at once, unless another thread
 * wants the core. A wait for another host sleeps: a message over a network takes longer than a short sleep, and the
 * kernel needs a core for its part of the transfer.
 *   peer        the rank for which this rank waits, or negative
 *   waited_sec  the time waited so far
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
    now = tt_comm_clock(comm);
    w = (struct wait){now, now, now, pulse_progress(comm)};
    for (;;) {
        TT_TRY(advance_all(comm));
        TT_TRY(poll(arg, &done, &peer));
        now = comm->clock_sec;
        if (done)
            break;
        (void)gets_on(comm, &w, now);
        if (comm->timeout_sec > 0.0 && now - w.quiet > comm->timeout_sec) {
            silent = pulse_silent(comm, now);
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

/* Keeps the message of the first failure, and the time at which this rank may report it: after the lower ranks. */
static void keep_failure(struct tt_comm *comm)
{
    enum { MOST_BEFORE = 5 };
    static const double each_sec = 10.0; /* time to print, and for the launcher on a busy host to end the other ranks */
    double now = tt_comm_clock(comm);
    int before = comm->rank < MOST_BEFORE ? comm->rank : MOST_BEFORE, silent = pulse_silent(comm, now);

    if (comm->failure)
        return;
    if (before > 0 && silent >= 0 && silent < comm->rank)
        before--; /* that rank does not report */
    comm->failure = tt_strdup(tt_error_message());
    comm->turn_sec = now + before * each_sec;
}

int tt_comm_give_way(struct tt_comm *comm, int code)
{
    if (code != TT_ECOMM)
        return code;
    if (comm->failure)
        return tt_fail(TT_ECOMM, "%s", comm->failure);
    keep_failure(comm);
    while (comm->ops->advance && comm->clock_sec < comm->turn_sec && advance_transport(comm) == 0) {
        beat(comm, tt_comm_clock(comm));
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

/* --- the job --- */

int tt_comm_progress(struct tt_comm *comm)
{
    if (comm->failure)
        return tt_fail(TT_ECOMM, "%s", comm->failure);
    comm->progress++;
    return tt_comm_give_way(comm, advance_all(comm));
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

void tt_comm_add(const struct tt_comm *comm, void *into, const void *a, const void *b, int64_t bytes)
{
    if (comm->adds_doubles)
        tt_tree_add_f64(into, a, b, bytes / (int64_t)sizeof(double));
    else
        tt_tree_add(into, a, b, bytes / (int64_t)sizeof(float));
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
    tt_free(pulse);
    tt_free(failure);
}

void tt_comm_abort(struct tt_comm *comm, int exit_code, const char *message)
{
    /* Transfers must not advance here: the memory that they write may be gone. */
    while (comm->failure && tt_comm_clock(comm) < comm->turn_sec)
        rest(comm, -1, 1.0);
    comm->ops->abort(comm, exit_code, message);
}

/*
 * --- work during which the communicator stays alive ---
 *
 * The work runs in a separate thread, while the caller answers the other ranks. Each call starts a thread; that happens
 * a few times per save.
 */

struct job {
    int (*work)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int rc;
    char *message;
    enum tt_key key;
};

static void *run(void *arg)
{
    struct job *job = arg;
    int rc = job->work(job->arg);

    (void)pthread_mutex_lock(&job->lock);
    job->rc = rc;
    job->message = rc < 0 ? tt_strdup(tt_error_message()) : NULL;
    job->key = tt_error_key();
    job->done = true;
    (void)pthread_cond_signal(&job->changed);
    (void)pthread_mutex_unlock(&job->lock);
    return NULL;
}

/* The main thread handles the signals; this thread blocks them. */
static int start(struct job *job, pthread_t *thread)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, NULL, run, job);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Waits a moment for the end of the work; the caller holds the lock. */
static void doze(struct job *job)
{
    enum { NAP_NSEC = 10 * 1000 * 1000, SEC_NSEC = 1000 * 1000 * 1000 };
    struct timespec until = {0, 0};

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += NAP_NSEC;
    if (until.tv_nsec >= SEC_NSEC) {
        until.tv_nsec -= SEC_NSEC;
        until.tv_sec++;
    }
    (void)pthread_cond_timedwait(&job->changed, &job->lock, &until);
}

int tt_comm_work(struct tt_comm *comm, int (*work)(void *arg), void *arg)
{
    struct job job = {.work = work, .arg = arg};
    bool reachable = !comm->failure;
    pthread_t thread;

    if (comm->size == 1 || comm->failure)
        return work(arg);
    (void)pthread_mutex_init(&job.lock, NULL);
    (void)pthread_cond_init(&job.changed, NULL);
    if (start(&job, &thread) != 0) {
        job.rc = work(arg); /* meanwhile the other ranks get no signs of life */
        goto out;
    }
    comm->works = true;
    (void)pthread_mutex_lock(&job.lock);
    while (!job.done) {
        doze(&job);
        (void)pthread_mutex_unlock(&job.lock);
        /* The work must end first, so a failure here is not returned; it appears again in the next wait. */
        reachable = reachable && tt_comm_progress(comm) == 0;
        (void)pthread_mutex_lock(&job.lock);
    }
    (void)pthread_mutex_unlock(&job.lock);
    comm->works = false;
    (void)pthread_join(thread, NULL);
    if (job.rc < 0)
        (void)tt_fail_key(job.rc, job.key, "%s", job.message);
out:
    (void)pthread_cond_destroy(&job.changed);
    (void)pthread_mutex_destroy(&job.lock);
    tt_free(job.message);
    return job.rc;
}

/*
 * --- small collectives ---
 *
 * They run along a binomial tree: with ranks counted from the root, rank r receives from the rank whose number is r
 * without its lowest set bit. They carry a few hundred bytes once a step, so only their latency matters: 2 log2(size)
 * messages in a row.
 */

static int send_control(struct tt_comm *comm, void *bytes, size_t size, int peer)
{
    struct tt_segment segment = {bytes, size};
    struct tt_request request = {{0}};
    int rc = 0;

    TT_TRY(tt_comm_give_way(comm, comm->ops->send_begin(comm, &segment, 1, peer, TT_TAG_CONTROL, &request)));
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

    TT_TRY(tt_comm_give_way(comm, comm->ops->recv_begin(comm, &segment, 1, peer, TT_TAG_CONTROL, &request)));
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

/* Combines the n 8-byte words of all ranks on rank 0 with `fold` and sends the result back. `received` must have room
 * for n words. */
static int all_reduce_words(struct tt_comm *comm, void *words, void *received, int n,
                            void (*fold)(void *into, const void *from, int n))
{
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

/* The same in several parts, for a buffer that is too small for all words. */
static int all_reduce_parts(struct tt_comm *comm, void *words, int n, void (*fold)(void *into, const void *from, int n))
{
    int64_t received[MOST_WORDS];
    int rc = 0;

    for (int i = 0; i < n && rc == 0; i += MOST_WORDS)
        rc = all_reduce_words(comm, (char *)words + (size_t)i * 8, received, n - i < MOST_WORDS ? n - i : MOST_WORDS,
                              fold);
    return rc;
}

int tt_comm_sum_i64(struct tt_comm *comm, int64_t *values, int n)
{
    return all_reduce_parts(comm, values, n, fold_sum);
}

int tt_comm_sum_at_once_i64(struct tt_comm *comm, int64_t *values, int64_t *room, int n)
{
    return all_reduce_words(comm, values, room, n, fold_sum);
}

int tt_comm_max_f64(struct tt_comm *comm, double *values, int n)
{
    return all_reduce_parts(comm, values, n, fold_max);
}

int tt_comm_barrier(struct tt_comm *comm)
{
    int64_t nothing = 0;

    return tt_comm_sum_i64(comm, &nothing, 1);
}

/* If no receive is open, a message that was sent but not received is still on its way. */
int tt_comm_check_messages(struct tt_comm *comm)
{
    int64_t count[3] = {comm->sent_messages, comm->begun_receives, comm->received_messages};
    int rc = 0;

    TT_TRY(tt_comm_sum_i64(comm, count, 3));
    if (count[0] != count[2] || count[1] != count[2])
        rc = tt_fail(TT_EINTERNAL, "%lld messages were sent and %lld received, and %lld receives are open",
                     (long long)count[0], (long long)count[2], (long long)(count[1] - count[2]));
out:
    return rc;
}

int tt_comm_agree(struct tt_comm *comm, int code)
{
    static _Thread_local char message[TT_ERROR_MESSAGE_BYTES];
    double urgency = code < 0 ? comm->size - comm->rank : 0; /* the lowest failing rank has the greatest value */
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

/* --- one rank, whose collectives send no messages, so that any transfer is a mistake of the caller --- */

static int refuse(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                  struct tt_request *ret_request)
{
    (void)comm;
    (void)segments;
    (void)ret_request;
    return tt_fail(TT_EINTERNAL, "message of %d segments to rank %d (tag %d) in a job of one rank", n, peer, tag);
}

static int self_test(struct tt_comm *comm, struct tt_request *request, bool *ret_done)
{
    (void)comm;
    (void)request;
    *ret_done = true;
    return 0;
}

static void self_release(struct tt_comm *comm)
{
    tt_free(comm);
}

static void self_stop(struct tt_comm *comm, int exit_code, const char *message)
{
    (void)comm;
    (void)fprintf(stderr, "%s\n", message);
    (void)fflush(NULL);
    _exit(exit_code);
}

static const struct tt_comm_ops self_ops = {
    .name = "self",
    .send_begin = refuse,
    .recv_begin = refuse,
    .test = self_test,
    .abort = self_stop,
    .free = self_release,
};

struct tt_comm *tt_comm_self_new(void)
{
    struct tt_comm *comm = tt_calloc(1, sizeof *comm);

    comm->ops = &self_ops;
    comm->size = 1;
    return comm;
}
