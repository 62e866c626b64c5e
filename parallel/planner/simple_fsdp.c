/* SPDX-License-Identifier: MIT
 *
 * The planned scheduler: one walk over the positions of a step with its own clock. The clock has a lane that computes
 * and a lane that transfers, by the cost table. Memory is counted as the memory plan will count it. Before each node:
 *   gather what it reads and nothing has gathered; begin the next bucket if it fits until it is needed;
 *   wait for what the node reads; wait for reductions, oldest first, until its gradients fit
 * and after it: free what was read for the last time; begin the reduce-scatters of gradients that are complete, several
 * as one while the link is busy and memory allows.
 */
#include <string.h>

#include "core/base/mem.h"
#include "parallel/fsdp/update.h"
#include "parallel/planner/simple_walk.h"

/* --- sizes and times --- */

static bool travels(const struct tt_simple_walk *b, enum tt_purpose purpose, int unit)
{
    struct tt_collective_desc desc = tt_lowering_collective(b->in->lowering, purpose, unit, 0);

    return tt_collective_travels(&desc);
}

/* Units share a collective only if the same ranks share them. */
static bool same_ranks(const struct tt_simple_walk *b, int unit, int other)
{
    return b->u->layout->units[unit].shard_group == b->u->layout->units[other].shard_group;
}

/* Puts a transfer into its lane. Returns the time at which it ends. */
static double transfer(struct tt_simple_walk *b, enum tt_purpose purpose, int unit, int64_t elements)
{
    double begin = b->link_free > b->now ? b->link_free : b->now;
    double sec = tt_simple_transfer_sec(b, purpose, unit, elements);

    b->plan.calls += sec > 0.0;
    b->plan.comm_sec += sec;
    return b->link_free = begin + sec;
}

/* whole: [unit] its bytes. */
static void add_unit(const struct tt_simple_walk *b, struct tt_simple_units *to, int unit, const int64_t *whole)
{
    to->unit[to->n++] = unit;
    to->whole += whole[unit];
    to->elements += tt_simple_elements(b, to->purpose, &unit, 1);
}

static void occupy(struct tt_simple_walk *b, int pos, int64_t bytes)
{
    struct tt_plan *plan = &b->plan;
    int64_t all;

    b->live += bytes;
    all = tt_simple_other_bytes(b, pos) + b->live;
    plan->fits = plan->fits && tt_simple_fits(b, pos, b->live);
    if (all > plan->step_bytes) {
        plan->step_bytes = all;
        plan->exchanged_bytes = b->live;
    }
}

/* --- writing the schedule --- */

static struct tt_simple_handle handle_of(struct tt_simple_walk *b, const int *units, int n)
{
    return (struct tt_simple_handle){units[0], n == 1 ? TT_NONE : tt_schedule_bucket(&b->plan.schedule, units, n)};
}

static void begin(struct tt_simple_walk *b, enum tt_purpose purpose, int mb, struct tt_simple_handle units)
{
    tt_schedule_begin(&b->plan.schedule, purpose, mb, units.unit, units.bucket);
}

static void await(struct tt_simple_walk *b, enum tt_purpose purpose, int mb, struct tt_simple_handle units)
{
    tt_schedule_wait(&b->plan.schedule, purpose, mb, units.unit, units.bucket);
}

static const int *units_of(const struct tt_simple_walk *b, const struct tt_simple_handle *units, int *ret_n)
{
    *ret_n = units->bucket == TT_NONE ? 1 : b->plan.schedule.buckets[units->bucket].n;
    return units->bucket == TT_NONE ? &units->unit : b->plan.schedule.buckets[units->bucket].units;
}

static void fly(struct tt_simple_walk *b, int pos, struct tt_simple_flight flight)
{
    TT_PUSH(b->flights, b->n_flights, b->cap_flights) = flight;
    occupy(b, pos, flight.bytes);
}

/* The sum of a shared gradient waits for another rank, which may still wait for this one, so its norm comes last. */
static void add_norm(struct tt_simple_walk *b, int unit)
{
    if (b->u->layout->units[unit].shared_grad == TT_NONE)
        tt_schedule_add(&b->plan.schedule, TT_NORM, unit);
}

static void add_last_norms(struct tt_simple_walk *b)
{
    for (int u = 0; u < b->u->layout->n_units; u++)
        if (b->u->layout->units[u].shared_grad != TT_NONE)
            tt_schedule_add(&b->plan.schedule, TT_NORM, u);
}

/* The sums of these units are complete on this rank. Next comes the all-reduce over replicas, or the norm. */
static void finish_sum(struct tt_simple_walk *b, int pos, struct tt_simple_handle handle)
{
    int n;
    const int *units = units_of(b, &handle, &n);

    if (travels(b, TT_ALL_REDUCE, units[0])) {
        int64_t elements = tt_simple_elements(b, TT_ALL_REDUCE, units, n);

        begin(b, TT_ALL_REDUCE, 0, handle);
        fly(b, pos,
            (struct tt_simple_flight){.units = handle,
                                      .all_reduce = true,
                                      .bytes = tt_simple_staging_bytes(b, TT_ALL_REDUCE, units[0], elements),
                                      .end = transfer(b, TT_ALL_REDUCE, units[0], elements)});
        return;
    }
    for (int i = 0; i < n; i++)
        add_norm(b, units[i]);
}

static void wait_oldest(struct tt_simple_walk *b, int pos)
{
    const struct tt_simple_flight flight = b->flights[b->head++];
    int n, n_summed = 0;
    const int *units = units_of(b, &flight.units, &n);

    await(b, flight.all_reduce ? TT_ALL_REDUCE : TT_REDUCE, flight.microbatch, flight.units);
    if (flight.end > b->now)
        b->now = flight.end;
    b->live -= flight.bytes;
    for (int i = 0; i < n && flight.all_reduce; i++)
        add_norm(b, units[i]);
    for (int i = 0; i < n && !flight.all_reduce; i++) {
        b->flying[units[i]]--;
        if (--b->awaited[units[i]] == 0)
            b->summed[n_summed++] = units[i];
    }
    if (n_summed)
        finish_sum(b, pos, n_summed == n ? flight.units : handle_of(b, b->summed, n_summed));
}

/* Waits for reductions until so many more bytes fit at pos, or none is left. */
static void make_room(struct tt_simple_walk *b, int pos, int64_t bytes)
{
    while (!tt_simple_fits(b, pos, b->live + bytes) && b->head < b->n_flights)
        wait_oldest(b, pos);
}

/* Seconds of compute between two positions. */
static double compute_between(const struct tt_simple_walk *b, int pos, int until)
{
    return b->facts->begin_sec[until] - b->facts->begin_sec[pos];
}

/* --- gathers --- */

static enum tt_purpose gather_purpose(const struct tt_gather *gather)
{
    return gather->from_kept ? TT_UNSHARD_KEPT : TT_UNSHARD;
}

/* Whether the next gather may join those in b->joined. */
static bool may_join(struct tt_simple_walk *b, int pos, bool needed_now)
{
    const struct tt_simple_units *joined = &b->joined;
    int at = b->next_gather + joined->n;
    const struct tt_gather *g = &b->gathers.items[at];
    int64_t bytes = joined->whole + b->facts->unit_bytes[g->unit];

    if (b->in_joined[g->unit])
        return false;
    if (g->previous != TT_NONE && b->gathers.items[g->previous].last >= pos)
        return false;
    if (joined->n > 0 && (bytes > b->candidate.bucket_bytes || !same_ranks(b, joined->unit[0], g->unit) ||
                          g->from_kept != b->gathers.items[b->next_gather].from_kept))
        return false;
    if (joined->n > 0 && b->candidate.within_compute) {
        double busy = b->link_free > b->now ? b->link_free - b->now : 0.0;
        enum tt_purpose purpose = gather_purpose(g);
        double sec = tt_simple_transfer_sec(b, purpose, joined->unit[0], joined->elements) +
                     tt_simple_transfer_sec(b, purpose, g->unit, tt_simple_elements(b, purpose, &g->unit, 1));

        if (busy + sec > compute_between(b, pos, b->gathers.items[b->next_gather].first))
            return false;
    }
    return (needed_now && joined->n == 0) || tt_simple_fits_until(b, pos, g->first, bytes, at + 1);
}

/* Begins the next bucket of gathers, as large as rules and memory allow. Returns false if not even one unit fits. */
static bool begin_gather(struct tt_simple_walk *b, int pos, bool needed_now)
{
    const struct tt_gather *next = &b->gathers.items[b->next_gather];
    struct tt_simple_units *joined = &b->joined;
    struct tt_simple_handle handle;

    tt_simple_clear_units(joined, b->next_gather < b->gathers.n ? gather_purpose(next) : TT_UNSHARD);
    while (b->next_gather + joined->n < b->gathers.n && may_join(b, pos, needed_now)) {
        b->in_joined[next[joined->n].unit] = true;
        add_unit(b, joined, next[joined->n].unit, b->facts->unit_bytes);
    }
    for (int i = 0; i < joined->n; i++)
        b->in_joined[joined->unit[i]] = false;
    if (joined->n == 0)
        return false;
    make_room(b, pos, joined->whole);
    handle = handle_of(b, joined->unit, joined->n);
    begin(b, TT_UNSHARD, 0, handle);
    TT_PUSH(b->buckets, b->n_buckets, b->cap_buckets) = (struct tt_simple_bucket){
        handle, b->next_gather, joined->n, transfer(b, joined->purpose, joined->unit[0], joined->elements)};
    b->next_gather += joined->n;
    occupy(b, pos, joined->whole);
    return true;
}

static bool needs_at(const struct tt_simple_walk *b, int gather, int pos)
{
    return gather < b->gathers.n && b->gathers.items[gather].first == pos;
}

static void gather_for(struct tt_simple_walk *b, int pos)
{
    int begun = b->waited; /* buckets whose use begins at pos or before */

    while (needs_at(b, b->next_gather, pos))
        (void)begin_gather(b, pos, true);
    while (begun < b->n_buckets && b->gathers.items[b->buckets[begun].first].first <= pos)
        begun++;
    while (b->n_buckets - begun < b->in->prefetch && begin_gather(b, pos, false))
        ;
    for (; b->waited < begun; b->waited++) {
        await(b, TT_UNSHARD, 0, b->buckets[b->waited].units);
        if (b->buckets[b->waited].end > b->now)
            b->now = b->buckets[b->waited].end;
    }
}

static void release_after(struct tt_simple_walk *b, int pos)
{
    const struct tt_gather_list *list = &b->gathers;

    for (; b->next_release < list->n_releases && list->releases[b->next_release].pos <= pos; b->next_release++) {
        const struct tt_release *r = &list->releases[b->next_release];
        bool last = b->next_release + 1 == list->n_releases || r[1].pos != r->pos || r[1].gather != r->gather;

        b->live -= r->bytes;
        if (last && r->pos == list->items[r->gather].last)
            tt_schedule_add(&b->plan.schedule, list->items[r->gather].keeps ? TT_KEEP : TT_RESHARD,
                            list->items[r->gather].unit);
    }
}

/* --- reduces --- */

static void reduce_pending(struct tt_simple_walk *b, int pos)
{
    struct tt_simple_units *pending = &b->pending;
    int mb = b->u->positions[pos].microbatch;
    bool reduces;
    int64_t staging;
    struct tt_simple_handle handle;

    if (pending->n == 0)
        return;
    reduces = travels(b, TT_REDUCE, pending->unit[0]);
    staging = tt_simple_staging_bytes(b, TT_REDUCE, pending->unit[0], pending->elements);
    for (int i = 0; i < pending->n; i++)
        while (b->flying[pending->unit[i]])
            wait_oldest(b, pos);
    make_room(b, pos + 1, staging);
    handle = handle_of(b, pending->unit, pending->n);
    begin(b, TT_REDUCE, mb, handle);
    fly(b, pos + 1,
        (struct tt_simple_flight){.units = handle,
                                  .microbatch = mb,
                                  .bytes = staging,
                                  .end = transfer(b, TT_REDUCE, pending->unit[0], pending->elements)});
    b->flights[b->n_flights - 1].bytes += pending->whole; /* these already live */
    for (int i = 0; i < pending->n; i++)
        b->flying[pending->unit[i]]++;
    tt_simple_clear_units(pending, TT_REDUCE);
    while (!reduces && b->head < b->n_flights && !b->flights[b->head].all_reduce)
        wait_oldest(b, pos); /* nothing travels, so the gradients are the sums */
}

/* Whether complete gradients should wait and be reduced together with the next ones of the microbatch. */
static bool worth_holding(struct tt_simple_walk *b, int pos, const struct tt_complete *complete)
{
    const struct tt_usage *u = b->u;
    const struct tt_complete *next = complete + 1;

    if (next == u->complete + u->n_complete || !next->reduces || !travels(b, TT_REDUCE, next->unit) ||
        !same_ranks(b, b->pending.unit[0], next->unit) ||
        u->positions[next->pos].microbatch != u->positions[pos].microbatch)
        return false;
    if (b->pending.whole + b->facts->unit_grad_bytes[next->unit] > b->candidate.bucket_bytes)
        return false;
    if (b->candidate.within_compute && b->link_free <= b->now)
        return false;
    return tt_simple_fits_until(
        b, pos + 1, next->pos + 1,
        tt_simple_staging_bytes(b, TT_REDUCE, b->pending.unit[0],
                                b->pending.elements + tt_simple_elements(b, TT_REDUCE, &next->unit, 1)),
        b->next_gather);
}

static void reduce_after(struct tt_simple_walk *b, int pos)
{
    for (int c = b->u->complete_from[pos]; c < b->u->complete_from[pos + 1]; c++) {
        const struct tt_complete *complete = &b->u->complete[c];

        if (complete->adds)
            tt_schedule_add_gradients(&b->plan.schedule, b->u->positions[pos].microbatch, complete->unit);
        b->live -= complete->frees * b->facts->unit_grad_bytes[complete->unit];
        if (!complete->reduces)
            continue;
        add_unit(b, &b->pending, complete->unit, b->facts->unit_grad_bytes);
        if (!worth_holding(b, pos, complete))
            reduce_pending(b, pos);
    }
}

/* --- the walk --- */

static void walk(struct tt_simple_walk *b)
{
    int crossing = 0;

    for (int pos = 0; pos < b->u->n_positions; pos++) {
        const struct tt_position *at = &b->u->positions[pos];

        crossing = tt_crossings_add(&b->u->crossings, crossing, at->turn, &b->plan.schedule);
        gather_for(b, pos);
        make_room(b, pos, b->facts->grad_bytes[pos]);
        occupy(b, pos, b->facts->grad_bytes[pos]);
        tt_schedule_run(&b->plan.schedule, b->u->stages, at->microbatch, at->stage, at->node);
        b->now += b->facts->node_sec[pos];
        release_after(b, pos);
        reduce_after(b, pos);
    }
    (void)tt_crossings_add(&b->u->crossings, crossing, b->u->order->n, &b->plan.schedule);
    while (b->head < b->n_flights)
        wait_oldest(b, b->u->n_positions);
    add_last_norms(b);
    tt_fsdp_update(b->u->layout, &b->plan.schedule);
}

struct tt_plan tt_simple_fsdp_plan(const struct tt_simple_fsdp *fsdp, struct tt_candidate candidate)
{
    struct tt_simple_walk b = {.in = fsdp, .u = fsdp->facts->usage, .facts = fsdp->facts, .candidate = candidate};

    b.plan.fits = true;
    b.gathers = tt_gathers_make(b.u, b.facts->param_bytes, candidate.reshard, candidate.stay);
    tt_simple_begin(&b);
    walk(&b);
    b.plan.step_sec = b.now;
    tt_simple_end(&b);
    return b.plan;
}

void tt_plan_release(struct tt_plan *plan)
{
    tt_schedule_release(&plan->schedule);
}
