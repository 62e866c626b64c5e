/* SPDX-License-Identifier: MIT
 *
 * Collectives over point-to-point messages.
 *
 * Making one compiles it into stages. A stage posts its messages, waits for all of them, then does its local work
 * (copies and additions) in order; then comes the next stage. One small machine runs them all; the rest of the file
 * builds stages:
 *
 *   all-gather       one stage: every pair of members exchanges shards directly
 *   reduce-scatter   group of 2^k: k stages. In stage s partners differ in bit s of their index; each sends the blocks
 *                    that belong on the partner's side and adds what it receives to the ones it keeps. So neighbours
 *                    are added first, blocks stay contiguous, and (n - 1) / n of the data are sent in all.
 *                    other groups: one stage that exchanges blocks directly, then the same tree locally
 *   all-reduce       the two in a row over slices
 */
#include "parallel/collectives.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/base/tree.h"

/* Pieces from this size on are messages of their own. */
enum { LARGE_PIECE_BYTES = 16384 };

struct message {
    bool send;
    int peer; /* rank of the job */
    int first_segment, n_segments;
    int64_t bytes;
    struct tt_request request;
};

/* into = a + b, or into = a where b is NULL; count in bytes, whole floats for additions. */
struct work {
    char *into;
    const char *a, *b;
    int64_t bytes;
};

struct stage {
    int first_message, n_messages;
    int first_work, n_work;
};

struct tt_collective {
    struct tt_activity activity; /* first member: the activity is the collective */
    struct tt_comm *comm;
    int tag;
    struct tt_group group; /* ranks: own copy */
    struct tt_segment *segments;
    int n_segments, cap_segments;
    struct message *messages;
    int n_messages, cap_messages;
    struct work *work;
    int n_work, cap_work;
    struct stage *stages;
    int n_stages, cap_stages;
    int current; /* stage under way */
    bool under_way;
    float *padding; /* all-reduce: what fills the last slices */
};

/* ---- running ---- */

static int post_stage(struct tt_collective *c)
{
    const struct stage *stage = &c->stages[c->current];
    struct tt_comm *comm = c->comm;
    int rc = 0;

    for (int i = stage->first_message; i < stage->first_message + stage->n_messages; i++) {
        struct message *m = &c->messages[i];
        const struct tt_segment *segments = &c->segments[m->first_segment];

        if (m->send) {
            TT_TRY(comm->ops->send_begin(comm, segments, m->n_segments, m->peer, c->tag, &m->request));
            comm->payload_bytes += m->bytes;
        } else {
            TT_TRY(comm->ops->recv_begin(comm, segments, m->n_segments, m->peer, c->tag, &m->request));
        }
    }
out:
    return rc;
}

static void do_work(const struct work *work)
{
    if (work->b)
        tt_tree_add((float *)(void *)work->into, (const float *)(const void *)work->a,
                    (const float *)(const void *)work->b, work->bytes / (int64_t)sizeof(float));
    else
        memcpy(work->into, work->a, (size_t)work->bytes);
}

/* The first message of the current stage that is not complete, or NULL. Tests them all: each test makes progress. */
static int pending_message(struct tt_collective *c, struct message **ret_pending)
{
    const struct stage *stage = &c->stages[c->current];
    struct message *pending = NULL;
    int rc = 0;

    for (int i = stage->first_message; i < stage->first_message + stage->n_messages; i++) {
        struct message *m = &c->messages[i];
        bool done = false;

        TT_TRY(c->comm->ops->test(c->comm, &m->request, &done));
        if (!done && !pending)
            pending = m;
    }
    *ret_pending = pending;
out:
    return rc;
}

/* Moves on as far as it can; the pending message is NULL when the collective is complete. */
static int advance(struct tt_collective *c, struct message **ret_pending)
{
    struct message *pending = NULL;
    int rc = 0;

    while (c->under_way) {
        const struct stage *stage = &c->stages[c->current];

        TT_TRY(pending_message(c, &pending));
        if (pending)
            break;
        for (int i = stage->first_work; i < stage->first_work + stage->n_work; i++)
            do_work(&c->work[i]);
        c->current++;
        if (c->current == c->n_stages) {
            c->under_way = false;
            tt_comm_unlink(&c->activity);
        } else {
            TT_TRY(post_stage(c));
        }
    }
    *ret_pending = pending;
out:
    if (rc < 0)
        tt_comm_unlink(&c->activity);
    return rc;
}

static int advance_activity(struct tt_activity *activity)
{
    struct message *pending;

    return advance((struct tt_collective *)activity, &pending);
}

int tt_collective_begin(struct tt_collective *c)
{
    struct message *pending;
    int rc = 0;

    if (c->under_way)
        return tt_fail(TT_EINTERNAL, "collective with tag %d begun twice", c->tag);
    if (c->n_stages == 0)
        return 0;
    c->current = 0;
    c->under_way = true;
    tt_comm_link(c->comm, &c->activity);
    if ((rc = post_stage(c)) < 0) {
        tt_comm_unlink(&c->activity);
        return rc;
    }
    return advance(c, &pending);
}

int tt_collective_test(struct tt_collective *c, bool *ret_done)
{
    struct message *pending;
    int rc = 0;

    TT_TRY(advance(c, &pending));
    *ret_done = !c->under_way;
out:
    return rc;
}

static int poll_collective(void *arg, bool *ret_done, int *ret_peer)
{
    struct tt_collective *c = arg;
    struct message *pending;
    int rc = 0;

    TT_TRY(advance(c, &pending));
    *ret_done = !c->under_way;
    if (c->under_way)
        *ret_peer = pending->peer;
out:
    return rc;
}

int tt_collective_wait(struct tt_collective *c)
{
    return tt_comm_wait_until(c->comm, poll_collective, c);
}

void tt_collective_free(struct tt_collective *c)
{
    if (!c)
        return;
    tt_comm_unlink(&c->activity);
    tt_group_release(&c->group);
    tt_free(c->segments);
    tt_free(c->messages);
    tt_free(c->work);
    tt_free(c->stages);
    tt_free(c->padding);
    tt_free(c);
}

/* ---- building ---- */

static struct tt_collective *collective_new(struct tt_comm *comm, const struct tt_group *group, int tag)
{
    struct tt_collective *c = tt_calloc(1, sizeof *c);

    c->activity.advance = advance_activity;
    c->comm = comm;
    c->tag = tag;
    c->group.n = group->n;
    c->group.index = group->index;
    c->group.ranks = tt_calloc((size_t)group->n, sizeof *c->group.ranks);
    memcpy(c->group.ranks, group->ranks, (size_t)group->n * sizeof *c->group.ranks);
    return c;
}

static void add_stage(struct tt_collective *c)
{
    TT_PUSH(c->stages, c->n_stages, c->cap_stages) =
        (struct stage){.first_message = c->n_messages, .first_work = c->n_work};
}

/* Opens a message of the last stage; segments are added to it next. */
static void add_message(struct tt_collective *c, bool send, int member)
{
    TT_PUSH(c->messages, c->n_messages, c->cap_messages) =
        (struct message){.send = send, .peer = c->group.ranks[member], .first_segment = c->n_segments};
    c->stages[c->n_stages - 1].n_messages++;
}

/* Adds a segment to the last message; one that continues the last in memory extends it. */
static void add_segment(struct tt_collective *c, char *data, int64_t bytes)
{
    struct message *m = &c->messages[c->n_messages - 1];
    struct tt_segment *last = m->n_segments ? &c->segments[c->n_segments - 1] : NULL;

    m->bytes += bytes;
    if (bytes == 0)
        return;
    if (last && (char *)last->data + last->bytes == data) {
        last->bytes += (size_t)bytes;
        return;
    }
    TT_PUSH(c->segments, c->n_segments, c->cap_segments) = (struct tt_segment){data, (size_t)bytes};
    m->n_segments++;
}

/* A place in a segment list. */
struct cursor {
    struct tt_segment_list list;
    int item;
    size_t offset;
};

/* The bytes in a row at the cursor; 0 at the end. */
static size_t cursor_room(struct cursor *cursor)
{
    while (cursor->item < cursor->list.n && cursor->offset == cursor->list.items[cursor->item].bytes) {
        cursor->item++;
        cursor->offset = 0;
    }
    return cursor->item < cursor->list.n ? cursor->list.items[cursor->item].bytes - cursor->offset : 0;
}

static char *cursor_data(const struct cursor *cursor)
{
    return (char *)cursor->list.items[cursor->item].data + cursor->offset;
}

/* What goes to or comes from one member in the last stage. */
struct wire {
    struct tt_collective *c;
    bool send;
    int member;
    bool open; /* the last message takes more small pieces */
};

/*
 * Adds data, cut into messages at the segments of `cut`, which are the same on both sides: a large piece travels alone,
 * since MPI moves contiguous memory several times faster than a datatype; small ones in a row share a message.
 */
static void wire_add(struct wire *wire, struct tt_segment_list data, struct tt_segment_list cut)
{
    struct cursor from = {.list = data};
    size_t room;

    for (int i = 0; i < cut.n; i++) {
        size_t left = cut.items[i].bytes;

        if (left == 0)
            continue;
        if (left >= LARGE_PIECE_BYTES || !wire->open)
            add_message(wire->c, wire->send, wire->member);
        wire->open = left < LARGE_PIECE_BYTES;
        for (; left > 0; left -= room, from.offset += room) {
            room = cursor_room(&from);
            room = room < left ? room : left;
            add_segment(wire->c, cursor_data(&from), (int64_t)room);
        }
    }
}

/* Adds local work to the last stage: into = a + b over whole lists, b one array or NULL for a copy. */
static void add_work(struct tt_collective *c, struct tt_segment_list into, struct tt_segment_list a, const char *b)
{
    struct cursor to = {.list = into}, from = {.list = a};
    size_t room_to, room_from;

    while ((room_to = cursor_room(&to)) && (room_from = cursor_room(&from))) {
        size_t bytes = room_to < room_from ? room_to : room_from;
        struct work work = {cursor_data(&to), cursor_data(&from), b, (int64_t)bytes};

        if (b || work.into != work.a) { /* a copy onto itself is none */
            TT_PUSH(c->work, c->n_work, c->cap_work) = work;
            c->stages[c->n_stages - 1].n_work++;
        }
        to.offset += bytes;
        from.offset += bytes;
        b = b ? b + bytes : NULL;
    }
}

static int64_t list_bytes(struct tt_segment_list list)
{
    int64_t bytes = 0;

    for (int i = 0; i < list.n; i++)
        bytes += (int64_t)list.items[i].bytes;
    return bytes;
}

/* Checks that the lists of all members have the bytes of a shard. */
static int check_lists(const struct tt_group *group, const struct tt_segment_list *lists, int64_t shard_bytes,
                       const char *what)
{
    for (int member = 0; member < group->n; member++)
        if (list_bytes(lists[member]) != shard_bytes)
            return tt_fail(TT_EINTERNAL, "%s: member %d of %d has %lld bytes, a shard %lld", what, member, group->n,
                           (long long)list_bytes(lists[member]), (long long)shard_bytes);
    return 0;
}

/* Sums need whole floats in every segment. */
static int check_floats(struct tt_segment_list list, const char *what)
{
    for (int i = 0; i < list.n; i++)
        if (list.items[i].bytes % sizeof(float) || (uintptr_t)list.items[i].data % sizeof(float))
            return tt_fail(TT_EINTERNAL, "%s: segment %d of %zu bytes is not whole, aligned floats", what, i,
                           list.items[i].bytes);
    return 0;
}

/*
 * Every pair of members exchanges directly. Receives first, so that what arrives finds its place; partners in an order
 * that spreads the load. Lists by member; cut says where what arrives at, or comes from, a member is cut.
 */
static void build_exchange(struct tt_collective *c, const struct tt_segment_list *receive,
                           const struct tt_segment_list *receive_cut, const struct tt_segment_list *send,
                           const struct tt_segment_list *send_cut)
{
    int n = c->group.n, me = c->group.index;

    for (int step = 1; step < n; step++) {
        struct wire wire = {c, false, (me - step + n) % n, false};

        wire_add(&wire, receive[wire.member], receive_cut[wire.member]);
    }
    for (int step = 1; step < n; step++) {
        struct wire wire = {c, true, (me + step) % n, false};

        wire_add(&wire, send[wire.member], send_cut[wire.member]);
    }
}

/* n times the same list. The caller's. */
static struct tt_segment_list *repeat_list(struct tt_segment_list list, int n)
{
    struct tt_segment_list *lists = tt_calloc((size_t)n, sizeof *lists);

    for (int i = 0; i < n; i++)
        lists[i] = list;
    return lists;
}

static void build_all_gather(struct tt_collective *c, struct tt_segment_list send,
                             const struct tt_segment_list *receive)
{
    int n = c->group.n, me = c->group.index;
    struct tt_segment_list *sends, *cuts;

    if (list_bytes(send) == 0)
        return;
    sends = repeat_list(send, n);
    cuts = repeat_list(receive[me], n);
    add_stage(c);
    add_work(c, receive[me], send, NULL);
    add_stage(c);
    build_exchange(c, receive, receive, sends, cuts);
    tt_free(sends);
    tt_free(cuts);
}

/* Recursive halving; n is a power of two, at least 2. */
static void build_halving(struct tt_collective *c, const struct tt_segment_list *blocks, struct tt_segment_list out,
                          char *scratch, int64_t shard_bytes)
{
    int n = c->group.n, me = c->group.index;

    for (int bit = 1; bit < n; bit <<= 1) {
        int partner = me ^ bit;
        int below = bit - 1; /* blocks this member still has agree with it in these bits */
        bool last = bit == n / 2;
        struct wire receive = {c, false, partner, false}, send = {c, true, partner, false};
        char *received = scratch;

        add_stage(c);
        for (int b = me & (below | bit); b < n; b += 2 * bit, received += shard_bytes) {
            struct tt_segment place = {received, (size_t)shard_bytes};

            wire_add(&receive, (struct tt_segment_list){&place, 1}, blocks[b]);
            add_work(c, last ? out : blocks[b], blocks[b], received);
        }
        for (int b = partner & (below | bit); b < n; b += 2 * bit)
            wire_add(&send, blocks[b], blocks[b]);
    }
}

/* Direct exchange, then the tree over the members' blocks; any n >= 2. */
static void build_direct(struct tt_collective *c, const struct tt_segment_list *blocks, struct tt_segment_list out,
                         char *scratch, int64_t shard_bytes)
{
    int n = c->group.n, me = c->group.index;
    struct tt_segment *leaves = tt_calloc((size_t)n, sizeof *leaves);
    struct tt_segment_list *receive = tt_calloc((size_t)n, sizeof *receive);
    struct tt_segment_list *cuts = repeat_list(blocks[me], n);
    struct tt_tree_walk walk = tt_tree_walk_make(n);
    int64_t into, from;

    /* The own block is the leaf in the middle; it is moved to the scratch too, so that every leaf is one array. */
    for (int member = 0; member < n; member++) {
        leaves[member] = (struct tt_segment){scratch + member * shard_bytes, (size_t)shard_bytes};
        receive[member] = (struct tt_segment_list){&leaves[member], 1};
    }
    add_stage(c);
    build_exchange(c, receive, cuts, blocks, blocks);
    add_work(c, receive[me], blocks[me], NULL);
    while (tt_tree_walk_next(&walk, &into, &from))
        add_work(c, into == 0 && 2 * walk.stride >= n ? out : receive[into], receive[into], leaves[from].data);
    tt_free(leaves);
    tt_free(receive);
    tt_free(cuts);
}

static void build_reduce_scatter(struct tt_collective *c, const struct tt_segment_list *blocks,
                                 struct tt_segment_list out, char *scratch, int64_t shard_bytes)
{
    int n = c->group.n;

    if (shard_bytes == 0)
        return;
    if (n == 1) {
        add_stage(c);
        add_work(c, out, blocks[0], NULL);
    } else if ((n & (n - 1)) == 0) {
        build_halving(c, blocks, out, scratch, shard_bytes);
    } else {
        build_direct(c, blocks, out, scratch, shard_bytes);
    }
}

int tt_all_gather_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list send,
                      const struct tt_segment_list *receive, struct tt_collective **ret_collective)
{
    struct tt_collective *c;
    int rc = 0;

    TT_TRY(check_lists(group, receive, list_bytes(send), "all-gather"));
    c = collective_new(comm, group, tag);
    build_all_gather(c, send, receive);
    *ret_collective = c;
out:
    return rc;
}

int tt_reduce_scatter_new(struct tt_comm *comm, const struct tt_group *group, int tag,
                          const struct tt_segment_list *blocks, struct tt_segment_list out, void *scratch,
                          struct tt_collective **ret_collective)
{
    int64_t shard_bytes = list_bytes(out);
    struct tt_collective *c;
    int rc = 0;

    TT_TRY(check_lists(group, blocks, shard_bytes, "reduce-scatter"));
    TT_TRY(check_floats(out, "reduce-scatter, out"));
    for (int member = 0; member < group->n; member++)
        TT_TRY(check_floats(blocks[member], "reduce-scatter, block"));
    c = collective_new(comm, group, tag);
    build_reduce_scatter(c, blocks, out, scratch, shard_bytes);
    *ret_collective = c;
out:
    return rc;
}

/* Cuts the values into n slices of slice_bytes, the last ones filled up from c->padding. ret_items is the caller's. */
static void cut_slices(struct tt_collective *c, struct tt_segment_list values, int64_t slice_bytes,
                       struct tt_segment **ret_items, struct tt_segment_list *ret_slices)
{
    struct cursor from = {.list = values};
    struct tt_segment *items = NULL;
    char *padding = (char *)c->padding;
    int n_items = 0, cap_items = 0;

    for (int slice = 0; slice < c->group.n; slice++) {
        int first = n_items;
        size_t room;

        for (int64_t left = slice_bytes; left > 0; left -= (int64_t)room) {
            room = cursor_room(&from);
            if (room == 0) {
                TT_PUSH(items, n_items, cap_items) = (struct tt_segment){padding, (size_t)left};
                padding += left;
                break;
            }
            room = (int64_t)room < left ? room : (size_t)left;
            TT_PUSH(items, n_items, cap_items) = (struct tt_segment){cursor_data(&from), room};
            from.offset += room;
        }
        ret_slices[slice].n = n_items - first;
    }
    for (int slice = 0, first = 0; slice < c->group.n; first += ret_slices[slice].n, slice++)
        ret_slices[slice].items = items + first;
    *ret_items = items;
}

/* Bytes of the slice that each of n members sums up. */
static int64_t slice_bytes_of(int n, int64_t bytes)
{
    int64_t floats = bytes / (int64_t)sizeof(float);

    return (floats + n - 1) / n * (int64_t)sizeof(float);
}

int tt_all_reduce_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list values,
                      void *scratch, struct tt_collective **ret_collective)
{
    int64_t bytes = list_bytes(values), slice_bytes = slice_bytes_of(group->n, bytes);
    struct tt_segment_list *slices;
    struct tt_segment *items;
    struct tt_collective *c;
    int rc = 0;

    TT_TRY(check_floats(values, "all-reduce"));
    c = collective_new(comm, group, tag);
    *ret_collective = c;
    if (group->n == 1 || bytes == 0)
        goto out;
    c->padding = tt_calloc((size_t)(slice_bytes * group->n - bytes), 1);
    slices = tt_calloc((size_t)group->n, sizeof *slices);
    cut_slices(c, values, slice_bytes, &items, slices);
    build_reduce_scatter(c, slices, slices[group->index], scratch, slice_bytes);
    build_all_gather(c, slices[group->index], slices);
    tt_free(items);
    tt_free(slices);
out:
    return rc;
}

int64_t tt_reduce_scatter_scratch(int n, int64_t shard_bytes)
{
    if (n == 1)
        return 0;
    return (n & (n - 1)) == 0 ? n / 2 * shard_bytes : n * shard_bytes;
}

int64_t tt_all_reduce_scratch(int n, int64_t bytes)
{
    return tt_reduce_scatter_scratch(n, slice_bytes_of(n, bytes));
}

int64_t tt_all_gather_payload(int n, int64_t shard_bytes)
{
    return (n - 1) * shard_bytes;
}

int64_t tt_reduce_scatter_payload(int n, int64_t shard_bytes)
{
    return (n - 1) * shard_bytes;
}

int64_t tt_all_reduce_payload(int n, int64_t bytes)
{
    return 2 * (n - 1) * slice_bytes_of(n, bytes);
}
