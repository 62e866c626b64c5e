/* SPDX-License-Identifier: MIT
 *
 * Waiting and the small collectives, written once over the point-to-point functions of struct tt_comm_ops.
 * Everything goes through rank 0 in two steps (gather, scatter): these carry a few hundred bytes once a step.
 */
#include "core/base/comm.h"

#include <stdio.h>
#include <string.h>

#include <sched.h>

#include "core/base/file.h"
#include "core/base/mem.h"

enum { CONTROL_TAG = 1 };

int tt_comm_wait(struct tt_comm *comm, struct tt_request *request, int peer)
{
    bool done = false;
    double start, now;
    int rc = comm->ops->test(comm, request, &done);

    if (rc < 0 || done)
        return rc;
    start = now = tt_clock_sec();
    while (!done) {
        if ((rc = comm->ops->test(comm, request, &done)) < 0)
            return rc;
        if (done)
            break;
        (void)sched_yield();
        now = tt_clock_sec();
        if (comm->timeout_sec > 0.0 && now - start > comm->timeout_sec)
            return tt_fail(TT_ECOMM,
                           "rank %d waited %.0f s for rank %d in '%s': that rank is dead, stopped or far behind\n"
                           "help: look at its log; comm.train_timeout_seconds sets how long to wait",
                           comm->rank, now - start, peer, comm->waiting_for ? comm->waiting_for : "start");
    }
    comm->wait_sec += tt_clock_sec() - start;
    return 0;
}

void tt_comm_free(struct tt_comm *comm)
{
    if (comm)
        comm->ops->free(comm);
}

static int send_control(struct tt_comm *comm, const void *bytes, size_t size, int peer)
{
    struct tt_segment segment = {(void *)(uintptr_t)bytes, size};
    struct tt_request request = {{0}};
    int rc = comm->ops->send_begin(comm, &segment, 1, peer, CONTROL_TAG, &request);

    comm->control_bytes += (int64_t)size;
    return rc < 0 ? rc : tt_comm_wait(comm, &request, peer);
}

static int receive_control(struct tt_comm *comm, void *bytes, size_t size, int peer)
{
    struct tt_segment segment = {bytes, size};
    struct tt_request request = {{0}};
    int rc = comm->ops->recv_begin(comm, &segment, 1, peer, CONTROL_TAG, &request);

    return rc < 0 ? rc : tt_comm_wait(comm, &request, peer);
}

int tt_comm_broadcast(struct tt_comm *comm, void *bytes, size_t size, int root)
{
    int rc = 0;

    if (comm->rank != root)
        return receive_control(comm, bytes, size, root);
    for (int peer = 0; peer < comm->size; peer++)
        if (peer != root)
            TT_TRY(send_control(comm, bytes, size, peer));
out:
    return rc;
}

int tt_comm_gather_all(struct tt_comm *comm, const void *bytes, size_t size, void *all)
{
    char *table = all;
    int rc = 0;

    memcpy(table + (size_t)comm->rank * size, bytes, size);
    if (comm->rank == 0) {
        for (int peer = 1; peer < comm->size; peer++)
            TT_TRY(receive_control(comm, table + (size_t)peer * size, size, peer));
    } else {
        TT_TRY(send_control(comm, bytes, size, 0));
    }
    rc = tt_comm_broadcast(comm, all, size * (size_t)comm->size, 0);
out:
    return rc;
}

/* Folds every rank's n 8-byte words on rank 0 with `fold` and sends the result back. */
static int all_reduce_words(struct tt_comm *comm, void *words, int n, void (*fold)(void *into, const void *from, int n))
{
    enum { MOST_WORDS = 256 };
    int64_t received[MOST_WORDS];
    int rc = 0;

    if (n > MOST_WORDS)
        return tt_fail(TT_EINTERNAL, "control reduction of %d words, at most %d", n, MOST_WORDS);
    if (comm->rank == 0) {
        for (int peer = 1; peer < comm->size; peer++) {
            TT_TRY(receive_control(comm, received, (size_t)n * 8, peer));
            fold(words, received, n);
        }
    } else {
        TT_TRY(send_control(comm, words, (size_t)n * 8, 0));
    }
    rc = tt_comm_broadcast(comm, words, (size_t)n * 8, 0);
out:
    return rc;
}

static void fold_sum(void *into, const void *from, int n)
{
    int64_t *a = into;
    const int64_t *b = from;

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
    return all_reduce_words(comm, values, n, fold_sum);
}

int tt_comm_max_f64(struct tt_comm *comm, double *values, int n)
{
    return all_reduce_words(comm, values, n, fold_max);
}

int tt_comm_barrier(struct tt_comm *comm)
{
    int64_t nothing = 0;

    return tt_comm_sum_i64(comm, &nothing, 1);
}

int tt_comm_agree(struct tt_comm *comm, int code)
{
    char message[4096];
    int64_t *codes = tt_calloc((size_t)comm->size, sizeof *codes);
    int64_t mine = code;
    int rc = 0, failed = -1;

    TT_TRY(tt_comm_gather_all(comm, &mine, sizeof mine, codes));
    for (int rank = 0; rank < comm->size && failed < 0; rank++)
        if (codes[rank] < 0)
            failed = rank;
    if (failed < 0)
        goto out;
    (void)snprintf(message, sizeof message, "%s", tt_error_message());
    TT_TRY(tt_comm_broadcast(comm, message, sizeof message, failed));
    rc = failed == 0 || comm->size == 1 ? tt_fail((int)codes[failed], "%s", message)
                                        : tt_fail((int)codes[failed], "rank %d: %s", failed, message);
out:
    tt_free(codes);
    return rc;
}
