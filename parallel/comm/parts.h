/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_PARTS_H
#define TT_PARALLEL_COMM_PARTS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/comm/comm.h"

/**
 * Long transfers in parts, for a communicator whose messages show nothing until they are complete (comm_mpi.c). A few parts
 * are under way at a time, so that even a slow link completes one every now and then (tt_comm.progress) and who waits
 * knows that it flows. Both sides cut in the same way, since they have the same bytes. Messages between two ranks under
 * one tag keep their order: a transfer that begins behind a long one waits until all parts of that one are posted.
 *
 * Transfers are allocated once and used again.
 */
enum {
    TT_PART_BYTES = 4 << 20,
    TT_PARTS_FROM = 8 << 20, /* bytes; shorter transfers are one message */
    TT_PARTS_AT_ONCE = 3,
};

struct tt_parted {
    int peer, tag;
    bool send;
    struct tt_segment *segments;
    int n, cap;
    int segment; /* the next part begins in this segment, */
    size_t done; /* so far into it */
    size_t bytes;
    int n_parts, n_posted, n_under_way;
    int rc; /* of the first part that failed, with its message */
    char *message;
    struct tt_parted *next; /* in the order they began, while parts are not posted; or of the unused ones */
};

/** Posts a part, which belongs to `whole`, as one message. The list of segments is valid during the call. */
typedef int (*tt_part_post_fn)(void *ctx, const struct tt_segment *segments, int n, struct tt_parted *whole);

struct tt_parts {
    tt_part_post_fn post;
    void *ctx;
    struct tt_parted *first, *unused;
    struct tt_segment *scratch;
    int cap;
};

/** Whether a transfer must go through tt_parts_begin: it is long, or would overtake one that is. */
bool tt_parts_takes(const struct tt_parts *parts, size_t bytes, int peer, int tag, bool send);

/** Begins a transfer; ret_parted is valid until tt_parts_test says that it is done. */
int tt_parts_begin(struct tt_parts *parts, const struct tt_segment *segments, int n, int peer, int tag, bool send,
                   struct tt_parted **ret_parted) TT_MUST_CHECK;

/** A part is complete, with the code rc and its message. */
void tt_parts_end(struct tt_parted *t, int rc);

/** Posts the parts that may be posted now. */
int tt_parts_feed(struct tt_parts *parts) TT_MUST_CHECK;

/** Whether the whole transfer is done, or what failed. */
int tt_parts_test(struct tt_parts *parts, struct tt_parted *t, bool *ret_done) TT_MUST_CHECK;

/** Nothing is under way. */
void tt_parts_release(struct tt_parts *parts);

#endif
