/* SPDX-License-Identifier: MIT
 *
 * Builds and runs collectives:
 *
 *   all-gather       every pair of members exchanges shards directly
 *   reduce-scatter   group of 2^k: k stages. In stage s partners differ in bit s of their index; each sends the blocks
 *                    that belong on the partner's side and adds what it receives to the ones it keeps. So neighbours
 *                    are added first, and each member sends (n - 1) / n of the data.
 *                    other groups: one stage that exchanges blocks directly, then the same tree locally
 *   all-reduce a reduce-scatter, then an all-gather, over slices
 *   all-to-all       only the direct exchange
 *
 * Bytes are sent in messages, or the receiver reads them from the sender's memory (struct wire). The additions and
 * their order are the same in both cases.
 */
#include "parallel/comm/collectives.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/math/round.h"
#include "core/math/tree.h"
#include "parallel/comm/pull.h"

/*
 * A collective is a list of stages. A stage posts its messages, waits for all of them, and then does its local work
 * (copies and additions) in order. The functions that build a collective add messages and work to the last stage. They
 * keep addresses, but not the lists passed to them.
 */

/* The data that the last stage sends to one member or receives from it. */
struct wire {
    struct tt_collective *collective;
    bool send;
    int member;
    bool read;                          /* the receiver reads it from the sender's memory: one message for all */
    bool open;                          /* more pieces fit into the last message; initially false */
    int64_t large_bytes, message_bytes; /* larger pieces are sent alone, in messages of at most message_bytes */
};

/* A position in a segment list. */
struct cursor {
    struct tt_segment_list list;
    int item;
    size_t offset;
};

enum {
    LARGE_PIECE_BYTES = 16384, /* a piece of at least this size is a message of its own */
    MOST_EAGER = 16,           /* messages (tt_comm.eager_bytes) sent at once to a member, buffered outside the arena */
};

/* The state of a message that the receiver reads (pull.h). A sender stays in OFFERED until the receipt arrives. */
enum read_state { OFFERED, READING, RECEIVED };

struct message {
    bool send;
    bool read; /* by the receiver: only the offer and the receipt are sent */
    int peer;  /* rank of the job */
    int first_segment, n_segments;
    int first_sink; /* if read: index of its first sink */
    int64_t bytes;
    struct tt_request request; /* request of the message or of the offer */
    struct tt_request receipt;
    enum read_state state;
    char receipt_byte;
    struct tt_pull pull; /* a sender uses only its offer */
};

/* into = a + b, or into = a if b is NULL. For additions, the bytes are whole numbers. */
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
    int *ranks; /* of the group; a copy */
    struct tt_segment *segments;
    int n_segments, cap_segments;
    struct message *messages;
    int n_messages, cap_messages;
    struct tt_sink *sinks;
    int n_sinks, cap_sinks;
    struct work *work;
    int n_work, cap_work;
    struct stage *stages;
    int n_stages, cap_stages;
    int current; /* stage under way */
    bool under_way;
    void *owned;         /* memory from tt_calloc that the collective uses and frees; may be NULL */
    int64_t *sent_bytes; /* counter of the bytes that it sends: comm->payload_bytes or comm->routed_bytes */
};

/* Offer and receipt use the collective's own tag, since the sender posts nothing between its offer and the receipt. */
static int post_read(struct tt_collective *c, struct message *m)
{
    struct tt_segment offer = {&m->pull.offer, sizeof m->pull.offer}, receipt = {&m->receipt_byte, 1};
    struct tt_comm *comm = c->comm;
    int rc = 0;

    m->state = OFFERED;
    if (!m->send)
        return comm->ops->recv_begin(comm, &offer, 1, m->peer, c->tag, &m->request);
    m->pull.offer.segments = (uint64_t)(uintptr_t)&c->segments[m->first_segment];
    m->pull.offer.n_segments = m->n_segments;
    m->pull.offer.bytes = m->bytes;
    TT_TRY(comm->ops->send_begin(comm, &offer, 1, m->peer, c->tag, &m->request));
    rc = comm->ops->recv_begin(comm, &receipt, 1, m->peer, c->tag, &m->receipt);
out:
    return rc;
}

static int post_stage(struct tt_collective *c)
{
    const struct stage *stage = &c->stages[c->current];
    struct tt_comm *comm = c->comm;
    int rc = 0;

    for (int i = stage->first_message; i < stage->first_message + stage->n_messages; i++) {
        struct message *m = &c->messages[i];
        const struct tt_segment *segments = &c->segments[m->first_segment];

        if (m->read)
            TT_TRY(post_read(c, m));
        else if (m->send)
            TT_TRY(comm->ops->send_begin(comm, segments, m->n_segments, m->peer, c->tag, &m->request));
        else
            TT_TRY(comm->ops->recv_begin(comm, segments, m->n_segments, m->peer, c->tag, &m->request));
        *c->sent_bytes += m->send ? m->bytes : 0;
    }
out:
    return rc;
}

/* Reads at most one batch, and none if this poll has already read one (*has_read). Sends the receipt after the last
 * batch. */
static int test_reading(struct tt_collective *c, struct message *m, bool *has_read, bool *ret_done)
{
    struct tt_segment receipt = {&m->receipt_byte, 1};
    struct tt_comm *comm = c->comm;
    bool done = true;
    int rc = 0;

    TT_TRY(comm->ops->test(comm, &m->request, &done));
    if (done && m->state == OFFERED) {
        TT_TRY(tt_pull_begin(comm, &m->pull, c->tag));
        m->state = READING;
    }
    if (m->state == READING && !*has_read) {
        TT_TRY(tt_pull_some(comm, &m->pull, &c->sinks[m->first_sink]));
        *has_read = true;
        if (m->pull.left == 0) {
            m->state = RECEIVED;
            TT_TRY(comm->ops->send_begin(comm, &receipt, 1, m->peer, c->tag, &m->receipt));
        }
    }
    if (m->state == RECEIVED)
        TT_TRY(comm->ops->test(comm, &m->receipt, &done));
    *ret_done = done && m->state == RECEIVED;
out:
    return rc;
}

/* The first message of the current stage that is not complete, or NULL. Tests all messages, since testing a message may
 * also read data. */
static int pending_message(struct tt_collective *c, struct message **ret_pending)
{
    const struct stage *stage = &c->stages[c->current];
    struct message *pending = NULL;
    struct tt_comm *comm = c->comm;
    bool has_read = false;
    int rc = 0;

    for (int i = stage->first_message; i < stage->first_message + stage->n_messages; i++) {
        struct message *m = &c->messages[i];
        bool sent = true, done = false;

        if (m->read && !m->send) {
            TT_TRY(test_reading(c, m, &has_read, &done));
        } else {
            TT_TRY(comm->ops->test(comm, &m->request, &sent));
            TT_TRY(comm->ops->test(comm, &m->receipt, &done)); /* done at once if there is no message */
            done = done && sent;
        }
        if (!done && !pending)
            pending = m;
    }
    *ret_pending = pending;
out:
    return rc;
}

/* Advances as far as it can. *ret_pending is the pending message, or NULL if the collective is complete. */
static int advance(struct tt_collective *c, struct message **ret_pending)
{
    struct message *pending = NULL;
    int rc = 0;

    while (c->under_way) {
        const struct stage *stage = &c->stages[c->current];

        TT_TRY(pending_message(c, &pending));
        if (pending)
            break;
        for (int i = stage->first_work; i < stage->first_work + stage->n_work; i++) {
            const struct work *work = &c->work[i];

            if (work->b)
                tt_comm_add(c->comm, work->into, work->a, work->b, work->bytes);
            else
                memcpy(work->into, work->a, (size_t)work->bytes);
        }
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
        return tt_comm_give_way(c->comm, rc);
    }
    return tt_comm_give_way(c->comm, advance(c, &pending));
}

int tt_collective_test(struct tt_collective *c, bool *ret_done)
{
    int rc = 0;

    TT_TRY(tt_comm_progress(c->comm));
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

struct tt_span tt_collective_span(const struct tt_collective *c)
{
    return (struct tt_span){c->activity.begin_sec, c->activity.end_sec};
}

void tt_collective_free(struct tt_collective *c)
{
    if (!c)
        return;
    tt_comm_unlink(&c->activity);
    tt_free(c->ranks);
    tt_free(c->segments);
    tt_free(c->messages);
    tt_free(c->sinks);
    tt_free(c->work);
    tt_free(c->stages);
    tt_free(c->owned);
    tt_free(c);
}

/* Makes a collective without stages. Free it with tt_collective_free. */
static struct tt_collective *collective_new(struct tt_comm *comm, const struct tt_group *group, int tag)
{
    struct tt_collective *c = tt_calloc(1, sizeof *c);

    c->activity.advance = advance_activity;
    c->comm = comm;
    c->tag = tag;
    c->sent_bytes = &comm->payload_bytes;
    c->ranks = tt_calloc((size_t)group->n, sizeof *c->ranks);
    memcpy(c->ranks, group->ranks, (size_t)group->n * sizeof *c->ranks);
    return c;
}

static void add_stage(struct tt_collective *c)
{
    TT_PUSH(c->stages, c->n_stages, c->cap_stages) =
        (struct stage){.first_message = c->n_messages, .first_work = c->n_work};
}

/* Adds an empty message to the last stage; segments are added to it next. */
static void add_message(struct tt_collective *c, const struct wire *wire)
{
    TT_PUSH(c->messages, c->n_messages, c->cap_messages) = (struct message){
        .send = wire->send,
        .read = wire->read,
        .peer = c->ranks[wire->member],
        .first_segment = c->n_segments,
        .first_sink = c->n_sinks,
        .pull = {.peer = c->ranks[wire->member]},
    };
    c->stages[c->n_stages - 1].n_messages++;
}

/* The contiguous bytes at the cursor; 0 at the end of the list. At the end of a segment, moves to the next one. */
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

/*
 * Makes one end of a wire. Both ends must pass the same numbers: these alone decide whether the data is read
 * (tt_comm.read_bytes) or sent, and where it is cut.
 *   bytes    size of the whole wire
 *   senders  the number of members that send this much to one member at the same time
 */
static struct wire wire_make(struct tt_collective *c, bool send, int member, int64_t bytes, int senders)
{
    const struct tt_comm *comm = c->comm;
    struct wire wire = {
        .collective = c, .send = send, .member = member, .large_bytes = LARGE_PIECE_BYTES, .message_bytes = INT64_MAX};

    wire.read = comm->reachable && comm->reachable[c->ranks[member]] && comm->read_bytes && bytes >= comm->read_bytes;
    /* cut a wire of moderate size into messages without handshakes, and a large one into long messages, each with a
     * handshake (mpi.c) */
    if (comm->eager_bytes && senders * bytes <= MOST_EAGER * comm->eager_bytes)
        wire.message_bytes = comm->eager_bytes;
    else if (comm->eager_bytes)
        wire.large_bytes = comm->eager_bytes + 1;
    return wire;
}

struct tt_segment_list *tt_segment_blocks(void *data, int n, int64_t bytes)
{
    struct tt_segment_list *lists = tt_calloc((size_t)n, sizeof *lists + sizeof(struct tt_segment));
    struct tt_segment *segments = (struct tt_segment *)(void *)(lists + n);

    for (int i = 0; i < n; i++) {
        segments[i] = (struct tt_segment){(char *)data + i * bytes, (size_t)bytes};
        lists[i] = (struct tt_segment_list){&segments[i], 1};
    }
    return lists;
}

static int64_t list_bytes(struct tt_segment_list list)
{
    int64_t bytes = 0;

    for (int i = 0; i < list.n; i++)
        bytes += (int64_t)list.items[i].bytes;
    return bytes;
}

/* Adds local work: into = a + b as numbers over whole lists, where b is one array; into = a if b is NULL. */
static void add_work(struct tt_collective *c, struct tt_segment_list into, struct tt_segment_list a, const char *b)
{
    struct cursor to = {.list = into}, from = {.list = a};
    size_t room_to, room_from;

    while ((room_to = cursor_room(&to)) && (room_from = cursor_room(&from))) {
        size_t bytes = room_to < room_from ? room_to : room_from;
        struct work work = {cursor_data(&to), cursor_data(&from), b, (int64_t)bytes};

        if (b || work.into != work.a) { /* a copy onto itself needs no work */
            TT_PUSH(c->work, c->n_work, c->cap_work) = work;
            c->stages[c->n_stages - 1].n_work++;
        }
        to.offset += bytes;
        from.offset += bytes;
        b = b ? b + bytes : NULL;
    }
}

/* Adds bytes to the last message: as segments, or to its last segment if they follow it in memory. */
static void add_list(struct tt_collective *c, struct cursor *from, size_t bytes)
{
    struct message *m = &c->messages[c->n_messages - 1];
    size_t room;

    m->bytes += (int64_t)bytes;
    for (; bytes > 0; bytes -= room, from->offset += room) {
        struct tt_segment *last = m->n_segments ? &c->segments[c->n_segments - 1] : NULL;

        room = cursor_room(from);
        room = room < bytes ? room : bytes;
        if (last && (char *)last->data + last->bytes == cursor_data(from)) {
            last->bytes += room;
            continue;
        }
        TT_PUSH(c->segments, c->n_segments, c->cap_segments) = (struct tt_segment){cursor_data(from), room};
        m->n_segments++;
    }
}

/* Adds data to the only message of a wire that is read. */
static void add_read(struct wire *wire, struct tt_segment_list data, struct tt_segment_list a, char *through)
{
    struct tt_collective *c = wire->collective;
    struct cursor to = {.list = data}, from = {.list = a};
    struct message *m;
    size_t room;

    if (!wire->open)
        add_message(c, wire);
    wire->open = true;
    m = &c->messages[c->n_messages - 1];
    if (wire->send) {
        add_list(c, &to, (size_t)list_bytes(data));
        return;
    }
    if (!m->pull.through)
        m->pull.through = through;
    for (; (room = cursor_room(&to)); to.offset += room, from.offset += room) {
        size_t room_a = a.n ? cursor_room(&from) : room;

        room = room < room_a ? room : room_a;
        TT_PUSH(c->sinks, c->n_sinks, c->cap_sinks) =
            (struct tt_sink){cursor_data(&to), a.n ? cursor_data(&from) : NULL, (int64_t)room};
        m->bytes += (int64_t)room;
    }
    m->pull.bytes = m->bytes;
}

/*
 * Adds data to be sent or received. Messages are cut at the segments of `cut`, which are the same on both sides. A
 * large piece is a message of its own, since MPI moves contiguous memory several times faster than a datatype of
 * blocks; it becomes several messages where that avoids handshakes (tt_comm.eager_bytes). Consecutive small pieces
 * share a message. Data that the receiver reads needs no cut.
 */
static void wire_add(struct wire *wire, struct tt_segment_list data, struct tt_segment_list cut)
{
    struct tt_collective *c = wire->collective;
    struct cursor from = {.list = data};

    if (wire->read) {
        add_read(wire, data, (struct tt_segment_list){NULL, 0}, NULL);
        return;
    }
    for (int i = 0; i < cut.n; i++) {
        int64_t bytes = (int64_t)cut.items[i].bytes;

        for (int64_t left = bytes, part; left > 0; left -= part) {
            part = left < wire->message_bytes ? left : wire->message_bytes;
            if (bytes >= wire->large_bytes || !wire->open)
                add_message(c, wire);
            wire->open = bytes < wire->large_bytes;
            add_list(c, &from, (size_t)part);
        }
    }
}

/*
 * Adds floats to be received and added: into = a + received, cut at the segments of a. `received` is a buffer of the
 * same size. The buffers of successive calls for one wire must be adjacent in memory.
 */
static void wire_add_sum(struct wire *wire, struct tt_segment_list into, struct tt_segment_list a, char *received)
{
    struct tt_segment place = {received, (size_t)list_bytes(a)};

    if (wire->read) {
        add_read(wire, into, a, received);
        return;
    }
    wire_add(wire, (struct tt_segment_list){&place, 1}, a);
    add_work(wire->collective, into, a, received);
}

/* --- the collectives --- */

/* Checks that every member's list has the size of a shard. */
static int check_lists(const struct tt_group *group, const struct tt_segment_list *lists, int64_t shard_bytes,
                       const char *what)
{
    for (int member = 0; member < group->n; member++)
        if (list_bytes(lists[member]) != shard_bytes)
            return tt_fail(TT_EINTERNAL, "%s: member %d of %d has %lld bytes, a shard %lld", what, member, group->n,
                           (long long)list_bytes(lists[member]), (long long)shard_bytes);
    return 0;
}

/* Bytes of a number that is added. */
static size_t number_bytes(const struct tt_comm *comm)
{
    return comm->adds_doubles ? sizeof(double) : sizeof(float);
}

/* Sums need whole numbers in every segment. */
static int check_numbers(const struct tt_comm *comm, struct tt_segment_list list, const char *what)
{
    for (int i = 0; i < list.n; i++)
        if (list.items[i].bytes % number_bytes(comm) || (uintptr_t)list.items[i].data % number_bytes(comm))
            return tt_fail(TT_EINTERNAL, "%s: segment %d of %zu bytes is not whole, aligned numbers", what, i,
                           list.items[i].bytes);
    return 0;
}

/*
 * A direct exchange between every pair of members. Receives are posted first, so that arriving data finds its place;
 * the order of partners spreads the load. All lists are indexed by member; the _cut lists say where messages are cut.
 */
static void build_exchange(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *receive,
                           const struct tt_segment_list *receive_cut, const struct tt_segment_list *send,
                           const struct tt_segment_list *send_cut)
{
    int n = group->n, me = group->index;

    for (int step = 1; step < n; step++) {
        int member = (me - step + n) % n;
        struct wire wire = wire_make(c, false, member, list_bytes(receive[member]), n - 1);

        wire_add(&wire, receive[member], receive_cut[member]);
    }
    for (int step = 1; step < n; step++) {
        int member = (me + step) % n;
        struct wire wire = wire_make(c, true, member, list_bytes(send[member]), n - 1);

        wire_add(&wire, send[member], send_cut[member]);
    }
}

/* Repeats a list n times; the caller frees. */
static struct tt_segment_list *repeat_list(struct tt_segment_list list, int n)
{
    struct tt_segment_list *lists = tt_calloc((size_t)n, sizeof *lists);

    for (int i = 0; i < n; i++)
        lists[i] = list;
    return lists;
}

static void build_all_gather(struct tt_collective *c, const struct tt_group *group, struct tt_segment_list send,
                             const struct tt_segment_list *receive)
{
    int n = group->n, me = group->index;
    struct tt_segment_list *sends, *cuts;

    if (list_bytes(send) == 0)
        return;
    sends = repeat_list(send, n);
    cuts = repeat_list(receive[me], n);
    add_stage(c);
    add_work(c, receive[me], send, NULL);
    add_stage(c);
    build_exchange(c, group, receive, receive, sends, cuts);
    tt_free(sends);
    tt_free(cuts);
}

/* Recursive halving; n is a power of two, at least 2. */
static void build_halving(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *blocks,
                          struct tt_segment_list out, char *scratch, int64_t shard_bytes)
{
    int n = group->n, me = group->index;

    for (int bit = 1; bit < n; bit <<= 1) {
        int partner = me ^ bit;
        int below = bit - 1; /* the blocks that remain agree with this member's index in these bits */
        bool last = bit == n / 2;
        int64_t bytes = n / (2 * bit) * shard_bytes;
        struct wire receive = wire_make(c, false, partner, bytes, 1);
        struct wire send = wire_make(c, true, partner, bytes, 1);
        char *received = scratch;

        add_stage(c);
        for (int b = me & (below | bit); b < n; b += 2 * bit, received += shard_bytes)
            wire_add_sum(&receive, last ? out : blocks[b], blocks[b], received);
        for (int b = partner & (below | bit); b < n; b += 2 * bit)
            wire_add(&send, blocks[b], blocks[b]);
    }
}

/* Direct exchange, then the tree over the members' blocks; for any n >= 2. */
static void build_direct(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *blocks,
                         struct tt_segment_list out, char *scratch, int64_t shard_bytes)
{
    int n = group->n, me = group->index;
    struct tt_segment_list *receive = tt_segment_blocks(scratch, n, shard_bytes);
    struct tt_segment_list *cuts = repeat_list(blocks[me], n);
    struct tt_tree_walk walk = tt_tree_walk_make(n);
    int64_t into, from;

    /* This member's block is copied to the scratch too, so that every leaf is one array. */
    add_stage(c);
    build_exchange(c, group, receive, cuts, blocks, blocks);
    add_work(c, receive[me], blocks[me], NULL);
    while (tt_tree_walk_next(&walk, &into, &from))
        add_work(c, into == 0 && 2 * walk.stride >= n ? out : receive[into], receive[into],
                 receive[from].items[0].data);
    tt_free(receive);
    tt_free(cuts);
}

static void build_reduce_scatter(struct tt_collective *c, const struct tt_group *group,
                                 const struct tt_segment_list *blocks, struct tt_segment_list out, char *scratch,
                                 int64_t shard_bytes)
{
    int n = group->n;

    if (shard_bytes == 0)
        return;
    if (n == 1) {
        add_stage(c);
        add_work(c, out, blocks[0], NULL);
    } else if ((n & (n - 1)) == 0) {
        build_halving(c, group, blocks, out, scratch, shard_bytes);
    } else {
        build_direct(c, group, blocks, out, scratch, shard_bytes);
    }
}

int tt_all_gather_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list send,
                      const struct tt_segment_list *receive, struct tt_collective **ret_collective)
{
    struct tt_collective *c;
    int rc = 0;

    TT_TRY(check_lists(group, receive, list_bytes(send), "all-gather"));
    c = collective_new(comm, group, tag);
    build_all_gather(c, group, send, receive);
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
    TT_TRY(check_numbers(comm, out, "reduce-scatter, out"));
    for (int member = 0; member < group->n; member++)
        TT_TRY(check_numbers(comm, blocks[member], "reduce-scatter, block"));
    c = collective_new(comm, group, tag);
    build_reduce_scatter(c, group, blocks, out, scratch, shard_bytes);
    *ret_collective = c;
out:
    return rc;
}

int tt_all_to_all_new(struct tt_comm *comm, const struct tt_group *group, int tag, const struct tt_segment_list *blocks,
                      int64_t block_bytes, void *receive, struct tt_collective **ret_collective)
{
    int n = group->n, me = group->index, rc = 0;
    struct tt_segment_list *lists = tt_segment_blocks(receive, n, block_bytes);
    struct tt_segment_list *cuts = repeat_list(blocks[me], n);
    struct tt_collective *c;

    TT_TRY(check_lists(group, blocks, block_bytes, "all-to-all"));
    c = collective_new(comm, group, tag);
    *ret_collective = c;
    if (block_bytes > 0) {
        add_stage(c);
        build_exchange(c, group, lists, cuts, blocks, blocks);
        add_work(c, lists[me], blocks[me], NULL);
    }
out:
    tt_free(lists);
    tt_free(cuts);
    return rc;
}

/* Cuts the values into n slices of slice_bytes; padding fills the last ones. The caller frees ret_items. */
static void cut_slices(const struct tt_group *group, struct tt_segment_list values, int64_t slice_bytes, char *padding,
                       struct tt_segment **ret_items, struct tt_segment_list *ret_slices)
{
    struct cursor from = {.list = values};
    struct tt_segment *items = NULL;
    int n_items = 0, cap_items = 0;

    for (int slice = 0; slice < group->n; slice++) {
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
    for (int slice = 0, first = 0; slice < group->n; first += ret_slices[slice].n, slice++)
        ret_slices[slice].items = items + first;
    *ret_items = items;
}

/* Bytes of the slice that each of n members sums. */
static int64_t slice_bytes_of(int n, int64_t bytes, int64_t number)
{
    return tt_div_up(bytes / number, n) * number;
}

int tt_all_reduce_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list values,
                      void *scratch, struct tt_collective **ret_collective)
{
    int64_t bytes = list_bytes(values), slice_bytes = slice_bytes_of(group->n, bytes, (int64_t)number_bytes(comm));
    struct tt_segment_list *slices;
    struct tt_segment *items;
    struct tt_collective *c;
    char *padding;
    int rc = 0;

    TT_TRY(check_numbers(comm, values, "all-reduce"));
    c = collective_new(comm, group, tag);
    *ret_collective = c;
    if (group->n == 1 || bytes == 0)
        goto out;
    padding = tt_calloc((size_t)(slice_bytes * group->n - bytes), 1);
    c->owned = padding;
    slices = tt_calloc((size_t)group->n, sizeof *slices);
    cut_slices(group, values, slice_bytes, padding, &items, slices);
    build_reduce_scatter(c, group, slices, slices[group->index], scratch, slice_bytes);
    build_all_gather(c, group, slices[group->index], slices);
    tt_free(items);
    tt_free(slices);
out:
    return rc;
}

int tt_transfer_new(struct tt_comm *comm, const struct tt_group *group, int member, int tag, bool send,
                    struct tt_segment_list values, struct tt_collective **ret_collective)
{
    struct tt_collective *c = collective_new(comm, group, tag);
    struct wire wire = wire_make(c, send, member, list_bytes(values), 1);

    add_stage(c);
    wire_add(&wire, values, values);
    *ret_collective = c;
    return 0;
}

int tt_swap_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_collective **ret_collective)
{
    *ret_collective = collective_new(comm, group, tag);
    (*ret_collective)->sent_bytes = &comm->routed_bytes;
    return 0;
}

int tt_swap_begin(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *give,
                  const struct tt_segment_list *take)
{
    /* replaces the stages of the previous exchange; allocates nothing if the sizes are the same */
    c->n_segments = c->n_messages = c->n_sinks = c->n_work = c->n_stages = 0;
    add_stage(c);
    build_exchange(c, group, take, take, give, give);
    return tt_collective_begin(c);
}

int64_t tt_instr_payload(const struct tt_instr *instr)
{
    const struct tt_collective_desc *desc = &instr->collective;

    if (!tt_collective_travels(desc) || desc->op == TT_RECEIVE)
        return 0;
    if (desc->op == TT_ALL_SUM)
        return (int64_t)2 * (desc->ranks - 1) *
               slice_bytes_of(desc->ranks, desc->bytes, tt_dtype_sum_bytes(desc->dtype));
    return desc->op == TT_SEND ? desc->bytes : (desc->ranks - 1) * desc->bytes;
}

int64_t tt_program_payload(const struct tt_program *program)
{
    int64_t bytes = 0;

    for (int i = 0; i < program->n_instrs; i++)
        bytes += tt_instr_payload(&program->instrs[i]);
    return bytes;
}

int64_t tt_collective_staging(const struct tt_collective_desc *desc)
{
    int n = desc->ranks;
    /* room for every leaf: build_direct needs it, and so does the executor to add bfloat16 */
    bool every_leaf = n & (n - 1) || desc->dtype == TT_BF16;

    if (!tt_collective_travels(desc) || (desc->op != TT_ALL_SUM && desc->op != TT_REDUCE_SCATTER))
        return 0;
    if (desc->op == TT_ALL_SUM)
        return (n & (n - 1) ? n : n / 2) * slice_bytes_of(n, desc->bytes, tt_dtype_sum_bytes(desc->dtype));
    return (every_leaf ? n : n / 2) * desc->bytes;
}
