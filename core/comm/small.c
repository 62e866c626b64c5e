/* SPDX-License-Identifier: MIT
 *
 * The small collectives, over the point-to-point functions of struct tt_comm_ops.
 *
 * They run along a binomial tree: counted from the root, rank r receives from r without its lowest set bit. They carry
 * a few hundred bytes once a step, so latency (2 log2 size messages in a row) is all that matters.
 */
#include <stdio.h>
#include <string.h>

#include "core/comm/comm.h"
#include "core/comm/wait.h"

static int send_control(struct tt_comm *comm, const void *bytes, size_t size, int peer)
{
    struct tt_segment segment = {NULL, size};
    struct tt_request request = {{0}};
    int rc = 0;

    memcpy(&segment.data, &bytes, sizeof bytes); /* segments are not const; sending only reads */
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

/* Combines every rank's n 8-byte words on rank 0 with `fold` and sends the result back. `received` has room for n. */
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

int tt_comm_sum_i64(struct tt_comm *comm, int64_t *values, int n)
{
    int64_t received[MOST_WORDS];
    int rc = 0;

    for (int i = 0; i < n; i += MOST_WORDS)
        TT_TRY(all_reduce_words(comm, values + i, received, n - i < MOST_WORDS ? n - i : MOST_WORDS, fold_sum));
out:
    return rc;
}

int tt_comm_sum_at_once_i64(struct tt_comm *comm, int64_t *values, int64_t *room, int n)
{
    return all_reduce_words(comm, values, room, n, fold_sum);
}

int tt_comm_max_f64(struct tt_comm *comm, double *values, int n)
{
    int64_t received[MOST_WORDS];
    int rc = 0;

    for (int i = 0; i < n; i += MOST_WORDS)
        TT_TRY(all_reduce_words(comm, values + i, received, n - i < MOST_WORDS ? n - i : MOST_WORDS, fold_max));
out:
    return rc;
}

int tt_comm_barrier(struct tt_comm *comm)
{
    int64_t nothing = 0;

    return tt_comm_sum_i64(comm, &nothing, 1);
}

/* If no receive is open, what was sent and not received is still somewhere. */
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
    double urgency = code < 0 ? comm->size - comm->rank : 0; /* greatest for the lowest failing rank */
    int64_t fault[3] = {code, 0, (int64_t)tt_error_key()};   /* code, bytes of the message, key */
    int rc = 0, failed;

    if (code == TT_ECOMM) {
        tt_comm_keep_failure(comm);
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
