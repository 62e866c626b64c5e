/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_PEER_MEMORY_H
#define TT_PARALLEL_COMM_PEER_MEMORY_H

#include "core/comm/comm.h"

/**
 * The memory of the other processes on this host, read by the kernel's process_vm_readv: one copy, no shared mapping,
 * nothing that could be left behind, any memory of the peer. Where the kernel refuses (seccomp, ptrace_scope, separate
 * process namespaces) nobody is reachable and messages do the work.
 */
struct tt_peer_memory;

/**
 * Collective over comm: ranks of one host name try to read a number that the others made up. reachable[r] is true where
 * both sides can, so it is the same seen from there. Memory and messages grow with the ranks of the job and with those
 * of the host, not with pairs of ranks. The environment variable TITAN_PEER_MEMORY=off makes nobody
 * reachable.
 */
int tt_peer_memory_new(struct tt_comm *comm, struct tt_peer_memory **ret_memory) TT_MUST_CHECK;
void tt_peer_memory_free(struct tt_peer_memory *memory);

/** [comm->size]; owned by memory. */
const bool *tt_peer_memory_reachable(const struct tt_peer_memory *memory);

/** [comm->size] the name of each rank's host; owned by memory. */
const char *const *tt_peer_memory_hosts(const struct tt_peer_memory *memory);

/** Copies bytes at an address of a reachable rank. Any thread may call it. Returns 0 or an errno; sets no message. */
int tt_peer_memory_read(const struct tt_peer_memory *memory, int peer, uint64_t address, void *into, size_t bytes);

#endif
