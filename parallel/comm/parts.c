/* SPDX-License-Identifier: MIT
 *
 * Transfers in parts; see parts.h.
 */
#include "parallel/comm/parts.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/math/round.h"

/* The first transfer before `end` with the same peer, tag and direction whose parts are not all posted. */
static const struct tt_parted *ahead(const struct tt_parts *parts, const struct tt_parted *end, int peer, int tag,
                                     bool send)
{
    const struct tt_parted *t = parts->first;

    while (t != end && !(t->peer == peer && t->tag == tag && t->send == send))
        t = t->next;
    return t == end ? NULL : t;
}

bool tt_parts_takes(const struct tt_parts *parts, size_t bytes, int peer, int tag, bool send)
{
    return bytes > TT_PART_BYTES || ahead(parts, NULL, peer, tag, send);
}

static struct tt_parted *parted_new(struct tt_parts *parts)
{
    struct tt_parted *t = parts->unused;

    if (!t)
        return tt_calloc(1, sizeof *t);
    parts->unused = t->next;
    *t = (struct tt_parted){.segments = t->segments, .cap = t->cap};
    return t;
}

static void copy_segments(struct tt_parted *t, const struct tt_segment *segments, int n)
{
    if (n > t->cap) {
        t->segments = tt_realloc(t->segments, (size_t)n, sizeof *t->segments);
        t->cap = n;
    }
    t->n = n;
    for (int i = 0; i < n; i++) {
        t->segments[i] = segments[i];
        t->bytes += segments[i].bytes;
    }
    t->n_parts = t->bytes > TT_PART_BYTES ? (int)tt_div_up((int64_t)t->bytes, TT_PART_BYTES) : 1;
}

/* Puts the segments of the next part into parts->scratch; returns their number. */
static int cut(struct tt_parts *parts, struct tt_parted *t)
{
    size_t left = TT_PART_BYTES;
    int n = 0;

    while (t->segment < t->n && left > 0) {
        const struct tt_segment *s = &t->segments[t->segment];
        size_t bytes = s->bytes - t->done < left ? s->bytes - t->done : left;

        if (bytes > 0)
            TT_PUSH(parts->scratch, n, parts->cap) = (struct tt_segment){(char *)s->data + t->done, bytes};
        left -= bytes;
        t->done += bytes;
        if (t->done == s->bytes) {
            t->segment++;
            t->done = 0;
        }
    }
    return n;
}

static int post(struct tt_parts *parts, struct tt_parted *t)
{
    int rc = 0;

    while (t->ready && t->n_posted < t->n_parts && t->n_under_way < TT_PARTS_AT_ONCE) {
        int n = cut(parts, t);

        TT_TRY(parts->post(parts->ctx, parts->scratch, n, t));
        t->n_posted++;
        t->n_under_way++;
    }
out:
    return rc;
}

int tt_parts_feed(struct tt_parts *parts)
{
    struct tt_parted **link = &parts->first;
    int rc = 0;

    while (*link) {
        struct tt_parted *t = *link;

        if (!ahead(parts, t, t->peer, t->tag, t->send))
            TT_TRY(post(parts, t));
        if (t->n_posted == t->n_parts)
            *link = t->next;
        else
            link = &t->next;
    }
out:
    return rc;
}

int tt_parts_begin(struct tt_parts *parts, const struct tt_segment *segments, int n, int peer, int tag, bool send,
                   struct tt_parted **ret_parted)
{
    struct tt_parted *t = parted_new(parts), **link = &parts->first;
    int rc = 0;

    t->peer = peer;
    t->tag = tag;
    t->send = send;
    copy_segments(t, segments, n);
    while (*link)
        link = &(*link)->next;
    *link = t;
    t->next = NULL;
    *ret_parted = t;
    t->ready = !send || t->n_parts == 1;
    t->wanted = send ? 0 : (int64_t)t->bytes;
    if (t->n_parts > 1) {
        TT_TRY(parts->post_ready(parts->ctx, t));
        t->n_under_way++;
    }
    rc = tt_parts_feed(parts);
out:
    return rc;
}

void tt_parts_end(struct tt_parted *t, int rc)
{
    t->n_under_way--;
    if (rc >= 0 || t->rc < 0)
        return;
    t->rc = rc;
    t->message = tt_strdup(tt_error_message());
}

void tt_parts_ready(struct tt_parted *t, int rc)
{
    if (rc >= 0 && t->send && t->wanted != (int64_t)t->bytes)
        rc = tt_fail(TT_EINTERNAL, "message to rank %d, tag %d: %zu bytes sent, %lld expected", t->peer, t->tag,
                     t->bytes, (long long)t->wanted);
    t->ready = rc >= 0;
    tt_parts_end(t, rc);
}

/* A failed transfer may have other parts under way, so it is not reused; the job is about to end. */
int tt_parts_test(struct tt_parts *parts, struct tt_parted *t, bool *ret_done)
{
    *ret_done = t->rc < 0 || (t->n_posted == t->n_parts && t->n_under_way == 0);
    if (t->rc < 0)
        return tt_fail(t->rc, "%s", t->message);
    if (*ret_done) {
        t->next = parts->unused;
        parts->unused = t;
    }
    return 0;
}

void tt_parts_release(struct tt_parts *parts)
{
    while (parts->unused) {
        struct tt_parted *t = parts->unused;

        parts->unused = t->next;
        tt_free(t->segments);
        tt_free(t);
    }
    tt_free(parts->scratch);
}
