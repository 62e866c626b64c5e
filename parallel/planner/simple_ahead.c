/* SPDX-License-Identifier: MIT
 *
 * What the planned scheduler computes before its walk, and how it looks ahead: what fits, and until when.
 */
#include "core/base/mem.h"
#include "parallel/planner/simple_walk.h"

/* --- sizes and times --- */

int64_t tt_simple_elements(const struct tt_simple_walk *b, enum tt_purpose purpose, const int *units, int n)
{
    int64_t elements = 0;

    for (int i = 0; i < n; i++)
        elements += tt_purpose_elements(&b->u->layout->units[units[i]], purpose);
    return elements;
}

int64_t tt_simple_staging_bytes(const struct tt_simple_walk *b, enum tt_purpose purpose, int unit, int64_t elements)
{
    struct tt_collective_desc desc = tt_lowering_collective(b->in->lowering, purpose, unit, elements);

    return b->in->lowering->staging(&desc);
}

double tt_simple_transfer_sec(const struct tt_simple_walk *b, enum tt_purpose purpose, int unit, int64_t elements)
{
    struct tt_collective_desc desc = tt_lowering_collective(b->in->lowering, purpose, unit, elements);

    return tt_cost_collective_sec(b->in->machine, desc.op, desc.ranks, desc.bytes);
}

void tt_simple_clear_units(struct tt_simple_units *units, enum tt_purpose purpose)
{
    *units = (struct tt_simple_units){.purpose = purpose, .unit = units->unit};
}

int64_t tt_simple_other_bytes(const struct tt_simple_walk *b, int pos)
{
    int last = b->u->n_positions - 1;

    return b->facts->other_bytes[pos < last ? pos : last];
}

static bool fits_beside(const struct tt_simple_walk *b, int64_t other, int64_t exchanged)
{
    int64_t all = other + exchanged;

    return all <= b->candidate.limits.slack_bytes ||
           (all <= b->candidate.limits.step_bytes && exchanged <= b->candidate.limits.exchanged_bytes);
}

bool tt_simple_fits(const struct tt_simple_walk *b, int pos, int64_t exchanged)
{
    return fits_beside(b, tt_simple_other_bytes(b, pos), exchanged);
}

/* --- looking ahead --- */

/* The state that looking ahead changes: copies of the clock and of what is under way. */
struct outlook {
    int64_t live;
    double now, link_free;
    int head, release, n_ahead, next_ahead;
};

static void free_what_is_done(const struct tt_simple_walk *b, struct outlook *o, int pos)
{
    while (!tt_simple_fits(b, pos, o->live)) {
        if (o->head < b->n_flights) {
            if (!b->candidate.expects_waits && b->flights[o->head].end > o->now)
                return;
            o->live -= b->flights[o->head++].bytes;
        } else if (o->next_ahead < o->n_ahead) {
            if (!b->candidate.expects_waits && b->ahead_end[o->next_ahead] > o->now)
                return;
            o->live -= b->ahead[o->next_ahead++];
        } else {
            return;
        }
    }
}

/* After a position, the gradients that it completed are added, and the reductions of complete blocks begin. */
static void expect_reduces(const struct tt_simple_walk *b, struct outlook *o, int pos)
{
    for (int c = b->u->complete_from[pos]; c < b->u->complete_from[pos + 1]; c++) {
        int unit = b->u->complete[c].unit;

        o->live -= b->u->complete[c].frees * b->facts->unit_grad_bytes[unit];
        if (!b->u->complete[c].reduces)
            continue;
        if (o->n_ahead == b->u->layout->n_units)
            return;
        if (o->now > o->link_free)
            o->link_free = o->now;
        o->link_free += b->reduce_sec[unit];
        b->ahead[o->n_ahead] = b->facts->unit_grad_bytes[unit] + b->staging[unit];
        b->ahead_end[o->n_ahead++] = o->link_free;
        o->live += b->staging[unit];
    }
}

/* The bytes of exchange that begin to live from pos until just before `until`, if nothing is freed. */
static int64_t growth(const struct tt_simple_walk *b, int pos, int until)
{
    return b->grows[until] - b->grows[pos];
}

bool tt_simple_fits_until(struct tt_simple_walk *b, int pos, int until, int64_t bytes, int gathers)
{
    const struct tt_gather_list *list = &b->gathers;
    struct outlook o = {b->live + bytes, b->now, b->link_free, b->head, b->next_release, 0, 0};

    if (pos >= until || fits_beside(b, tt_ceiling_most(b->other, pos, until), o.live + growth(b, pos, until)))
        return true; /* it fits even if nothing is freed; otherwise the positions must be visited */
    for (int q = pos; q < until; q++) {
        b->plan.looked++;
        o.live += b->facts->grad_bytes[q];
        free_what_is_done(b, &o, q);
        if (!tt_simple_fits(b, q, o.live))
            return false;
        o.now += b->facts->node_sec[q];
        for (; o.release < list->n_releases && list->releases[o.release].pos <= q; o.release++)
            if (list->releases[o.release].gather < gathers)
                o.live -= list->releases[o.release].bytes;
        expect_reduces(b, &o, q);
    }
    return true;
}

/* --- begin and end --- */

void tt_simple_begin(struct tt_simple_walk *b)
{
    size_t n_units = (size_t)b->u->layout->n_units;

    b->pending.unit = tt_calloc(n_units + 1, sizeof *b->pending.unit);
    b->joined.unit = tt_calloc(n_units + 1, sizeof *b->joined.unit);
    b->in_joined = tt_calloc(n_units + 1, sizeof *b->in_joined);
    b->flying = tt_calloc(n_units + 1, sizeof *b->flying);
    b->awaited = tt_calloc(n_units + 1, sizeof *b->awaited);
    b->summed = tt_calloc(n_units + 1, sizeof *b->summed);
    for (int c = 0; c < b->u->n_complete; c++)
        b->awaited[b->u->complete[c].unit] += b->u->complete[c].reduces;
    b->staging = tt_calloc(n_units + 1, sizeof *b->staging);
    b->reduce_sec = tt_calloc(n_units + 1, sizeof *b->reduce_sec);
    b->ahead = tt_calloc(n_units + 1, sizeof *b->ahead);
    b->ahead_end = tt_calloc(n_units + 1, sizeof *b->ahead_end);
    tt_simple_clear_units(&b->pending, TT_REDUCE);
    for (int u = 0; u < b->u->layout->n_units; u++) {
        int64_t elements = tt_simple_elements(b, TT_REDUCE, &u, 1);

        b->staging[u] = tt_simple_staging_bytes(b, TT_REDUCE, u, elements);
        b->reduce_sec[u] = tt_simple_transfer_sec(b, TT_REDUCE, u, elements);
    }
    b->other = tt_ceiling_new(b->facts->other_bytes, b->u->n_positions);
    b->grows = tt_calloc((size_t)b->u->n_positions + 1, sizeof *b->grows);
    for (int pos = 0; pos < b->u->n_positions; pos++) {
        b->grows[pos + 1] = b->grows[pos] + b->facts->grad_bytes[pos];
        for (int c = b->u->complete_from[pos]; c < b->u->complete_from[pos + 1]; c++)
            b->grows[pos + 1] += b->u->complete[c].reduces ? b->staging[b->u->complete[c].unit] : 0;
    }
}

void tt_simple_end(struct tt_simple_walk *b)
{
    tt_gather_list_release(&b->gathers);
    tt_free(b->buckets);
    tt_free(b->flights);
    tt_free(b->pending.unit);
    tt_free(b->joined.unit);
    tt_free(b->in_joined);
    tt_free(b->flying);
    tt_free(b->awaited);
    tt_free(b->summed);
    tt_free(b->staging);
    tt_free(b->reduce_sec);
    tt_free(b->ahead);
    tt_free(b->ahead_end);
    tt_ceiling_free(b->other);
    tt_free(b->grows);
}
