/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_PULL_H
#define TT_PARALLEL_COMM_PULL_H

#include "core/comm/comm.h"

/**
 * A transfer in which the receiver copies. The sender offers its segments, and the receiver reads them directly from
 * the sender's memory (tt_comm_ops.read) into place, or adds them to its own data while they are in the cache.
 * collectives.c, the only user, exchanges the offer and the receipt.
 */

/** The sender's offer: the address of its segment list (struct tt_segment) in its own memory. */
struct tt_offer {
    uint64_t segments;
    int64_t n_segments;
    int64_t bytes;
};

/** The destination of bytes, in the sender's order: into = received, or into = a + received, as floats. */
struct tt_sink {
    char *into;
    const char *a; /* NULL: a copy */
    int64_t bytes;
};

struct tt_pull {
    int peer;
    char *through; /* for sums: scratch of `bytes` bytes for the received data */
    int64_t bytes; /* the expected number */
    struct tt_offer offer;
    int64_t left;      /* bytes still to be read */
    int sink;          /* the position: at this sink ... */
    int64_t sink_done; /* ... at this byte of it ... */
    int64_t segment;   /* ... and in this segment of the sender */
    int64_t segment_done;
    int64_t budget; /* budget of a batch with a failed piece, which must run again; 0: none */
    uint64_t done;  /* one bit per piece of that batch: pieces that must not be added again */
    bool is_lost;   /* all reads since lost_sec (tt_comm_clock) have failed */
    double lost_sec;
};

/** Checks an offer that has arrived. Errors: TT_EINTERNAL when it does not have the expected number of bytes. */
int tt_pull_begin(const struct tt_comm *comm, struct tt_pull *pull, int tag) TT_MUST_CHECK;

/**
 * Reads a bounded amount: some pieces by comm's team, or one piece in this thread while the team is busy. pull->left is
 * 0 when everything has been read. The next call repeats a failed read, but skips the pieces that were already added.
 * Errors: TT_ECOMM when every read from the sender has failed for some seconds: the sender is dead.
 */
int tt_pull_some(struct tt_comm *comm, struct tt_pull *pull, const struct tt_sink *sinks) TT_MUST_CHECK;

#endif
