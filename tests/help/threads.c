/* SPDX-License-Identifier: MIT
 *
 * Ranks are threads. A message is copied once, directly from the sender's segments to the receiver's, by whichever side
 * comes second.
 *
 * A transfer lives in a pool of its rank. While it waits for its counterpart it is in the list of the receiving rank,
 * in the order of posting, under the world's lock: that gives first-in-first-out by (source, destination, tag).
 * Its state then only moves POSTED -> COPYING (under the lock) -> DONE (by the thread that copied).
 */
#include "tests/help/threads.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/comm/comm.h"

enum transfer_state { POSTED, COPYING, DONE };

struct transfer {
    struct tt_segment *segments;
    int n, cap;
    size_t bytes;
    bool send;
    int rank, peer, tag;
    atomic_int state;
    size_t peer_bytes;     /* valid once DONE */
    struct transfer *next; /* in the list of the receiving rank, or of free transfers */
};

struct rank {
    struct tt_comm comm;
    struct world *world;
    struct transfer **pool; /* transfers are allocated once and reused */
    int n_pool, cap_pool;
    struct transfer *unused;
    struct transfer *waiting; /* this rank's receives, and sends to it, that have no counterpart yet */
    atomic_bool left;
    pthread_rwlock_t memory; /* read lock: others read this rank's memory; write lock: this rank leaves */
    int (*fn)(struct tt_comm *comm, void *arg);
    void *arg;
};

struct world {
    pthread_mutex_t lock;
    struct rank *ranks;
    int size;
    bool *reachable; /* [size] all true */
    atomic_bool aborted;
    int aborted_by;
    int rc; /* the code of the rank that failed first */
    char message[TT_ERROR_MESSAGE_BYTES];
};

static struct transfer *transfer_new(struct rank *me, const struct tt_segment *segments, int n, int tag)
{
    struct transfer *t = me->unused;

    if (t) {
        me->unused = t->next;
    } else {
        t = tt_calloc(1, sizeof *t);
        TT_PUSH(me->pool, me->n_pool, me->cap_pool) = t;
    }
    if (n > t->cap) {
        t->segments = tt_realloc(t->segments, (size_t)n, sizeof *t->segments);
        t->cap = n;
    }
    t->n = n;
    t->bytes = 0;
    for (int i = 0; i < n; i++) {
        t->segments[i] = segments[i];
        t->bytes += segments[i].bytes;
    }
    t->rank = me->comm.rank;
    t->tag = tag;
    t->next = NULL;
    atomic_store_explicit(&t->state, POSTED, memory_order_relaxed);
    return t;
}

static void transfer_drop(struct rank *me, struct transfer *t)
{
    t->next = me->unused;
    me->unused = t;
}

/* Removes the oldest counterpart of t from the receiver's list, or appends t to it. The caller holds the lock. */
static struct transfer *match(struct world *world, struct transfer *t)
{
    struct transfer **link = &world->ranks[t->send ? t->peer : t->rank].waiting;

    for (; *link; link = &(*link)->next) {
        struct transfer *other = *link;

        if (other->send != t->send && other->rank == t->peer && other->peer == t->rank && other->tag == t->tag) {
            *link = other->next;
            atomic_store_explicit(&other->state, COPYING, memory_order_relaxed);
            return other;
        }
    }
    *link = t;
    return NULL;
}

static void copy_segments(const struct transfer *to, const struct transfer *from)
{
    int i = 0, j = 0;
    size_t done_i = 0, done_j = 0;

    while (i < to->n && j < from->n) {
        size_t left_i = to->segments[i].bytes - done_i, left_j = from->segments[j].bytes - done_j;
        size_t bytes = left_i < left_j ? left_i : left_j;

        if (bytes)
            memcpy((char *)to->segments[i].data + done_i, (const char *)from->segments[j].data + done_j, bytes);
        done_i += bytes;
        done_j += bytes;
        if (done_i == to->segments[i].bytes) {
            i++;
            done_i = 0;
        }
        if (done_j == from->segments[j].bytes) {
            j++;
            done_j = 0;
        }
    }
}

static int begin(struct tt_comm *comm, bool send, const struct tt_segment *segments, int n, int peer, int tag,
                 struct tt_request *ret_request)
{
    struct rank *me = (struct rank *)comm;
    struct transfer *t, *other;

    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return tt_fail(TT_EINTERNAL, "rank %d of %d: message to or from rank %d", comm->rank, comm->size, peer);
    t = transfer_new(me, segments, n, tag);
    t->send = send;
    t->peer = peer;
    if (tag != TT_TAG_PULSE) {
        comm->sent_messages += send;
        comm->begun_receives += !send;
    }
    (void)pthread_mutex_lock(&me->world->lock);
    other = match(me->world, t);
    (void)pthread_mutex_unlock(&me->world->lock);
    if (other) {
        if (t->bytes == other->bytes)
            copy_segments(send ? other : t, send ? t : other);
        t->peer_bytes = other->bytes;
        other->peer_bytes = t->bytes;
        atomic_store_explicit(&other->state, DONE, memory_order_release);
        atomic_store_explicit(&t->state, DONE, memory_order_relaxed);
    }
    ret_request->state[0] = (uintptr_t)t;
    return 0;
}

static int send_begin(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request)
{
    return begin(comm, true, segments, n, peer, tag, ret_request);
}

static int recv_begin(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request)
{
    return begin(comm, false, segments, n, peer, tag, ret_request);
}

/* Why a transfer that is still posted can never complete; 0 if it still can. */
static int hopeless(const struct rank *me, struct transfer *t)
{
    struct world *world = me->world;

    if (atomic_load_explicit(&world->aborted, memory_order_acquire))
        return tt_fail(TT_ECOMM, "rank %d: rank %d ended the job", me->comm.rank, world->aborted_by);
    /* Read `left` before the state: a peer that found the counterpart did so before it left. */
    if (atomic_load_explicit(&world->ranks[t->peer].left, memory_order_acquire) &&
        atomic_load_explicit(&t->state, memory_order_acquire) == POSTED)
        return tt_fail(TT_ECOMM, "rank %d: rank %d has left the job (%s of %zu bytes, tag %d, in '%s')", me->comm.rank,
                       t->peer, t->send ? "send" : "receive", t->bytes, t->tag,
                       me->comm.waiting_for ? me->comm.waiting_for : "start");
    return 0;
}

static int test(struct tt_comm *comm, struct tt_request *request, bool *ret_done)
{
    struct rank *me = (struct rank *)comm;
    struct transfer *t = (struct transfer *)request->state[0];
    size_t sent, received;
    int rc = 0;

    *ret_done = true;
    if (!t)
        return 0;
    if (atomic_load_explicit(&t->state, memory_order_acquire) != DONE) {
        *ret_done = false;
        return hopeless(me, t);
    }
    sent = t->send ? t->bytes : t->peer_bytes;
    received = t->send ? t->peer_bytes : t->bytes;
    if (sent != received)
        rc = tt_fail(TT_EINTERNAL, "rank %d: message %s rank %d, tag %d: %zu bytes sent, %zu expected", comm->rank,
                     t->send ? "to" : "from", t->peer, t->tag, sent, received);
    if (t->tag != TT_TAG_PULSE) {
        comm->progress++;
        comm->received_messages += !t->send;
    }
    request->state[0] = 0;
    transfer_drop(me, t);
    return rc;
}

static int read_peer(struct tt_comm *comm, int peer, uint64_t address, void *into, size_t bytes)
{
    struct rank *other = &((struct rank *)comm)->world->ranks[peer];
    const void *from = (const void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr): that is what was offered
    int error = 0;

    (void)pthread_rwlock_rdlock(&other->memory);
    if (atomic_load_explicit(&other->left, memory_order_acquire))
        error = ESRCH;
    else
        memcpy(into, from, bytes);
    (void)pthread_rwlock_unlock(&other->memory);
    return error;
}

/* Keeps the first failure as the result of the run. The caller holds the lock. */
static void note_failure(struct world *world, int rc, const char *message)
{
    if (rc >= 0 || world->rc < 0)
        return;
    world->rc = rc;
    (void)snprintf(world->message, sizeof world->message, "%s", message);
}

/* Withdraws this rank's transfers without a counterpart, so that no other rank touches memory that will be freed. */
static void leave(struct rank *me, int rc, const char *message)
{
    struct world *world = me->world;

    (void)pthread_mutex_lock(&world->lock);
    for (int r = 0; r < world->size; r++) {
        struct transfer **link = &world->ranks[r].waiting;

        while (*link)
            if ((*link)->rank == me->comm.rank)
                *link = (*link)->next;
            else
                link = &(*link)->next;
    }
    note_failure(world, rc, message);
    (void)pthread_mutex_unlock(&world->lock);
    for (int i = 0; i < me->n_pool; i++)
        while (atomic_load_explicit(&me->pool[i]->state, memory_order_acquire) == COPYING)
            (void)sched_yield();
    (void)pthread_rwlock_wrlock(&me->memory);
    atomic_store_explicit(&me->left, true, memory_order_release);
    (void)pthread_rwlock_unlock(&me->memory);
}

static int code_of_exit(int exit_code)
{
#define X(name, value, exit, text) \
    if (exit_code == (exit))       \
        return name;
    TT_ERROR_MAP(X)
#undef X
    return TT_EINTERNAL;
}

static void stop(struct tt_comm *comm, int exit_code, const char *message)
{
    struct rank *me = (struct rank *)comm;

    (void)pthread_mutex_lock(&me->world->lock);
    if (!atomic_load_explicit(&me->world->aborted, memory_order_relaxed)) {
        me->world->aborted_by = comm->rank;
        (void)fprintf(stderr, "%s\n", message);
    }
    note_failure(me->world, code_of_exit(exit_code), message);
    atomic_store_explicit(&me->world->aborted, true, memory_order_release);
    (void)pthread_mutex_unlock(&me->world->lock);
    leave(me, 0, NULL);
    pthread_exit(NULL);
}

/* The world owns the communicators. */
static void nothing_to_free(struct tt_comm *comm)
{
    (void)comm;
}

static const struct tt_comm_ops threads_ops = {
    .name = "threads",
    .send_begin = send_begin,
    .recv_begin = recv_begin,
    .test = test,
    .read = read_peer,
    .abort = stop,
    .free = nothing_to_free,
};

static void *run_rank(void *arg)
{
    struct rank *me = arg;
    int rc = me->fn(&me->comm, me->arg);

    leave(me, rc, tt_error_message());
    return NULL;
}

static void world_release(struct world *world)
{
    for (int r = 0; r < world->size; r++) {
        struct rank *me = &world->ranks[r];

        for (int i = 0; i < me->n_pool; i++) {
            tt_free(me->pool[i]->segments);
            tt_free(me->pool[i]);
        }
        tt_free(me->pool);
        tt_free(me->comm.pulse);
        tt_free(me->comm.failure);
        (void)pthread_rwlock_destroy(&me->memory);
    }
    tt_free(world->ranks);
    tt_free(world->reachable);
    (void)pthread_mutex_destroy(&world->lock);
    tt_free(world);
}

int tt_comm_threads_run(int size, int (*fn)(struct tt_comm *comm, void *arg), void *arg)
{
    struct world *world = tt_calloc(1, sizeof *world);
    pthread_t *threads = tt_calloc((size_t)size, sizeof *threads);
    int started = 0, rc;

    world->ranks = tt_calloc((size_t)size, sizeof *world->ranks);
    world->size = size;
    world->reachable = tt_calloc((size_t)size, 1);
    memset(world->reachable, true, (size_t)size);
    (void)pthread_mutex_init(&world->lock, NULL);
    for (int r = 0; r < size; r++) {
        struct rank *me = &world->ranks[r];

        me->comm = (struct tt_comm){
            .ops = &threads_ops, .rank = r, .size = size, .timeout_sec = 100.0, .reachable = world->reachable};
        (void)pthread_rwlock_init(&me->memory, NULL);
        me->world = world;
        me->fn = fn;
        me->arg = arg;
    }
    while (started < size && pthread_create(&threads[started], NULL, run_rank, &world->ranks[started]) == 0)
        started++;
    for (int r = started; r < size; r++)
        leave(&world->ranks[r], TT_EINTERNAL, "cannot start a thread for every rank");
    for (int r = 0; r < started; r++)
        (void)pthread_join(threads[r], NULL);
    rc = world->rc;
    if (rc < 0)
        (void)tt_fail(rc, "%s", world->message);
    tt_free(threads);
    world_release(world);
    return rc;
}
