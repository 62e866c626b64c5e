/* SPDX-License-Identifier: MIT
 *
 * The planned scheduler: one walk over the positions of a step with a clock of its own. The clock has a lane that
 * computes and a lane that transfers, by the cost table; memory is counted as the memory plan will. Before each node:
 *   gather what it reads and nothing has gathered; begin the next bucket if it fits until it is needed; wait for what the
 *   node reads; wait for reduces, oldest first, until its gradients fit
 * and after it: free what was read for the last time; begin the reduce-scatters of gradients that are complete, several
 * as one while the link is busy and memory allows.
 */
#include "parallel/simple_fsdp.h"

#include <string.h>

#include "core/base/mem.h"

/* Units whose collectives are one, in the form in which schedules name them. */
struct handle {
    int unit;   /* the first */
    int bucket; /* TT_NONE: just the unit */
};

struct in_flight {
    struct handle units;
    bool all_reduce; /* else a reduce-scatter */
    int microbatch;
    int64_t bytes; /* free after its wait */
    double end;
};

struct gather_bucket {
    struct handle units;
    int first, n; /* gathers */
    double end;
};

struct builder {
    const struct tt_simple_fsdp *in;
    const struct tt_usage *u;
    const struct tt_plan_choice *choice;
    struct tt_schedule *schedule;
    struct tt_gather_list gathers;
    struct gather_bucket *buckets;
    int n_buckets, cap_buckets;
    int waited;      /* buckets waited for */
    int next_gather; /* first that is not begun */
    int next_release;
    struct in_flight *flights; /* begun reduces, in order; [head, n_flights) are not waited for */
    int head, n_flights, cap_flights;
    int *pending; /* units whose gradients are complete and not yet being reduced */
    int n_pending;
    int *scratch;   /* [n_units] */
    int64_t *ahead; /* [n_units + 1] for looking ahead: what virtual reduces would free, and when */
    double *ahead_end;
    int64_t live; /* exchanged bytes */
    double now, link_free;
    struct tt_plan_outcome outcome;
};

bool tt_simple_fsdp_exchanged(enum tt_memory_kind kind)
{
    return kind == TT_MEMORY_UNSHARDED || kind == TT_MEMORY_PARAM_GRAD || kind == TT_MEMORY_STAGING;
}

/* --- sizes and times --- */

static int64_t shard_bytes(const struct builder *b, enum tt_instr_kind kind, const int *units, int n)
{
    return tt_lowering_shard_bytes(b->in->lowering, kind, units, n);
}

static int64_t whole_bytes(const struct builder *b, const int *units, int n)
{
    int64_t bytes = 0;

    for (int i = 0; i < n; i++)
        bytes += b->u->unit_bytes[units[i]];
    return bytes;
}

static int64_t staging_bytes(const struct builder *b, const int *units, int n)
{
    return b->u->layout->shard_degree == 1
               ? 0
               : tt_lowering_reduce_staging(b->in->lowering, shard_bytes(b, TT_REDUCE, units, n));
}

static double transfer_sec(const struct builder *b, enum tt_instr_kind kind, const int *units, int n)
{
    return tt_cost_of_units_sec(b->in->machine, b->u->layout, kind, units[0], shard_bytes(b, kind, units, n));
}

/* Puts a transfer into its lane; returns when it ends. */
static double transfer(struct builder *b, enum tt_instr_kind kind, const int *units, int n)
{
    double begin = b->link_free > b->now ? b->link_free : b->now;
    double sec = transfer_sec(b, kind, units, n);

    b->outcome.calls += sec > 0.0;
    b->outcome.comm_sec += sec;
    return b->link_free = begin + sec;
}

static int64_t other_bytes(const struct builder *b, int pos)
{
    int positions = b->u->microbatches * b->u->n_nodes;

    return b->in->other_bytes[pos < positions ? pos : positions - 1];
}

static bool fits(const struct builder *b, int pos, int64_t exchanged)
{
    int64_t all = other_bytes(b, pos) + exchanged;

    return all <= b->choice->slack_bytes || (all <= b->choice->step_bytes && exchanged <= b->choice->exchanged_bytes);
}

static void occupy(struct builder *b, int pos, int64_t bytes)
{
    struct tt_plan_outcome *o = &b->outcome;
    int64_t all;

    b->live += bytes;
    all = other_bytes(b, pos) + b->live;
    o->fits = o->fits && fits(b, pos, b->live);
    if (all > o->step_bytes) {
        o->step_bytes = all;
        o->exchanged_bytes = b->live;
    }
}

/* --- writing the schedule --- */

static struct handle handle_of(struct builder *b, const int *units, int n)
{
    return (struct handle){units[0], n == 1 ? TT_NONE : tt_schedule_bucket(b->schedule, units, n)};
}

static void emit(struct builder *b, enum tt_instr_kind kind, int mb, struct handle units)
{
    if (units.bucket == TT_NONE)
        tt_schedule_add(b->schedule, kind, mb, TT_NONE, units.unit);
    else
        tt_schedule_add_bucket(b->schedule, kind, mb, units.bucket);
}

static const int *units_of(const struct builder *b, const struct handle *units, int *ret_n)
{
    *ret_n = units->bucket == TT_NONE ? 1 : b->schedule->buckets[units->bucket].n;
    return units->bucket == TT_NONE ? &units->unit : b->schedule->buckets[units->bucket].units;
}

static void fly(struct builder *b, int pos, struct in_flight flight)
{
    TT_PUSH(b->flights, b->n_flights, b->cap_flights) = flight;
    occupy(b, pos, flight.bytes);
}

/* The units' sums are complete on this rank: over to the replicas, or to the norm. */
static void finish_sum(struct builder *b, int pos, struct handle handle)
{
    int n;
    const int *units = units_of(b, &handle, &n);

    if (b->u->layout->replicate_degree > 1) {
        emit(b, TT_ALL_REDUCE, 0, handle);
        fly(b, pos,
            (struct in_flight){
                .units = handle,
                .all_reduce = true,
                .bytes = b->in->lowering->all_reduce_staging(b->u->layout, shard_bytes(b, TT_ALL_REDUCE, units, n)),
                .end = transfer(b, TT_ALL_REDUCE, units, n)});
        return;
    }
    for (int i = 0; i < n; i++)
        tt_schedule_add(b->schedule, TT_NORM, 0, TT_NONE, units[i]);
}

static void wait_oldest(struct builder *b, int pos)
{
    const struct in_flight flight = b->flights[b->head++];
    int n;
    const int *units = units_of(b, &flight.units, &n);

    emit(b, flight.all_reduce ? TT_WAIT_ALL_REDUCE : TT_WAIT_REDUCE, flight.microbatch, flight.units);
    if (flight.end > b->now)
        b->now = flight.end;
    b->live -= flight.bytes;
    if (flight.all_reduce)
        for (int i = 0; i < n; i++)
            tt_schedule_add(b->schedule, TT_NORM, 0, TT_NONE, units[i]);
    else if (flight.microbatch == b->u->microbatches - 1)
        finish_sum(b, pos, flight.units);
}

/* Waits for reduces until this much more fits at pos, or none is left. */
static void make_room(struct builder *b, int pos, int64_t bytes)
{
    while (!fits(b, pos, b->live + bytes) && b->head < b->n_flights)
        wait_oldest(b, pos);
}

/* Bytes of whole gradients that come into being at a position. */
static int64_t new_gradients(const struct builder *b, int pos)
{
    return b->u->reduce_last && pos >= b->u->n_nodes ? 0 : b->u->grad_bytes[pos % b->u->n_nodes];
}

static bool reduces_at(const struct builder *b, int pos)
{
    return !b->u->reduce_last || pos / b->u->n_nodes == b->u->microbatches - 1;
}

/* --- looking ahead --- */

/* What the walk of fits_until changes: a copy of the clock and of what is under way. */
struct outlook {
    int64_t live;
    double now, link_free;
    int head, release, n_ahead, next_ahead;
};

static void free_what_is_done(const struct builder *b, struct outlook *o, int pos)
{
    while (!fits(b, pos, o->live)) {
        if (o->head < b->n_flights) {
            if (!b->choice->patient && b->flights[o->head].end > o->now)
                return;
            o->live -= b->flights[o->head++].bytes;
        } else if (o->next_ahead < o->n_ahead) {
            if (!b->choice->patient && b->ahead_end[o->next_ahead] > o->now)
                return;
            o->live -= b->ahead[o->next_ahead++];
        } else {
            return;
        }
    }
}

/* After a node: the gradients that it completed go under way. */
static void expect_reduces(const struct builder *b, struct outlook *o, int node)
{
    for (int r = b->u->ready_from[node]; r < b->u->ready_from[node + 1]; r++) {
        int unit = b->u->ready_units[r];
        int64_t staging = staging_bytes(b, &unit, 1);

        if (o->n_ahead == b->u->layout->n_units)
            return;
        if (o->now > o->link_free)
            o->link_free = o->now;
        o->link_free += transfer_sec(b, TT_REDUCE, &unit, 1);
        b->ahead[o->n_ahead] = b->u->unit_bytes[unit] + staging;
        b->ahead_end[o->n_ahead++] = o->link_free;
        o->live += staging;
    }
}

/* Whether this many bytes more, by gathers up to (not with) `gathers`, fit from pos until just before `until`. */
static bool fits_until(const struct builder *b, int pos, int until, int64_t bytes, int gathers)
{
    const struct tt_gather_list *list = &b->gathers;
    struct outlook o = {b->live + bytes, b->now, b->link_free, b->head, b->next_release, 0, 0};

    for (int q = pos; q < until; q++) {
        int node = q % b->u->n_nodes;

        o.live += new_gradients(b, q);
        free_what_is_done(b, &o, q);
        if (!fits(b, q, o.live))
            return false;
        o.now += b->u->node_sec[node];
        for (; o.release < list->n_releases && list->releases[o.release].pos <= q; o.release++)
            if (list->releases[o.release].gather < gathers)
                o.live -= list->releases[o.release].bytes;
        if (reduces_at(b, q))
            expect_reduces(b, &o, node);
    }
    return true;
}

/* Seconds of compute between two positions. */
static double compute_between(const struct builder *b, int pos, int until)
{
    const struct tt_usage *u = b->u;

    int whole_microbatches = until / u->n_nodes - pos / u->n_nodes;

    return whole_microbatches * u->begin_sec[u->n_nodes] + u->begin_sec[until % u->n_nodes] -
           u->begin_sec[pos % u->n_nodes];
}

/* --- gathers --- */

static enum tt_instr_kind gather_kind(const struct tt_gather *gather)
{
    return gather->from_kept ? TT_UNSHARD_KEPT : TT_UNSHARD;
}

static bool may_join(const struct builder *b, int pos, const int *units, int n, bool needed_now)
{
    int at = b->next_gather + n;
    const struct tt_gather *g = &b->gathers.items[at];
    int64_t bytes = whole_bytes(b, units, n) + b->u->unit_bytes[g->unit];

    for (int i = 0; i < n; i++)
        if (units[i] == g->unit)
            return false;
    if (g->previous != TT_NONE && b->gathers.items[g->previous].last >= pos)
        return false;
    if (n > 0 && (bytes > b->choice->bucket_bytes || g->from_kept != b->gathers.items[b->next_gather].from_kept))
        return false;
    if (n > 0 && b->choice->within_compute) {
        double busy = b->link_free > b->now ? b->link_free - b->now : 0.0;
        enum tt_instr_kind kind = gather_kind(g);
        double sec = transfer_sec(b, kind, units, n) + transfer_sec(b, kind, &g->unit, 1);

        if (busy + sec > compute_between(b, pos, b->gathers.items[b->next_gather].first))
            return false;
    }
    return (needed_now && n == 0) || fits_until(b, pos, g->first, bytes, at + 1);
}

/* Begins the next bucket of gathers, as large as rules and memory allow; false when not even one unit fits. */
static bool begin_gather(struct builder *b, int pos, bool needed_now)
{
    int *units = b->scratch, n = 0;
    int64_t bytes;
    struct handle handle;

    while (b->next_gather + n < b->gathers.n && may_join(b, pos, units, n, needed_now)) {
        units[n] = b->gathers.items[b->next_gather + n].unit;
        n++;
    }
    if (n == 0)
        return false;
    bytes = whole_bytes(b, units, n);
    make_room(b, pos, bytes);
    handle = handle_of(b, units, n);
    emit(b, TT_UNSHARD, 0, handle);
    TT_PUSH(b->buckets, b->n_buckets, b->cap_buckets) = (struct gather_bucket){
        handle, b->next_gather, n, transfer(b, gather_kind(&b->gathers.items[b->next_gather]), units, n)};
    b->next_gather += n;
    occupy(b, pos, bytes);
    return true;
}

static bool needs_at(const struct builder *b, int gather, int pos)
{
    return gather < b->gathers.n && b->gathers.items[gather].first == pos;
}

static void gather_for(struct builder *b, int pos)
{
    int begun = b->waited; /* buckets whose use has begun once pos has */

    while (needs_at(b, b->next_gather, pos))
        (void)begin_gather(b, pos, true);
    while (begun < b->n_buckets && b->gathers.items[b->buckets[begun].first].first <= pos)
        begun++;
    while (b->n_buckets - begun < b->in->prefetch && begin_gather(b, pos, false))
        ;
    for (; b->waited < begun; b->waited++) {
        emit(b, TT_WAIT_UNSHARD, 0, b->buckets[b->waited].units);
        if (b->buckets[b->waited].end > b->now)
            b->now = b->buckets[b->waited].end;
    }
}

static void release_after(struct builder *b, int pos)
{
    const struct tt_gather_list *list = &b->gathers;

    for (; b->next_release < list->n_releases && list->releases[b->next_release].pos <= pos; b->next_release++) {
        const struct tt_release *r = &list->releases[b->next_release];
        bool last = b->next_release + 1 == list->n_releases || r[1].pos != r->pos || r[1].gather != r->gather;

        b->live -= r->bytes;
        if (last && r->pos == list->items[r->gather].last)
            tt_schedule_add(b->schedule, list->items[r->gather].keeps ? TT_KEEP : TT_RESHARD, 0, TT_NONE,
                            list->items[r->gather].unit);
    }
}

/* --- reduces --- */

static bool flies(const struct builder *b, int unit)
{
    for (int f = b->head; f < b->n_flights; f++) {
        int n;
        const int *units = units_of(b, &b->flights[f].units, &n);

        for (int i = 0; i < n && !b->flights[f].all_reduce; i++)
            if (units[i] == unit)
                return true;
    }
    return false;
}

static void reduce_pending(struct builder *b, int pos)
{
    int n = b->n_pending, mb = pos / b->u->n_nodes;
    int64_t staging = staging_bytes(b, b->pending, n);
    struct handle handle;

    if (n == 0)
        return;
    for (int i = 0; i < n; i++)
        while (flies(b, b->pending[i]))
            wait_oldest(b, pos);
    make_room(b, pos + 1, staging);
    handle = handle_of(b, b->pending, n);
    emit(b, TT_REDUCE, mb, handle);
    fly(b, pos + 1,
        (struct in_flight){
            .units = handle, .microbatch = mb, .bytes = staging, .end = transfer(b, TT_REDUCE, b->pending, n)});
    b->flights[b->n_flights - 1].bytes += whole_bytes(b, b->pending, n); /* these live already */
    b->n_pending = 0;
    while (b->u->layout->shard_degree == 1 && b->head < b->n_flights && !b->flights[b->head].all_reduce)
        wait_oldest(b, pos); /* nothing is under way: the gradients are the sums */
}

/* Whether complete gradients should stay and be reduced together with the next unit's, which are complete later. */
static bool worth_holding(struct builder *b, int pos, int ready)
{
    int mb = pos / b->u->n_nodes;

    if (ready + 1 == b->u->n_ready || b->u->layout->shard_degree == 1)
        return false;
    b->pending[b->n_pending] = b->u->ready_units[ready + 1];
    if (whole_bytes(b, b->pending, b->n_pending + 1) > b->choice->bucket_bytes)
        return false;
    if (b->choice->within_compute && b->link_free <= b->now)
        return false;
    return fits_until(b, pos + 1, mb * b->u->n_nodes + b->u->ready_nodes[ready + 1] + 1,
                      staging_bytes(b, b->pending, b->n_pending + 1), b->next_gather);
}

static void reduce_after(struct builder *b, int pos)
{
    int node = pos % b->u->n_nodes;

    for (int r = b->u->ready_from[node]; r < b->u->ready_from[node + 1]; r++) {
        b->pending[b->n_pending++] = b->u->ready_units[r];
        if (!worth_holding(b, pos, r))
            reduce_pending(b, pos);
    }
}

/* --- the walk --- */

static void walk(struct builder *b)
{
    const struct tt_graph *graph = b->u->graph;

    for (int pos = 0; pos < b->u->microbatches * b->u->n_nodes; pos++) {
        int node = pos % b->u->n_nodes, mb = pos / b->u->n_nodes;

        gather_for(b, pos);
        make_room(b, pos, new_gradients(b, pos));
        occupy(b, pos, new_gradients(b, pos));
        tt_schedule_add(b->schedule, TT_RUN, mb, node, TT_NONE);
        b->now += b->u->node_sec[node];
        if (graph->nodes[node].out[0] == graph->token_loss)
            tt_schedule_add(b->schedule, TT_LOSS, mb, TT_NONE, TT_NONE);
        release_after(b, pos);
        if (reduces_at(b, pos))
            reduce_after(b, pos);
    }
    while (b->head < b->n_flights)
        wait_oldest(b, b->u->microbatches * b->u->n_nodes);
    tt_schedule_add(b->schedule, TT_CLIP, 0, TT_NONE, TT_NONE);
    for (int u = 0; u < b->u->layout->n_units; u++)
        tt_schedule_add(b->schedule, TT_OPTIMIZER, 0, TT_NONE, u);
}

void tt_simple_fsdp_schedule(const struct tt_simple_fsdp *fsdp, const struct tt_plan_choice *choice,
                             struct tt_schedule *schedule, struct tt_plan_outcome *ret_outcome)
{
    size_t n_units = (size_t)fsdp->usage->layout->n_units;
    struct builder b = {.in = fsdp, .u = fsdp->usage, .choice = choice, .schedule = schedule};

    b.outcome.fits = true;
    b.gathers = tt_usage_gathers(b.u, fsdp->reshard, choice->near);
    b.pending = tt_calloc(n_units + 1, sizeof *b.pending);
    b.scratch = tt_calloc(n_units + 1, sizeof *b.scratch);
    b.ahead = tt_calloc(n_units + 1, sizeof *b.ahead);
    b.ahead_end = tt_calloc(n_units + 1, sizeof *b.ahead_end);
    walk(&b);
    b.outcome.step_sec = b.now;
    *ret_outcome = b.outcome;
    tt_gather_list_release(&b.gathers);
    tt_free(b.buckets);
    tt_free(b.flights);
    tt_free(b.pending);
    tt_free(b.scratch);
    tt_free(b.ahead);
    tt_free(b.ahead_end);
}
