/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_PULL_H
#define TT_PARALLEL_COMM_PULL_H

#include "core/comm/comm.h"

/**
 * A transfer in which the receiver does the copying: the sender offers its segments, the receiver reads them straight
 * from the sender's memory (tt_comm_ops.read) into place, or adds them to what it has while they are in the cache. For
 * stages.c only, which exchanges the offer and the receipt.
 */

/** What the sender says: where its segment list (struct tt_segment) lies in its own memory. */
struct tt_offer {
    uint64_t segments;
    int64_t n_segments;
    int64_t bytes;
};

/** Where bytes go, in the order of the sender's: into = what arrives, or into = a + what arrives, as floats. */
struct tt_sink {
    char *into;
    const char *a; /* NULL: a copy */
    int64_t bytes;
};

struct tt_pull {
    int peer;
    char *through; /* sums: scratch that what arrives passes through; bytes long */
    int64_t bytes; /* that are expected */
    struct tt_offer offer;
    int64_t left;      /* bytes to be read yet */
    int sink;          /* at this sink, */
    int64_t sink_done; /* so far into it */
    int64_t segment;   /* and at this segment of the sender */
    int64_t segment_done;
    int64_t budget; /* of the batch in which a piece failed, which is run again; 0: none */
    uint64_t done;  /* a bit per piece of that batch: what must not be added twice */
    bool is_lost;   /* the last reading failed, and all since lost_sec (tt_comm_clock) */
    double lost_sec;
};

/** The offer has arrived: checks it. Errors: TT_EINTERNAL when it has not the bytes that are expected. */
int tt_pull_begin(const struct tt_comm *comm, struct tt_pull *pull, int tag) TT_MUST_CHECK;

/**
 * Reads some more: a bounded piece per thread of comm's team, or one on this thread while the team has work of its own.
 * pull->left is 0 when all is there. A failed reading is repeated by the next call, without what was added already.
 * Errors: TT_ECOMM when nothing of the sender's memory could be read for some seconds: it is dead.
 */
int tt_pull_some(struct tt_comm *comm, struct tt_pull *pull, const struct tt_sink *sinks) TT_MUST_CHECK;

#endif
