/* SPDX-License-Identifier: MIT
 *
 * Runs collectives, and has the functions that build them; see stages.h.
 */
#include "parallel/comm/stages.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/math/tree.h"
#include "parallel/comm/pull.h"

/*
 * LARGE_PIECE_BYTES: pieces of at least this size are messages of their own. MOST_EAGER: full messages
 * (tt_comm.eager_bytes) that may be sent to a member at once without a handshake. A member that is late must keep
 * them outside of the arena.
 */
enum { LARGE_PIECE_BYTES = 16384, MOST_EAGER = 16 };

/* The state of a message that the receiver reads (pull.h). A sender stays in OFFERED until the receipt arrives. */
enum read_state { OFFERED, READING, RECEIVED };

struct message {
    bool send;
    bool read; /* by the receiver: only the offer and the receipt are sent */
    int peer;  /* rank of the job */
    int first_segment, n_segments;
    int first_sink; /* of a message that is received by reading */
    int64_t bytes;
    struct tt_request request; /* of the message or of the offer */
    struct tt_request receipt;
    enum read_state state;
    char receipt_byte;
    struct tt_pull pull; /* a sender uses only the offer in it */
};

/* into = a + b, or into = a if b is NULL; count in bytes, whole floats for additions. */
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
    void *owned; /* see tt_stages_own */
    int64_t *sent_bytes;
};

/* The offer and the receipt have the collective's tag, since nothing follows an offer until its receipt. */
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

static int post_message(struct tt_collective *c, struct message *m)
{
    const struct tt_segment *segments = &c->segments[m->first_segment];
    struct tt_comm *comm = c->comm;
    int rc;

    if (m->read)
        rc = post_read(c, m);
    else if (m->send)
        rc = comm->ops->send_begin(comm, segments, m->n_segments, m->peer, c->tag, &m->request);
    else
        rc = comm->ops->recv_begin(comm, segments, m->n_segments, m->peer, c->tag, &m->request);
    if (rc == 0 && m->send)
        *c->sent_bytes += m->bytes;
    return rc;
}

static int post_stage(struct tt_collective *c)
{
    const struct stage *stage = &c->stages[c->current];
    int rc = 0;

    for (int i = stage->first_message; i < stage->first_message + stage->n_messages; i++)
        TT_TRY(post_message(c, &c->messages[i]));
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

/* Reads at most one batch, and none if `has_read` says that this call has already read one. Sends the
 * receipt at the end. */
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

static int test_message(struct tt_collective *c, struct message *m, bool *has_read, bool *ret_done)
{
    struct tt_comm *comm = c->comm;
    bool sent = false;
    int rc = 0;

    if (m->read && !m->send)
        return test_reading(c, m, has_read, ret_done);
    TT_TRY(comm->ops->test(comm, &m->request, &sent));
    TT_TRY(comm->ops->test(comm, &m->receipt, ret_done)); /* done at once if there is none */
    *ret_done = *ret_done && sent;
out:
    return rc;
}

/* The first message of the current stage that is not complete, or NULL. Tests all of them, since a test may read
 * data. */
static int pending_message(struct tt_collective *c, struct message **ret_pending)
{
    const struct stage *stage = &c->stages[c->current];
    struct message *pending = NULL;
    bool has_read = false;
    int rc = 0;

    for (int i = stage->first_message; i < stage->first_message + stage->n_messages; i++) {
        struct message *m = &c->messages[i];
        bool done = false;

        TT_TRY(test_message(c, m, &has_read, &done));
        if (!done && !pending)
            pending = m;
    }
    *ret_pending = pending;
out:
    return rc;
}

/* Advances as far as it can; the pending message is NULL when the collective is complete. */
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

struct tt_collective *tt_stages_new(struct tt_comm *comm, const struct tt_group *group, int tag)
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

void tt_stages_clear(struct tt_collective *c)
{
    c->n_segments = c->n_messages = c->n_sinks = c->n_work = c->n_stages = 0;
}

void tt_stages_count(struct tt_collective *c, int64_t *sent_bytes)
{
    c->sent_bytes = sent_bytes;
}

void tt_stages_add(struct tt_collective *c)
{
    TT_PUSH(c->stages, c->n_stages, c->cap_stages) =
        (struct stage){.first_message = c->n_messages, .first_work = c->n_work};
}

/* Adds an empty message to the last stage; segments are added to it next. */
static void add_message(struct tt_collective *c, const struct tt_wire *wire)
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

/* Adds a segment to the last message, or extends its last segment if this one follows it in memory. */
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

size_t tt_cursor_room(struct tt_cursor *cursor)
{
    while (cursor->item < cursor->list.n && cursor->offset == cursor->list.items[cursor->item].bytes) {
        cursor->item++;
        cursor->offset = 0;
    }
    return cursor->item < cursor->list.n ? cursor->list.items[cursor->item].bytes - cursor->offset : 0;
}

char *tt_cursor_data(const struct tt_cursor *cursor)
{
    return (char *)cursor->list.items[cursor->item].data + cursor->offset;
}

/* Cuts a wire of moderate size into messages that need no handshake. A large one has long messages, each with one
 * handshake (parts.h). */
static void choose_cuts(struct tt_wire *wire, int64_t eager_bytes, int64_t incoming)
{
    wire->large_bytes = LARGE_PIECE_BYTES;
    wire->message_bytes = INT64_MAX;
    if (eager_bytes && incoming <= MOST_EAGER * eager_bytes)
        wire->message_bytes = eager_bytes;
    else if (eager_bytes)
        wire->large_bytes = eager_bytes + 1;
}

struct tt_wire tt_wire_make(struct tt_collective *c, bool send, int member, int64_t bytes, int senders)
{
    const struct tt_comm *comm = c->comm;
    struct tt_wire wire = {.collective = c, .send = send, .member = member};

    wire.read = comm->reachable && comm->reachable[c->ranks[member]] && comm->read_bytes && bytes >= comm->read_bytes;
    choose_cuts(&wire, comm->eager_bytes, senders * bytes);
    return wire;
}

static void add_list(struct tt_collective *c, struct tt_cursor *from, size_t bytes)
{
    size_t room;

    for (; bytes > 0; bytes -= room, from->offset += room) {
        room = tt_cursor_room(from);
        room = room < bytes ? room : bytes;
        add_segment(c, tt_cursor_data(from), (int64_t)room);
    }
}

/* Adds data to the one message of a wire that is read. */
static void add_read(struct tt_wire *wire, struct tt_segment_list data, struct tt_segment_list a, char *through)
{
    struct tt_collective *c = wire->collective;
    struct tt_cursor to = {.list = data}, from = {.list = a};
    struct message *m;
    size_t room;

    if (!wire->open)
        add_message(c, wire);
    wire->open = true;
    m = &c->messages[c->n_messages - 1];
    if (wire->send) {
        add_list(c, &to, (size_t)tt_segment_list_bytes(data));
        return;
    }
    if (!m->pull.through)
        m->pull.through = through;
    for (; (room = tt_cursor_room(&to)); to.offset += room, from.offset += room) {
        size_t room_a = a.n ? tt_cursor_room(&from) : room;

        room = room < room_a ? room : room_a;
        TT_PUSH(c->sinks, c->n_sinks, c->cap_sinks) =
            (struct tt_sink){tt_cursor_data(&to), a.n ? tt_cursor_data(&from) : NULL, (int64_t)room};
        m->bytes += (int64_t)room;
    }
    m->pull.bytes = m->bytes;
}

void tt_wire_add(struct tt_wire *wire, struct tt_segment_list data, struct tt_segment_list cut)
{
    struct tt_collective *c = wire->collective;
    struct tt_cursor from = {.list = data};

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

void tt_wire_add_sum(struct tt_wire *wire, struct tt_segment_list into, struct tt_segment_list a, char *received)
{
    struct tt_segment place = {received, (size_t)tt_segment_list_bytes(a)};

    if (wire->read) {
        add_read(wire, into, a, received);
        return;
    }
    tt_wire_add(wire, (struct tt_segment_list){&place, 1}, a);
    tt_stages_add_work(wire->collective, into, a, received);
}

void tt_stages_add_work(struct tt_collective *c, struct tt_segment_list into, struct tt_segment_list a, const char *b)
{
    struct tt_cursor to = {.list = into}, from = {.list = a};
    size_t room_to, room_from;

    while ((room_to = tt_cursor_room(&to)) && (room_from = tt_cursor_room(&from))) {
        size_t bytes = room_to < room_from ? room_to : room_from;
        struct work work = {tt_cursor_data(&to), tt_cursor_data(&from), b, (int64_t)bytes};

        if (b || work.into != work.a) { /* nothing to do for a copy onto itself */
            TT_PUSH(c->work, c->n_work, c->cap_work) = work;
            c->stages[c->n_stages - 1].n_work++;
        }
        to.offset += bytes;
        from.offset += bytes;
        b = b ? b + bytes : NULL;
    }
}

int64_t tt_segment_list_bytes(struct tt_segment_list list)
{
    int64_t bytes = 0;

    for (int i = 0; i < list.n; i++)
        bytes += (int64_t)list.items[i].bytes;
    return bytes;
}

void tt_stages_own(struct tt_collective *c, void *memory)
{
    c->owned = memory;
}
