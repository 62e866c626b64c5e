/* SPDX-License-Identifier: MIT
 *
 * The machine that runs every collective, and the functions that put one together; see stages.h.
 */
#include "parallel/stages.h"

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
    int *ranks; /* of the group, own copy */
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
    void *owned; /* see tt_stages_own */
};

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
    c->ranks = tt_calloc((size_t)group->n, sizeof *c->ranks);
    memcpy(c->ranks, group->ranks, (size_t)group->n * sizeof *c->ranks);
    return c;
}

void tt_stages_add(struct tt_collective *c)
{
    TT_PUSH(c->stages, c->n_stages, c->cap_stages) =
        (struct stage){.first_message = c->n_messages, .first_work = c->n_work};
}

/* Opens a message of the last stage; segments are added to it next. */
static void add_message(struct tt_collective *c, bool send, int member)
{
    TT_PUSH(c->messages, c->n_messages, c->cap_messages) =
        (struct message){.send = send, .peer = c->ranks[member], .first_segment = c->n_segments};
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

void tt_wire_add(struct tt_wire *wire, struct tt_segment_list data, struct tt_segment_list cut)
{
    struct tt_cursor from = {.list = data};
    size_t room;

    for (int i = 0; i < cut.n; i++) {
        size_t left = cut.items[i].bytes;

        if (left == 0)
            continue;
        if (left >= LARGE_PIECE_BYTES || !wire->open)
            add_message(wire->collective, wire->send, wire->member);
        wire->open = left < LARGE_PIECE_BYTES;
        for (; left > 0; left -= room, from.offset += room) {
            room = tt_cursor_room(&from);
            room = room < left ? room : left;
            add_segment(wire->collective, tt_cursor_data(&from), (int64_t)room);
        }
    }
}

void tt_stages_add_work(struct tt_collective *c, struct tt_segment_list into, struct tt_segment_list a, const char *b)
{
    struct tt_cursor to = {.list = into}, from = {.list = a};
    size_t room_to, room_from;

    while ((room_to = tt_cursor_room(&to)) && (room_from = tt_cursor_room(&from))) {
        size_t bytes = room_to < room_from ? room_to : room_from;
        struct work work = {tt_cursor_data(&to), tt_cursor_data(&from), b, (int64_t)bytes};

        if (b || work.into != work.a) { /* a copy onto itself is none */
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
