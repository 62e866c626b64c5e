/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_PEER_MEMORY_H
#define TT_PARALLEL_COMM_PEER_MEMORY_H

#include "core/comm/comm.h"

/**
 * Reads the memory of other processes on this host by process_vm_readv. This takes a single copy, needs no shared
 * mapping, leaves no files, and reaches any memory of the peer. If the kernel refuses (seccomp, ptrace_scope, separate
 * process namespaces), no rank is reachable, and data travels in messages instead.
 */
struct tt_peer_memory {
    bool *reachable;    /* [comm->size] */
    const char **hosts; /* [comm->size] the name of each rank's host: one of names */
    char **names;       /* each host once */
    int n_names, cap_names;
    int64_t *pids;
    uint64_t number; /* random number for the other ranks to read */
};

/**
 * Collective over comm: ranks of the same host try to read a random number from each other's memory. reachable[r] is
 * true if both sides can, so both sides agree. The environment variable TITAN_PEER_MEMORY=off makes no rank
 * reachable.
 */
int tt_peer_memory_new(struct tt_comm *comm, struct tt_peer_memory **ret_memory) TT_MUST_CHECK;
void tt_peer_memory_free(struct tt_peer_memory *memory);

/**
 * Copies bytes at an address of a reachable rank. Any thread may call it. Returns 0 or an errno, and sets no message.
 */
int tt_peer_memory_read(const struct tt_peer_memory *memory, int peer, uint64_t address, void *into, size_t bytes);

#endif
