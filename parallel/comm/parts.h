/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_PARTS_H
#define TT_PARALLEL_COMM_PARTS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/comm/comm.h"

/**
 * Long transfers in parts, for a communicator that cannot see the progress of a message until it is complete
 * (mpi.c). A few parts are under way at a time, so that even a slow link completes one from time to time and the
 * waiting ranks see progress (tt_comm.progress). Both sides cut in the same way, since they have the same bytes.
 * Messages between two ranks under one tag keep their order: a transfer that begins after a long one waits until all
 * parts of that one are posted.
 *
 * A part needs no handshake of its own, since its answer would queue behind the data that goes the other way. Instead
 * the receiver says once that it is ready, and the sender posts no part before. So what a late receiver must keep
 * elsewhere is bounded. Its word has the bytes that it expects, so that a sender that has others fails at once.
 *
 * Transfers are allocated once and reused.
 */
enum {
    TT_PART_BYTES = 1 << 20, /* a transfer up to this size is one message, which needs no handshake */
    TT_PARTS_AT_ONCE = 16,
};

struct tt_parted {
    int peer, tag;
    bool send;
    int64_t wanted; /* the bytes that the receiver expects, as its word says */
    struct tt_segment *segments;
    int n, cap;
    int segment; /* the next part begins in this segment ... */
    size_t done; /* ... at this byte */
    size_t bytes;
    int n_parts, n_posted;
    int n_under_way; /* of the parts, and the word that the receiver is ready */
    bool ready;      /* parts may be posted */
    int rc;          /* the code of the first part that failed */
    char *message;
    struct tt_parted *next; /* in the list of transfers with parts to post, oldest first, or of unused ones */
};

/** Posts one part of `whole` as a message. The list of segments is valid during the call. */
typedef int (*tt_part_post_fn)(void *ctx, const struct tt_segment *segments, int n, struct tt_parted *whole);

/** Posts the word that the receiver of `whole` is ready: a message from the receiver to the sender, with `wanted`. */
typedef int (*tt_part_ready_fn)(void *ctx, struct tt_parted *whole);

struct tt_parts {
    tt_part_post_fn post;
    tt_part_ready_fn post_ready;
    void *ctx;
    struct tt_parted *first, *unused;
    struct tt_segment *scratch;
    int cap;
};

/** Whether a transfer must go through tt_parts_begin, because it is long or would overtake a long one. */
bool tt_parts_takes(const struct tt_parts *parts, size_t bytes, int peer, int tag, bool send);

/** Begins a transfer; ret_parted is valid until tt_parts_test says that it is done. */
int tt_parts_begin(struct tt_parts *parts, const struct tt_segment *segments, int n, int peer, int tag, bool send,
                   struct tt_parted **ret_parted) TT_MUST_CHECK;

/** Reports that a part, or the word that the receiver is ready, is complete, with the code rc and its message. */
void tt_parts_end(struct tt_parted *t, int rc);
void tt_parts_ready(struct tt_parted *t, int rc);

/** Posts the parts that may be posted now. */
int tt_parts_feed(struct tt_parts *parts) TT_MUST_CHECK;

/** Whether the whole transfer is done. Returns the error of a failed part. */
int tt_parts_test(struct tt_parts *parts, struct tt_parted *t, bool *ret_done) TT_MUST_CHECK;

/** Releases all memory; nothing may be under way. */
void tt_parts_release(struct tt_parts *parts);

#endif
