/* SPDX-License-Identifier: MIT
 *
 * Finds the ranks whose memory this process can read, and reads it.
 */
#include "parallel/comm/peer_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/mem.h"

enum { HOST_BYTES = 256 };

/* A rank's message to the others. */
struct card {
    char host[HOST_BYTES]; /* for messages */
    int64_t pid;
    uint64_t address; /* address of `number` in its own memory */
    uint64_t number;  /* random; detects a process with the same pid in another namespace */
};

int tt_peer_memory_read(const struct tt_peer_memory *memory, int peer, uint64_t address, void *into, size_t bytes)
{
    char *to = into;

    while (bytes > 0) {
        struct iovec here = {to, bytes};
        struct iovec there = {NULL, bytes};
        ssize_t n;

        memcpy(&there.iov_base, &address, sizeof address); /* the peer's address; not dereferenced here */
        n = process_vm_readv((pid_t)memory->pids[peer], &here, 1, &there, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EFAULT;
        to += n;
        address += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

void tt_peer_memory_free(struct tt_peer_memory *memory)
{
    if (!memory)
        return;
    for (int i = 0; i < memory->n_names; i++)
        tt_free(memory->names[i]);
    tt_free(memory->names);
    tt_free((void *)memory->hosts);
    tt_free(memory->pids);
    tt_free(memory->reachable);
    tt_free(memory);
}

/* Launchers number the ranks of a host consecutively, so a rank's host usually has the same name as the previous
 * rank's. */
static void intern_hosts(struct tt_peer_memory *memory, const struct card *cards, int n)
{
    memory->hosts = tt_calloc((size_t)n, sizeof *memory->hosts);
    for (int rank = 0; rank < n; rank++) {
        int i = memory->n_names - 1;

        while (i >= 0 && strcmp(memory->names[i], cards[rank].host) != 0)
            i--;
        if (i < 0) {
            TT_PUSH(memory->names, memory->n_names, memory->cap_names) = tt_strdup(cards[rank].host);
            i = memory->n_names - 1;
        }
        memory->hosts[rank] = memory->names[i];
    }
}

/* Any two ranks of a host tell each other whether they can read. Ranks on other hosts do not take part. */
static int compare(struct tt_comm *comm, char *can, bool *reachable)
{
    struct tt_request *requests = tt_calloc(2 * (size_t)comm->size, sizeof *requests);
    char *theirs = tt_calloc((size_t)comm->size, 1);
    int rc = 0;

    for (int rank = 0; rank < comm->size; rank++) {
        struct tt_segment in = {&theirs[rank], 1}, out = {&can[rank], 1};

        if (rank == comm->rank || !tt_comm_same_host(comm, rank, comm->rank))
            continue;
        TT_TRY(comm->ops->recv_begin(comm, &in, 1, rank, TT_TAG_COMPARE, &requests[2 * (size_t)rank]));
        TT_TRY(comm->ops->send_begin(comm, &out, 1, rank, TT_TAG_COMPARE, &requests[2 * (size_t)rank + 1]));
    }
    for (int rank = 0; rank < comm->size; rank++) {
        TT_TRY(tt_comm_wait(comm, &requests[2 * (size_t)rank], rank));
        TT_TRY(tt_comm_wait(comm, &requests[2 * (size_t)rank + 1], rank));
        reachable[rank] = can[rank] && theirs[rank];
    }
out:
    tt_free(requests);
    tt_free(theirs);
    return rc;
}

int tt_peer_memory_new(struct tt_comm *comm, struct tt_peer_memory **ret_memory)
{
    size_t size = (size_t)comm->size;
    struct tt_peer_memory *memory = tt_calloc(1, sizeof *memory);
    struct card mine = {{0}, 0, 0, 0}, *cards = tt_calloc(size, sizeof *cards);
    char *can = tt_calloc(size, 1); /* [rank] whether this rank can read that rank's memory, 0 or 1 */
    const char *text = getenv("TITAN_PEER_MEMORY");
    bool wanted = !text || strcmp(text, "off") != 0;
    int rc = 0;

    memory->pids = tt_calloc(size, sizeof *memory->pids);
    memory->reachable = tt_calloc(size, sizeof *memory->reachable);
    /* If Yama restricts processes (ptrace_scope 1), let the launcher's other processes on this host read this one. */
    (void)prctl(PR_SET_PTRACER, (unsigned long)getppid(), 0, 0, 0);
    if (getrandom(&memory->number, sizeof memory->number, 0) != (ssize_t)sizeof memory->number)
        memory->number = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)memory;
    (void)gethostname(mine.host, HOST_BYTES - 1);
    mine.pid = getpid();
    mine.address = (uint64_t)(uintptr_t)&memory->number;
    mine.number = memory->number;
    TT_TRY(tt_comm_gather_all(comm, &mine, sizeof mine, cards)); /* all ranks call prctl before any of them reads */
    for (int rank = 0; rank < comm->size; rank++) {
        uint64_t number = 0;

        memory->pids[rank] = cards[rank].pid;
        can[rank] = rank != comm->rank && wanted && tt_comm_same_host(comm, rank, comm->rank) &&
                    tt_peer_memory_read(memory, rank, cards[rank].address, &number, sizeof number) == 0 &&
                    number == cards[rank].number;
    }
    TT_TRY(compare(comm, can, memory->reachable));
    intern_hosts(memory, cards, comm->size);
    *ret_memory = memory;
    memory = NULL;
out:
    tt_peer_memory_free(memory);
    tt_free(cards);
    tt_free(can);
    return rc;
}
