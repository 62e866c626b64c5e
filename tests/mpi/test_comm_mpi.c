/* SPDX-License-Identifier: MIT
 *
 * The communicator cases over MPI, and how a job ends when ranks fail. Run by mpirun; prints one line on rank 0.
 *
 *   test_mpi_comm cases       all cases of tests/par/comm_cases.c. Large transfers read the other rank's memory, if the
 *                             kernel allows it; then all transfers do, then none
 *   test_mpi_comm reads       fails unless every rank can read every other one's memory
 *   test_mpi_comm together    fails unless all ranks are on one host
 *   test_mpi_comm apart       fails unless every rank is on a host of its own
 *   test_mpi_comm large       one message of more than 2^31 bytes
 *   test_mpi_comm size        a message shorter than its buffer
 *   test_mpi_comm sizes       a long message shorter than its buffer, which also has several parts
 *   test_mpi_comm silent      the last rank no longer answers; the others abort with exit code 4
 *   test_mpi_comm released    a message arrives for memory that its receiver has released after a failure
 *   test_mpi_comm stopped     the last rank stops in the middle of gathers that the others read from it; they abort
 *   test_mpi_comm killed      the last rank is killed there; mpirun or the other ranks end the job
 *   test_mpi_comm suspended   the last rank stops all others for longer than their timeout, while they wait
 *   test_mpi_comm flows       a long message shows progress before it is complete, and keeps its place in the order
 *   test_mpi_comm crosses     long messages cross each other under one tag, and one receiver is late
 *   test_mpi_comm launched    says whether a launcher is seen, without MPI
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "core/base/mem.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/mpi.h"
#include "tests/par/comm_cases.h"

static int run_cases(struct tt_comm *comm)
{
    const int64_t from[] = {comm->read_bytes, 1, 0};
    int rc = 0;

    for (size_t k = 0; k < sizeof from / sizeof *from; k++) {
        comm->read_bytes = from[k];
        for (int i = 0; i < comm_n_cases; i++)
            if ((rc = comm_case_run(&comm_cases[i], comm)) < 0)
                return tt_wrap(rc, "read from %lld bytes on", (long long)from[k]);
    }
    return rc;
}

static int run_reads(struct tt_comm *comm)
{
    int rc = 0;

    for (int rank = 0; rank < comm->size; rank++)
        COMM_EXPECT(comm->reachable[rank] == (rank != comm->rank));
out:
    return rc;
}

static int run_together(struct tt_comm *comm)
{
    int rc = 0, local_rank, local_size;

    tt_comm_node(comm, &local_rank, &local_size);
    COMM_EXPECT(local_rank == comm->rank && local_size == comm->size);
out:
    return rc;
}

static int run_apart(struct tt_comm *comm)
{
    int rc = 0, local_rank, local_size;

    tt_comm_node(comm, &local_rank, &local_size);
    COMM_EXPECT(local_rank == 0 && local_size == 1);
    for (int rank = 0; rank < comm->size; rank++)
        COMM_EXPECT(tt_comm_host_leader(comm, rank) == rank && !comm->reachable[rank]);
out:
    return rc;
}

static int run_large(struct tt_comm *comm)
{
    const size_t half = ((size_t)1 << 30) + 4096 + 7, size = 2 * half;
    char *bytes = tt_map(size);
    struct tt_segment segments[2] = {{bytes, half}, {bytes + half, half}};
    struct tt_request request = {{0}};
    int rc = 0;

    COMM_EXPECT(comm->size == 2 && bytes);
    if (comm->rank == 0) {
        bytes[0] = 1;
        bytes[size / 3] = 2;
        bytes[size - 1] = 3;
        segments[0].bytes = size; /* one segment on this rank, two on the other */
        TT_TRY(comm->ops->send_begin(comm, segments, 1, 1, 20, &request));
    } else {
        TT_TRY(comm->ops->recv_begin(comm, segments, 2, 0, 20, &request));
    }
    TT_TRY(tt_comm_wait(comm, &request, 1 - comm->rank));
    COMM_EXPECT(bytes[0] == 1 && bytes[size / 3] == 2 && bytes[size - 1] == 3);
out:
    if (bytes)
        tt_unmap(bytes, size);
    return rc;
}

static int expect_other_size(struct tt_comm *comm, size_t sent, size_t expected)
{
    char *bytes = tt_calloc(expected, 1);
    struct tt_segment segment = {bytes, comm->rank == 0 ? sent : expected};
    struct tt_request request = {{0}};
    int rc = 0;

    if (comm->rank == 0)
        TT_TRY(comm->ops->send_begin(comm, &segment, 1, 1, 20, &request));
    else
        TT_TRY(comm->ops->recv_begin(comm, &segment, 1, 0, 20, &request));
    TT_TRY(tt_comm_wait(comm, &request, 1 - comm->rank));
    if (comm->rank == 0)
        rc = tt_comm_barrier(comm); /* waits until rank 1 ends the job */
out:
    tt_free(bytes);
    return rc;
}

static int run_size(struct tt_comm *comm)
{
    return expect_other_size(comm, 7, 8);
}

static int run_sizes(struct tt_comm *comm)
{
    comm->timeout_sec = 20.0;
    return expect_other_size(comm, 3 << 20, 4 << 20);
}

static int run_silent(struct tt_comm *comm)
{
    comm->timeout_sec = 1.0;
    comm->waiting_for = "unshard layers.3";
    if (comm->rank == comm->size - 1)
        for (;;)
            (void)kill(getpid(), SIGSTOP);
    return tt_comm_barrier(comm);
}

struct until {
    struct tt_comm *comm;
    struct tt_request *request;
    double end; /* tt_comm_clock */
};

static int poll_until(void *arg, bool *ret_done, int *ret_peer)
{
    struct until *until = arg;
    int rc = until->comm->ops->test(until->comm, until->request, ret_done);

    *ret_peer = 2;
    *ret_done = *ret_done || tt_comm_clock(until->comm) >= until->end;
    return rc;
}

/*
 * Rank 1 stops. Rank 2 gives up, releases the memory of a receive under way, says so and aborts. Rank 0 then sends the
 * message. Rank 0 also sends it if rank 2 says nothing, since rank 2 may wait for rank 0 to end the job before it
 * releases the memory.
 */
static int run_released(struct tt_comm *comm)
{
    enum { BYTES = 2048, TAG = 20, RELEASED_TAG }; /* MPI copies such a short message itself, without the kernel */
    char *bytes = tt_map(BYTES), byte = 0;
    struct tt_segment segment = {bytes, BYTES}, told = {&byte, 1};
    struct tt_request message = {{0}}, released = {{0}};
    struct until until = {comm, &released, tt_comm_clock(comm) + 4.0};
    int rc = 0;

    COMM_EXPECT(comm->size == 3 && bytes);
    comm->timeout_sec = comm->rank == 0 ? 100.0 : 1.0;
    if (comm->rank == 1)
        for (;;)
            (void)kill(getpid(), SIGSTOP);
    if (comm->rank == 0) {
        TT_TRY(comm->ops->recv_begin(comm, &told, 1, 2, RELEASED_TAG, &released));
        TT_TRY(tt_comm_wait_until(comm, poll_until, &until));
        TT_TRY(comm->ops->send_begin(comm, &segment, 1, 2, TAG, &message));
        TT_TRY(tt_comm_wait(comm, &message, 2));
        comm->timeout_sec = 1.0;
    } else {
        TT_TRY(comm->ops->recv_begin(comm, &segment, 1, 0, TAG, &message));
    }
    comm->waiting_for = "unshard layers.3";
    rc = tt_comm_barrier(comm);
out:
    if (bytes)
        tt_unmap(bytes, BYTES);
    if (comm->rank == 2 && comm->ops->send_begin(comm, &told, 1, 0, RELEASED_TAG, &released) < 0)
        rc = TT_EINTERNAL;
    return rc;
}

/* Gathers 1 MiB repeatedly. After ten rounds the last rank sends itself a signal. */
static int gather_until(struct tt_comm *comm, int signal)
{
    enum { SHARD = 1 << 20 };
    struct tt_group group = {comm->size, comm->rank, tt_calloc((size_t)comm->size, sizeof(int))};
    struct tt_segment *items = tt_calloc((size_t)comm->size, sizeof *items);
    struct tt_segment_list *lists = tt_calloc((size_t)comm->size, sizeof *lists);
    char *whole = tt_calloc((size_t)comm->size, SHARD);
    struct tt_collective *gather = NULL;
    int rc = 0;

    comm->timeout_sec = signal == SIGSTOP ? 1.0 : 100.0; /* the launcher notices one that is killed */
    comm->waiting_for = "unshard layers.3";
    for (int member = 0; member < comm->size; member++) {
        group.ranks[member] = member;
        items[member] = (struct tt_segment){whole + (size_t)member * SHARD, SHARD};
        lists[member] = (struct tt_segment_list){&items[member], 1};
    }
    TT_TRY(tt_all_gather_new(comm, &group, TT_TAG_COLLECTIVE, lists[comm->rank], lists, &gather));
    for (int round = 0;; round++) {
        TT_TRY(tt_collective_begin(gather));
        if (round == 10 && comm->rank == comm->size - 1)
            (void)kill(getpid(), signal);
        TT_TRY(tt_collective_wait(gather));
    }
out:
    tt_collective_free(gather);
    tt_group_release(&group);
    tt_free(items);
    tt_free(lists);
    tt_free(whole);
    return rc;
}

static int run_stopped(struct tt_comm *comm)
{
    return gather_until(comm, SIGSTOP);
}

static int run_killed(struct tt_comm *comm)
{
    return gather_until(comm, SIGKILL);
}

static int run_suspended(struct tt_comm *comm)
{
    enum { TIMEOUT_SEC = 3 };
    int64_t pid = getpid(), *pids = tt_calloc((size_t)comm->size, sizeof *pids);
    bool all_stopped = true;
    int rc = 0;

    comm->timeout_sec = 100.0;
    TT_TRY(tt_comm_gather_all(comm, &pid, sizeof pid, pids));
    comm->timeout_sec = TIMEOUT_SEC;
    if (comm->rank == comm->size - 1) {
        (void)usleep(200000); /* so that the others are already waiting; the result does not depend on it */
        for (int rank = 0; rank < comm->size - 1; rank++)
            all_stopped = kill((pid_t)pids[rank], SIGSTOP) == 0 && all_stopped;
        (void)sleep(TIMEOUT_SEC + 2);
        for (int rank = 0; rank < comm->size - 1; rank++)
            (void)kill((pid_t)pids[rank], SIGCONT);
    }
    COMM_EXPECT(all_stopped);
    rc = tt_comm_barrier(comm);
out:
    tt_free(pids);
    return rc;
}

/* A long message, then a short one under the same tag. The receiver counts how often it sees something arrive. */
static int run_flows(struct tt_comm *comm)
{
    enum { LONG = 64 << 20, TAG = 20 };
    char *bytes = tt_calloc(LONG, 1), byte = 0;
    struct tt_segment segments[2] = {{bytes, LONG / 3}, {bytes + LONG / 3, LONG - LONG / 3}}, last = {&byte, 1};
    struct tt_request requests[2] = {{{0}}, {{0}}};
    int64_t seen = comm->progress, changes = 0;
    bool done = false;
    int rc = 0;

    comm->timeout_sec = 100.0;
    if (comm->rank == 0) {
        memset(bytes, 7, LONG);
        byte = 9;
        TT_TRY(comm->ops->send_begin(comm, segments, 2, 1, TAG, &requests[0]));
        TT_TRY(comm->ops->send_begin(comm, &last, 1, 1, TAG, &requests[1]));
    } else {
        TT_TRY(comm->ops->recv_begin(comm, segments, 2, 0, TAG, &requests[0]));
        TT_TRY(comm->ops->recv_begin(comm, &last, 1, 0, TAG, &requests[1]));
        while (!done) {
            TT_TRY(comm->ops->advance(comm));
            TT_TRY(comm->ops->test(comm, &requests[0], &done));
            changes += comm->progress != seen && !done;
            seen = comm->progress;
        }
        COMM_EXPECT(changes >= 4);
    }
    TT_TRY(tt_comm_wait(comm, &requests[0], 1 - comm->rank));
    TT_TRY(tt_comm_wait(comm, &requests[1], 1 - comm->rank));
    COMM_EXPECT(bytes[0] == 7 && bytes[LONG / 2] == 7 && bytes[LONG - 1] == 7 && byte == 9);
out:
    tt_free(bytes);
    return rc;
}

/* Two long messages each way at once, all under one tag. Each rank posts its receives after its sends, and rank 1 posts
 * them late. */
static int run_crosses(struct tt_comm *comm)
{
    enum { LONG = (5 << 20) + 3, TAG = 20, N = 2 };
    int peer = 1 - comm->rank, rc = 0;
    char *out[N], *in[N];
    struct tt_request requests[2 * N] = {{{0}}};

    for (int i = 0; i < N; i++) {
        out[i] = tt_calloc(LONG, 1);
        in[i] = tt_calloc(LONG, 1);
        memset(out[i], 1 + 2 * comm->rank + i, LONG);
    }
    comm->timeout_sec = 100.0;
    for (int i = 0; i < N; i++) {
        struct tt_segment segment = {out[i], LONG};

        TT_TRY(comm->ops->send_begin(comm, &segment, 1, peer, TAG, &requests[i]));
    }
    for (int i = 0; comm->rank == 1 && i < 20; i++) {
        (void)usleep(10000);
        TT_TRY(comm->ops->advance(comm));
    }
    for (int i = 0; i < N; i++) {
        struct tt_segment segment = {in[i], LONG};

        TT_TRY(comm->ops->recv_begin(comm, &segment, 1, peer, TAG, &requests[N + i]));
    }
    for (int i = 0; i < 2 * N; i++)
        TT_TRY(tt_comm_wait(comm, &requests[i], peer));
    for (int i = 0; i < N; i++)
        COMM_EXPECT(in[i][0] == 1 + 2 * peer + i && memcmp(in[i], in[i] + 1, LONG - 1) == 0);
out:
    for (int i = 0; i < N; i++) {
        tt_free(out[i]);
        tt_free(in[i]);
    }
    return rc;
}

static const struct {
    const char *name;
    int (*run)(struct tt_comm *comm);
} modes[] = {{"cases", run_cases},         {"large", run_large},    {"size", run_size},         {"sizes", run_sizes},
             {"silent", run_silent},       {"reads", run_reads},    {"stopped", run_stopped},   {"killed", run_killed},
             {"suspended", run_suspended}, {"flows", run_flows},    {"together", run_together}, {"apart", run_apart},
             {"released", run_released},   {"crosses", run_crosses}};

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : "cases";
    struct tt_comm *comm = NULL;
    char message[TT_ERROR_MESSAGE_BYTES];
    int rc = 0;

    if (strcmp(wanted, "launched") == 0) {
        (void)printf("launched: %s\n", tt_comm_mpi_launched() ? "yes" : "no");
        return 0;
    }
    if ((rc = tt_comm_mpi_new(300.0, &comm)) < 0) {
        (void)fprintf(stderr, "error: %s\n", tt_error_message());
        return tt_error_exit_code(rc);
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, wanted) == 0)
            rc = modes[i].run(comm);
    if (rc < 0) {
        (void)snprintf(message, sizeof message, "error: %s", tt_error_message());
        tt_comm_abort(comm, tt_error_exit_code(rc), message);
    }
    if (comm->rank == 0)
        (void)printf("%s passed on %d ranks\n", wanted, comm->size);
    tt_comm_free(comm);
    return 0;
}
