/* SPDX-License-Identifier: MIT
 *
 * Whose memory this process can read, and reading it.
 */
#include "parallel/peer_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/mem.h"

enum { HOST_BYTES = 256 };

/* What a rank tells the others. */
struct card {
    char host[HOST_BYTES];
    int64_t pid;
    uint64_t address; /* of its own `number` */
    uint64_t number;  /* random: a process of another namespace with the same pid is found out */
};

struct tt_peer_memory {
    uint64_t number;
    int64_t *pids;
    bool *reachable;
};

int tt_peer_memory_read(const struct tt_peer_memory *memory, int peer, uint64_t address, void *into, size_t bytes)
{
    char *to = into;

    while (bytes > 0) {
        struct iovec here = {to, bytes};
        struct iovec there = {NULL, bytes};
        ssize_t n;

        memcpy(&there.iov_base, &address, sizeof address); /* an address of the peer, never used in this process */
        n = process_vm_readv((pid_t)memory->pids[peer], &here, 1, &there, 1, 0);
        if (n <= 0)
            return n < 0 ? errno : EFAULT;
        to += n;
        address += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

const bool *tt_peer_memory_reachable(const struct tt_peer_memory *memory)
{
    return memory->reachable;
}

void tt_peer_memory_free(struct tt_peer_memory *memory)
{
    if (!memory)
        return;
    tt_free(memory->pids);
    tt_free(memory->reachable);
    tt_free(memory);
}

static bool wanted(void)
{
    const char *text = getenv("TITAN_PEER_MEMORY");

    return !text || strcmp(text, "off") != 0;
}

static void write_card(struct tt_peer_memory *memory, struct card *card)
{
    if (getrandom(&memory->number, sizeof memory->number, 0) != (ssize_t)sizeof memory->number)
        memory->number = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)memory;
    (void)gethostname(card->host, HOST_BYTES - 1);
    card->pid = getpid();
    card->address = (uint64_t)(uintptr_t)&memory->number;
    card->number = memory->number;
}

/* Fills in pids and, as bytes 0 and 1, whose memory this rank can read. */
static void try_peers(struct tt_peer_memory *memory, const struct tt_comm *comm, const struct card *cards, char *can)
{
    const struct card *mine = &cards[comm->rank];

    for (int rank = 0; rank < comm->size; rank++) {
        uint64_t number = 0;

        memory->pids[rank] = cards[rank].pid;
        can[rank] = rank != comm->rank && wanted() && memcmp(cards[rank].host, mine->host, HOST_BYTES) == 0 &&
                    tt_peer_memory_read(memory, rank, cards[rank].address, &number, sizeof number) == 0 &&
                    number == cards[rank].number;
    }
}

int tt_peer_memory_new(struct tt_comm *comm, struct tt_peer_memory **ret_memory)
{
    size_t size = (size_t)comm->size;
    struct tt_peer_memory *memory = tt_calloc(1, sizeof *memory);
    struct card mine = {{0}, 0, 0, 0}, *cards = tt_calloc(size, sizeof *cards);
    char *can = tt_calloc(size, 1), *table = tt_calloc(size, size);
    int rc = 0;

    memory->pids = tt_calloc(size, sizeof *memory->pids);
    memory->reachable = tt_calloc(size, sizeof *memory->reachable);
    /* Where Yama guards processes (ptrace_scope 1): those that our own launcher started on this host may read us. */
    (void)prctl(PR_SET_PTRACER, (unsigned long)getppid(), 0, 0, 0);
    write_card(memory, &mine);
    TT_TRY(tt_comm_gather_all(comm, &mine, sizeof mine, cards)); /* so all have called prctl before anyone reads */
    try_peers(memory, comm, cards, can);
    TT_TRY(tt_comm_gather_all(comm, can, size, table));
    for (size_t rank = 0; rank < size; rank++)
        memory->reachable[rank] = can[rank] && table[rank * size + (size_t)comm->rank];
    *ret_memory = memory;
    memory = NULL;
out:
    tt_peer_memory_free(memory);
    tt_free(cards);
    tt_free(can);
    tt_free(table);
    return rc;
}
