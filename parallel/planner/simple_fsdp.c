/* SPDX-License-Identifier: MIT
 *
 * The planned scheduler: one walk over the positions of a step with its own clock. The clock has one lane that computes
 * and one that transfers, with times from the cost table. Memory is counted as the memory plan will count it. Before
 * each node: begin to gather its parameters, if no bucket did; begin the next bucket if it fits until its use; wait for
 * the node's parameters; wait for reductions, oldest first, until the node's gradients fit and after it: free the
 * parameters that no later node reads; begin the reduce-scatters of complete gradients, several as one while the link
 * is busy and memory allows.
 */
#include "parallel/planner/simple_fsdp.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "parallel/fsdp/fsdp.h"

/*
 * The gathers of a step, and how long their parameters stay. Successive uses of a unit share one gather if the unit
 * stays gathered in between. The scheduler decides when a gather begins.
 */

/* The time for which a unit's parameters are on this rank, from an all-gather to the last read. */
struct gather {
    int unit;
    int first, last; /* positions that read the parameters */
    int previous;    /* the unit's previous gather, TT_NONE if none */
    bool keeps;      /* keeps a part at its end (TT_KEEP) */
    bool from_kept;  /* gathers the parts that the previous gather kept */
    int n_before;    /* length of the list at its last use: later gathers have larger indices */
};

/* The last use of one parameter of a gather. */
struct release {
    int pos;
    int gather;
    int64_t bytes;
};

struct gather_list {
    struct gather *items; /* in the order in which they are needed */
    int n, cap;
    struct release *releases; /* in order of position */
    int n_releases, cap_releases;
};

/* Units that share one collective, as schedules name them. */
struct handle {
    int unit;   /* the first unit */
    int bucket; /* TT_NONE: only the unit above */
};

struct flight {
    struct handle units;
    bool all_reduce; /* otherwise it is a reduce-scatter */
    int microbatch;
    int64_t bytes; /* freed after its wait */
    double end;
};

struct bucket {
    struct handle units;
    int first, n; /* gathers */
    double end;
};

/* A list of units and the sums of their sizes, so that adding a unit takes constant time. */
struct unit_list {
    enum tt_purpose purpose; /* purpose of their common collective */
    int *unit;
    int n;
    int64_t whole;    /* bytes of the gathered parameters or of the whole gradients */
    int64_t elements; /* elements of the flat shards */
};

struct of_unit {
    bool in_joined;
    int flying;        /* number of its reduce-scatters that are under way */
    int awaited;       /* number of reduce-scatters until its sum is complete */
    int64_t staging;   /* bytes of the receive buffer of its reduce-scatter, if no other unit shares it */
    double reduce_sec; /* seconds of that reduce-scatter */
};

struct walk {
    const struct tt_simple_fsdp *in;
    const struct tt_usage *u;
    const struct tt_step_facts *facts;
    struct tt_candidate candidate;
    struct tt_plan plan; /* so far */
    struct gather_list gathers;
    struct bucket *buckets;
    int n_buckets, cap_buckets;
    int waited;      /* number of buckets for which the schedule has already waited */
    int next_gather; /* first gather that has not begun */
    int next_release;
    struct flight *flights; /* reductions, in the order of their begin; [head, n_flights) are still under way */
    int head, n_flights, cap_flights;
    struct unit_list pending; /* units with complete gradients whose reduction has not begun */
    struct unit_list joined;  /* units of the bucket that is being put together */
    struct of_unit *of;       /* [unit] */
    int *summed;              /* units whose sum has just become complete */
    int64_t *ahead;           /* [n_units + 1] for looking ahead: bytes that expected reductions will free, and when */
    double *ahead_end;
    int64_t *other; /* tree of maxima of facts->other_bytes */
    int64_t *grows; /* [n_positions + 1] bytes of whole gradients and of staging that begin to live before a position */
    int64_t live;   /* live bytes of exchange */
    double now, link_free;
};

/*
 * --- the largest value of a range ---
 *
 * A tree of maxima over an array, which is an array itself: the children of node i are 2i and 2i + 1, and the last n
 * nodes are the leaves.
 */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* [2n], for n > 0 values. The caller frees it. */
static int64_t *ceiling_of(const int64_t *values, int n)
{
    int64_t *node = tt_calloc(2 * (size_t)n, sizeof *node);

    memcpy(node + n, values, (size_t)n * sizeof *values);
    for (int i = n - 1; i > 0; i--)
        node[i] = larger(node[2 * (size_t)i], node[2 * (size_t)i + 1]);
    return node;
}

/* The largest of values[from] to values[until - 1], in logarithmic time; from < until. */
static int64_t most_of(const int64_t *node, int n, int from, int until)
{
    int a = from + n, b = until + n;
    int64_t most = node[a];

    for (; a < b; a /= 2, b /= 2) {
        if (a % 2)
            most = larger(most, node[a++]);
        if (b % 2)
            most = larger(most, node[--b]);
    }
    return most;
}

/* --- facts of a step --- */

/* Live bytes at each instruction, of buffers for exchange (gathered parameters, whole gradients and staging) or of all
 * others, without the state. */
static int64_t *live_bytes(const struct tt_program *p, bool exchanged)
{
    int64_t *live = tt_calloc((size_t)p->n_instrs + 1, sizeof *live);

    for (int i = 0; i < p->n_buffers; i++) {
        const struct tt_buffer *b = &p->buffers[i];
        int64_t bytes = tt_arena_bytes(b->bytes);
        bool of_exchange =
            b->kind == TT_MEMORY_UNSHARDED || b->kind == TT_MEMORY_PARAM_GRAD || b->kind == TT_MEMORY_STAGING;

        if (b->root != i || b->kind == TT_MEMORY_PARAM || b->kind == TT_MEMORY_CONST || of_exchange != exchanged)
            continue;
        live[b->first] += bytes;
        live[b->last + 1] -= bytes;
    }
    for (int i = 1; i <= p->n_instrs; i++)
        live[i] += live[i - 1];
    return live;
}

int64_t tt_program_exchanged_bytes(const struct tt_program *program)
{
    int64_t *live = live_bytes(program, true), bytes = live[program->peak_instr];

    tt_free(live);
    return bytes;
}

/* Bytes of a unit's whole gradient or parameter, with parts of `chunk` elements, as the memory plan counts them. */
static int64_t whole_bytes(const struct tt_layout *layout, int unit, int64_t chunk, enum tt_dtype dtype)
{
    return tt_arena_bytes(tt_unit_whole(layout, unit, chunk) * (int64_t)tt_dtype_size(dtype));
}

static void measure_units(const struct tt_lowering *lowering, struct tt_step_facts *f)
{
    const struct tt_layout *layout = lowering->layout;

    f->param_bytes = tt_calloc((size_t)layout->n_params + 1, sizeof *f->param_bytes);
    f->unit_bytes = tt_calloc((size_t)layout->n_units + 1, sizeof *f->unit_bytes);
    f->unit_grad_bytes = tt_calloc((size_t)layout->n_units + 1, sizeof *f->unit_grad_bytes);
    for (int unit = 0; unit < layout->n_units; unit++) {
        bool gathers = tt_lowering_gathers(lowering, unit), reduces = tt_lowering_reduces(lowering, unit);
        const struct tt_unit *of = &layout->units[unit];

        for (int k = 0; gathers && k < of->n_params; k++) {
            int64_t bytes = whole_bytes(layout, unit, of->params[k].chunk, of->packing ? TT_U8 : lowering->param_dtype);

            f->param_bytes[of->params[k].param] = bytes;
            f->unit_bytes[unit] += bytes;
        }
        for (int k = 0; reduces && k < of->n_grads; k++)
            f->unit_grad_bytes[unit] +=
                whole_bytes(layout, unit, of->grads[k].chunk, tt_dtype_sums(lowering->param_dtype));
    }
}

void tt_step_facts_make(const struct tt_usage *usage, const struct tt_lowering *lowering,
                        const struct tt_machine *machine, const struct tt_program *eager,
                        struct tt_step_facts *ret_facts)
{
    const struct tt_layout *layout = usage->layout;
    size_t n = (size_t)usage->n_positions;
    struct tt_step_facts f = {.usage = usage};
    int64_t *live = live_bytes(eager, false);

    f.node_sec = tt_calloc(n + 1, sizeof *f.node_sec);
    f.begin_sec = tt_calloc(n + 1, sizeof *f.begin_sec);
    f.grad_bytes = tt_calloc(n + 1, sizeof *f.grad_bytes);
    f.other_bytes = tt_calloc(n + 1, sizeof *f.other_bytes);
    for (int pos = 0; pos < usage->n_positions; pos++) {
        const struct tt_graph *graph = tt_usage_graph(usage, pos);

        f.node_sec[pos] = tt_cost_node_sec(machine, graph, usage->positions[pos].node, eager->threads);
        f.begin_sec[pos + 1] = f.begin_sec[pos] + f.node_sec[pos];
        for (int i = usage->begins_grad[pos]; i < usage->begins_grad[pos + 1]; i++) {
            const struct tt_value *grad = &graph->values[usage->begun_grads[i]];
            int unit = layout->unit_of[grad->param];
            int64_t chunk = layout->units[unit].grads[tt_layout_grad(layout, grad->param, grad->part)].chunk;

            if (tt_lowering_reduces(lowering, unit))
                f.grad_bytes[pos] += whole_bytes(layout, unit, chunk, tt_dtype_sums(lowering->param_dtype));
        }
    }
    measure_units(lowering, &f);
    for (int i = 0, pos = 0; i < eager->n_instrs; i++)
        if (eager->instrs[i].node != TT_NONE) /* the nodes of a program are the positions of its order */
            f.other_bytes[pos++] = live[i];
    tt_free(live);
    *ret_facts = f;
}

void tt_step_facts_release(struct tt_step_facts *f)
{
    tt_free(f->node_sec);
    tt_free(f->begin_sec);
    tt_free(f->grad_bytes);
    tt_free(f->other_bytes);
    tt_free(f->param_bytes);
    tt_free(f->unit_bytes);
    tt_free(f->unit_grad_bytes);
    *f = (struct tt_step_facts){0};
}

/* --- gathers --- */

/*
 * Makes gathers from the reading uses, in the order of their first read. Each begins a gather or extends the unit's
 * newest one.
 */

static int compare_reads(const void *a, const void *b)
{
    const struct tt_use *x = *(const struct tt_use *const *)a, *y = *(const struct tt_use *const *)b;

    return x->first_read != y->first_read ? x->first_read - y->first_read : x->unit - y->unit;
}

static int compare_releases(const void *a, const void *b)
{
    const struct release *x = a, *y = b;

    return x->pos != y->pos         ? x->pos - y->pos
           : x->gather != y->gather ? x->gather - y->gather
                                    : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Whether this use belongs to the backward of the same microbatch whose forward has just read the gathered
 * parameters. */
static bool turns_back(const struct tt_usage *u, const struct gather *gather, const struct tt_use *use)
{
    return tt_use_pass(u, use) != TT_PASS_FORWARD && u->positions[gather->last].microbatch == tt_use_microbatch(u, use);
}

static bool stays(const struct tt_usage *u, const struct gather_list *list, int gather, const struct tt_use *use,
                  const bool *reshard, enum tt_stay stay)
{
    if (!reshard[use->unit] && turns_back(u, &list->items[gather], use))
        return true;
    return stay != TT_STAY_BY_POLICY && list->n - list->items[gather].n_before <= (stay == TT_STAY_OVER_ONE ? 1 : 0);
}

static void close_gather(const struct tt_usage *u, struct gather_list *list, int gather, const int *param_pos,
                         const int64_t *param_bytes)
{
    const struct gather *g = &list->items[gather];

    for (int k = 0; k < u->layout->units[g->unit].n_params; k++) {
        int param = u->layout->units[g->unit].params[k].param;

        TT_PUSH(list->releases, list->n_releases, list->cap_releases) =
            (struct release){g->keeps ? g->last : param_pos[param], gather, param_bytes[param]};
    }
}

/*
 * The gathers of a step. A unit that nothing reads is not gathered.
 *   param_bytes  [param] bytes when gathered
 *   reshard      [unit] whether to free it between forward and backward
 * The caller frees the lists of the result with tt_free.
 */
static struct gather_list gathers_make(const struct tt_usage *u, const int64_t *param_bytes, const bool *reshard,
                                       enum tt_stay stay)
{
    struct gather_list list = {0};
    int *newest = tt_ids_new((size_t)u->layout->n_units);                       /* [unit] its newest gather */
    int *param_pos = tt_calloc((size_t)u->layout->n_params, sizeof *param_pos); /* its last read in that gather */
    const struct tt_use **uses = tt_calloc((size_t)u->n_uses + 1, sizeof *uses);
    int n = 0;

    for (int i = 0; i < u->n_uses; i++)
        if (u->uses[i].first_read != TT_NONE)
            uses[n++] = &u->uses[i];
    qsort(uses, (size_t)n, sizeof *uses, compare_reads);
    for (int i = 0; i < n; i++) {
        const struct tt_use *use = uses[i];
        const struct tt_unit *of = &u->layout->units[use->unit];
        int old = newest[use->unit];
        bool fresh = old == TT_NONE || !stays(u, &list, old, use, reshard, stay);
        bool from_kept = fresh && old != TT_NONE && of->keep_degree > 1 && turns_back(u, &list.items[old], use);

        if (from_kept)
            list.items[old].keeps = true;
        if (fresh && old != TT_NONE)
            close_gather(u, &list, old, param_pos, param_bytes);
        if (fresh) {
            newest[use->unit] = list.n;
            TT_PUSH(list.items, list.n, list.cap) =
                (struct gather){.unit = use->unit, .first = use->first_read, .previous = old, .from_kept = from_kept};
        }
        list.items[newest[use->unit]].last = use->last_read;
        list.items[newest[use->unit]].n_before = list.n;
        for (int k = 0; k < of->n_params; k++) { /* a parameter that is not read ends at the wait for its gather */
            int read = u->param_last_read[use->param_reads + k];

            if (fresh || read != TT_NONE)
                param_pos[of->params[k].param] = read != TT_NONE ? read : use->first_read;
        }
    }
    for (int unit = 0; unit < u->layout->n_units; unit++)
        if (newest[unit] != TT_NONE)
            close_gather(u, &list, newest[unit], param_pos, param_bytes);
    if (list.n_releases)
        qsort(list.releases, (size_t)list.n_releases, sizeof *list.releases, compare_releases);
    tt_free(uses);
    tt_free(newest);
    tt_free(param_pos);
    return list;
}

/* --- sizes and times --- */

/* The number of elements of the units' flat shards that a collective of this purpose carries. */
static int64_t elements_of(const struct walk *b, enum tt_purpose purpose, const int *units, int n)
{
    int64_t elements = 0;

    for (int i = 0; i < n; i++)
        elements += tt_purpose_elements(&b->u->layout->units[units[i]], purpose);
    return elements;
}

/* Staging bytes of a collective of units; `unit` is the first of the units. */
static int64_t staging_bytes(const struct walk *b, enum tt_purpose purpose, int unit, int64_t elements)
{
    struct tt_collective_desc desc = tt_lowering_collective(b->in->lowering, purpose, unit, elements);

    return b->in->lowering->staging(&desc);
}

/* Seconds of a collective of units that is alone on the link; `unit` is the first of the units. */
static double transfer_sec(const struct walk *b, enum tt_purpose purpose, int unit, int64_t elements)
{
    struct tt_collective_desc desc = tt_lowering_collective(b->in->lowering, purpose, unit, elements);

    return tt_cost_collective_sec(b->in->machine, desc.op, desc.ranks, desc.bytes);
}

/* Empties a list and sets its purpose. */
static void clear_units(struct unit_list *units, enum tt_purpose purpose)
{
    *units = (struct unit_list){.purpose = purpose, .unit = units->unit};
}

/* Bytes of transient memory at a position, without the buffers for exchange. */
static int64_t other_bytes_at(const struct walk *b, int pos)
{
    int last = b->u->n_positions - 1;

    return b->facts->other_bytes[pos < last ? pos : last];
}

static bool fits_beside(const struct walk *b, int64_t other, int64_t exchanged)
{
    int64_t all = other + exchanged;

    return all <= b->candidate.limits.slack_bytes ||
           (all <= b->candidate.limits.step_bytes && exchanged <= b->candidate.limits.exchanged_bytes);
}

/* Whether `exchanged` bytes of exchange are within the candidate's limits at a position. */
static bool fits(const struct walk *b, int pos, int64_t exchanged)
{
    return fits_beside(b, other_bytes_at(b, pos), exchanged);
}

/* --- looking ahead --- */

/* The state that changes when looking ahead: copies of the clock and of the transfers under way. */
struct outlook {
    int64_t live;
    double now, link_free;
    int head, release, n_ahead, next_ahead;
};

static void free_what_is_done(const struct walk *b, struct outlook *o, int pos)
{
    while (!fits(b, pos, o->live)) {
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

/* Predicts the effects of a position: the additions of its gradients, and the reductions of complete blocks. */
static void expect_reduces(const struct walk *b, struct outlook *o, int pos)
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
        o->link_free += b->of[unit].reduce_sec;
        b->ahead[o->n_ahead] = b->facts->unit_grad_bytes[unit] + b->of[unit].staging;
        b->ahead_end[o->n_ahead++] = o->link_free;
        o->live += b->of[unit].staging;
    }
}

/* Whether `bytes` more bytes fit at every position from pos until just before `until`, counting only memory that
 * gathers before number `gathers` free. */
static bool fits_until(struct walk *b, int pos, int until, int64_t bytes, int gathers)
{
    const struct gather_list *list = &b->gathers;
    struct outlook o = {b->live + bytes, b->now, b->link_free, b->head, b->next_release, 0, 0};

    if (pos >= until ||
        fits_beside(b, most_of(b->other, b->u->n_positions, pos, until), o.live + b->grows[until] - b->grows[pos]))
        return true; /* they fit even if nothing is freed; otherwise each position must be visited */
    for (int q = pos; q < until; q++) {
        b->plan.looked++;
        o.live += b->facts->grad_bytes[q];
        free_what_is_done(b, &o, q);
        if (!fits(b, q, o.live))
            return false;
        o.now += b->facts->node_sec[q];
        for (; o.release < list->n_releases && list->releases[o.release].pos <= q; o.release++)
            if (list->releases[o.release].gather < gathers)
                o.live -= list->releases[o.release].bytes;
        expect_reduces(b, &o, q);
    }
    return true;
}

/* Computes sizes and times by unit and position. in, u, facts and candidate must be set. */
static void begin_walk(struct walk *b)
{
    size_t n_units = (size_t)b->u->layout->n_units;

    b->pending.unit = tt_calloc(n_units + 1, sizeof *b->pending.unit);
    b->joined.unit = tt_calloc(n_units + 1, sizeof *b->joined.unit);
    b->of = tt_calloc(n_units + 1, sizeof *b->of);
    b->summed = tt_calloc(n_units + 1, sizeof *b->summed);
    for (int c = 0; c < b->u->n_complete; c++)
        b->of[b->u->complete[c].unit].awaited += b->u->complete[c].reduces;
    b->ahead = tt_calloc(n_units + 1, sizeof *b->ahead);
    b->ahead_end = tt_calloc(n_units + 1, sizeof *b->ahead_end);
    clear_units(&b->pending, TT_REDUCE);
    for (int u = 0; u < b->u->layout->n_units; u++) {
        int64_t elements = elements_of(b, TT_REDUCE, &u, 1);

        b->of[u].staging = staging_bytes(b, TT_REDUCE, u, elements);
        b->of[u].reduce_sec = transfer_sec(b, TT_REDUCE, u, elements);
    }
    b->other = ceiling_of(b->facts->other_bytes, b->u->n_positions);
    b->grows = tt_calloc((size_t)b->u->n_positions + 1, sizeof *b->grows);
    for (int pos = 0; pos < b->u->n_positions; pos++) {
        b->grows[pos + 1] = b->grows[pos] + b->facts->grad_bytes[pos];
        for (int c = b->u->complete_from[pos]; c < b->u->complete_from[pos + 1]; c++)
            b->grows[pos + 1] += b->u->complete[c].reduces ? b->of[b->u->complete[c].unit].staging : 0;
    }
}

/* --- the clock and memory --- */

static bool travels(const struct walk *b, enum tt_purpose purpose, int unit)
{
    struct tt_collective_desc desc = tt_lowering_collective(b->in->lowering, purpose, unit, 0);

    return tt_collective_travels(&desc);
}

/* Units can share a collective only if the same ranks share them, and if both or neither are packed. */
static bool same_ranks(const struct walk *b, int unit, int other)
{
    const struct tt_unit *x = &b->u->layout->units[unit], *y = &b->u->layout->units[other];

    return x->shard_group == y->shard_group && !x->packing == !y->packing;
}

/* Puts a transfer into its lane. Returns the time at which it ends. */
static double transfer(struct walk *b, enum tt_purpose purpose, int unit, int64_t elements)
{
    double begin = b->link_free > b->now ? b->link_free : b->now;
    double sec = transfer_sec(b, purpose, unit, elements);

    b->plan.calls += sec > 0.0;
    b->plan.comm_sec += sec;
    return b->link_free = begin + sec;
}

/* whole: [unit] bytes of the whole unit. */
static void add_unit(const struct walk *b, struct unit_list *to, int unit, const int64_t *whole)
{
    to->unit[to->n++] = unit;
    to->whole += whole[unit];
    to->elements += elements_of(b, to->purpose, &unit, 1);
}

static void occupy(struct walk *b, int pos, int64_t bytes)
{
    struct tt_plan *plan = &b->plan;
    int64_t all;

    b->live += bytes;
    all = other_bytes_at(b, pos) + b->live;
    plan->fits = plan->fits && fits(b, pos, b->live);
    if (all > plan->step_bytes) {
        plan->step_bytes = all;
        plan->exchanged_bytes = b->live;
    }
}

static struct handle handle_of(struct walk *b, const int *units, int n)
{
    return (struct handle){units[0], n == 1 ? TT_NONE : tt_schedule_bucket(&b->plan.schedule, units, n)};
}

/* kind: TT_BEGIN or TT_WAIT */
static void add(struct walk *b, enum tt_instr_kind kind, enum tt_purpose purpose, int mb, struct handle units)
{
    tt_schedule_collective(&b->plan.schedule, kind, purpose, mb, units.unit, units.bucket);
}

static struct tt_bucket units_of(const struct walk *b, const struct handle *units)
{
    return units->bucket == TT_NONE ? (struct tt_bucket){&units->unit, 1} : b->plan.schedule.buckets[units->bucket];
}

static void fly(struct walk *b, int pos, struct flight flight)
{
    TT_PUSH(b->flights, b->n_flights, b->cap_flights) = flight;
    occupy(b, pos, flight.bytes);
}

/* The norm of a shared gradient comes last: its sum needs a message from another rank, which may still be waiting for
 * this one. */
static void add_norm(struct walk *b, int unit)
{
    if (b->u->layout->units[unit].shared_grad == TT_NONE)
        tt_schedule_add(&b->plan.schedule, TT_NORM, 0, unit);
}

/* Continues with units whose sums are complete on this rank: begins the all-reduce over replicas, or adds the norm. */
static void finish_sum(struct walk *b, int pos, struct handle handle)
{
    const struct tt_bucket of = units_of(b, &handle);

    if (travels(b, TT_ALL_REDUCE, of.units[0])) {
        int64_t elements = elements_of(b, TT_ALL_REDUCE, of.units, of.n);

        add(b, TT_BEGIN, TT_ALL_REDUCE, 0, handle);
        fly(b, pos,
            (struct flight){.units = handle,
                            .all_reduce = true,
                            .bytes = staging_bytes(b, TT_ALL_REDUCE, of.units[0], elements),
                            .end = transfer(b, TT_ALL_REDUCE, of.units[0], elements)});
        return;
    }
    for (int i = 0; i < of.n; i++)
        add_norm(b, of.units[i]);
}

static void wait_oldest(struct walk *b, int pos)
{
    const struct flight flight = b->flights[b->head++];
    const struct tt_bucket of = units_of(b, &flight.units);
    int n_summed = 0;

    add(b, TT_WAIT, flight.all_reduce ? TT_ALL_REDUCE : TT_REDUCE, flight.microbatch, flight.units);
    if (flight.end > b->now)
        b->now = flight.end;
    b->live -= flight.bytes;
    for (int i = 0; i < of.n && flight.all_reduce; i++)
        add_norm(b, of.units[i]);
    for (int i = 0; i < of.n && !flight.all_reduce; i++) {
        b->of[of.units[i]].flying--;
        if (--b->of[of.units[i]].awaited == 0)
            b->summed[n_summed++] = of.units[i];
    }
    if (n_summed)
        finish_sum(b, pos, n_summed == of.n ? flight.units : handle_of(b, b->summed, n_summed));
}

/* Waits for reductions until `bytes` more bytes fit at pos, or no reduction is left. */
static void make_room(struct walk *b, int pos, int64_t bytes)
{
    while (!fits(b, pos, b->live + bytes) && b->head < b->n_flights)
        wait_oldest(b, pos);
}

/* --- gathers --- */

static enum tt_purpose gather_purpose(const struct gather *gather)
{
    return gather->from_kept ? TT_UNSHARD_KEPT : TT_UNSHARD;
}

/* Whether the next gather may join those in b->joined. */
static bool may_join(struct walk *b, int pos, bool needed_now)
{
    const struct unit_list *joined = &b->joined;
    int at = b->next_gather + joined->n;
    const struct gather *g = &b->gathers.items[at];
    int64_t bytes = joined->whole + b->facts->unit_bytes[g->unit];

    if (b->of[g->unit].in_joined)
        return false;
    if (g->previous != TT_NONE && b->gathers.items[g->previous].last >= pos)
        return false;
    if (joined->n > 0 && (bytes > b->candidate.bucket_bytes || !same_ranks(b, joined->unit[0], g->unit) ||
                          g->from_kept != b->gathers.items[b->next_gather].from_kept))
        return false;
    if (joined->n > 0 && b->candidate.within_compute) {
        double busy = b->link_free > b->now ? b->link_free - b->now : 0.0;
        enum tt_purpose purpose = gather_purpose(g);
        double sec = transfer_sec(b, purpose, joined->unit[0], joined->elements) +
                     transfer_sec(b, purpose, g->unit, elements_of(b, purpose, &g->unit, 1));

        if (busy + sec > b->facts->begin_sec[b->gathers.items[b->next_gather].first] - b->facts->begin_sec[pos])
            return false; /* longer than the compute that could hide it */
    }
    return (needed_now && joined->n == 0) || fits_until(b, pos, g->first, bytes, at + 1);
}

/* Begins the next bucket of gathers, as large as rules and memory allow. False if not even one unit fits. */
static bool begin_gather(struct walk *b, int pos, bool needed_now)
{
    const struct gather *next = &b->gathers.items[b->next_gather];
    struct unit_list *joined = &b->joined;
    struct handle handle;

    clear_units(joined, b->next_gather < b->gathers.n ? gather_purpose(next) : TT_UNSHARD);
    while (b->next_gather + joined->n < b->gathers.n && may_join(b, pos, needed_now)) {
        b->of[next[joined->n].unit].in_joined = true;
        add_unit(b, joined, next[joined->n].unit, b->facts->unit_bytes);
    }
    for (int i = 0; i < joined->n; i++)
        b->of[joined->unit[i]].in_joined = false;
    if (joined->n == 0)
        return false;
    make_room(b, pos, joined->whole);
    handle = handle_of(b, joined->unit, joined->n);
    add(b, TT_BEGIN, TT_UNSHARD, 0, handle);
    TT_PUSH(b->buckets, b->n_buckets, b->cap_buckets) = (struct bucket){
        handle, b->next_gather, joined->n, transfer(b, joined->purpose, joined->unit[0], joined->elements)};
    b->next_gather += joined->n;
    occupy(b, pos, joined->whole);
    return true;
}

static void gather_for(struct walk *b, int pos)
{
    int begun = b->waited; /* buckets that are first used at pos or before */

    while (b->next_gather < b->gathers.n && b->gathers.items[b->next_gather].first == pos)
        (void)begin_gather(b, pos, true);
    while (begun < b->n_buckets && b->gathers.items[b->buckets[begun].first].first <= pos)
        begun++;
    while (b->n_buckets - begun < b->in->prefetch && begin_gather(b, pos, false))
        ;
    for (; b->waited < begun; b->waited++) {
        add(b, TT_WAIT, TT_UNSHARD, 0, b->buckets[b->waited].units);
        if (b->buckets[b->waited].end > b->now)
            b->now = b->buckets[b->waited].end;
    }
}

static void release_after(struct walk *b, int pos)
{
    const struct gather_list *list = &b->gathers;

    for (; b->next_release < list->n_releases && list->releases[b->next_release].pos <= pos; b->next_release++) {
        const struct release *r = &list->releases[b->next_release];
        bool last = b->next_release + 1 == list->n_releases || r[1].pos != r->pos || r[1].gather != r->gather;

        b->live -= r->bytes;
        if (last && r->pos == list->items[r->gather].last)
            tt_schedule_add(&b->plan.schedule, list->items[r->gather].keeps ? TT_KEEP : TT_RESHARD, 0,
                            list->items[r->gather].unit);
    }
}

/* --- reduces --- */

static void reduce_pending(struct walk *b, int pos)
{
    struct unit_list *pending = &b->pending;
    int mb = b->u->positions[pos].microbatch;
    bool reduces;
    int64_t staging;
    struct handle handle;

    if (pending->n == 0)
        return;
    reduces = travels(b, TT_REDUCE, pending->unit[0]);
    staging = staging_bytes(b, TT_REDUCE, pending->unit[0], pending->elements);
    for (int i = 0; i < pending->n; i++)
        while (b->of[pending->unit[i]].flying)
            wait_oldest(b, pos);
    make_room(b, pos + 1, staging);
    handle = handle_of(b, pending->unit, pending->n);
    add(b, TT_BEGIN, TT_REDUCE, mb, handle);
    fly(b, pos + 1,
        (struct flight){.units = handle,
                        .microbatch = mb,
                        .bytes = staging,
                        .end = transfer(b, TT_REDUCE, pending->unit[0], pending->elements)});
    b->flights[b->n_flights - 1].bytes += pending->whole; /* these bytes are already live */
    for (int i = 0; i < pending->n; i++)
        b->of[pending->unit[i]].flying++;
    clear_units(pending, TT_REDUCE);
    while (!reduces && b->head < b->n_flights && !b->flights[b->head].all_reduce)
        wait_oldest(b, pos); /* nothing travels, so the gradients are the sums */
}

/* Whether to hold back complete gradients, so that one reduce-scatter can carry them with the next ones of the
 * microbatch. */
static bool worth_holding(struct walk *b, int pos, const struct tt_complete *complete)
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
    return fits_until(b, pos + 1, next->pos + 1,
                      staging_bytes(b, TT_REDUCE, b->pending.unit[0],
                                    b->pending.elements + elements_of(b, TT_REDUCE, &next->unit, 1)),
                      b->next_gather);
}

static void reduce_after(struct walk *b, int pos)
{
    for (int c = b->u->complete_from[pos]; c < b->u->complete_from[pos + 1]; c++) {
        const struct tt_complete *complete = &b->u->complete[c];

        if (complete->adds)
            tt_schedule_add(&b->plan.schedule, TT_ADD, b->u->positions[pos].microbatch, complete->unit);
        b->live -= complete->frees * b->facts->unit_grad_bytes[complete->unit];
        if (!complete->reduces)
            continue;
        add_unit(b, &b->pending, complete->unit, b->facts->unit_grad_bytes);
        if (!worth_holding(b, pos, complete))
            reduce_pending(b, pos);
    }
}

/* --- the walk --- */

static void walk(struct walk *b)
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
    for (int u = 0; u < b->u->layout->n_units; u++)
        if (b->u->layout->units[u].shared_grad != TT_NONE)
            tt_schedule_add(&b->plan.schedule, TT_NORM, 0, u);
    tt_fsdp_update(b->u->layout, &b->plan.schedule);
}

struct tt_plan tt_simple_fsdp_plan(const struct tt_simple_fsdp *fsdp, struct tt_candidate candidate)
{
    struct walk b = {.in = fsdp, .u = fsdp->facts->usage, .facts = fsdp->facts, .candidate = candidate};

    b.plan.fits = true;
    b.gathers = gathers_make(b.u, b.facts->param_bytes, candidate.reshard, candidate.stay);
    begin_walk(&b);
    walk(&b);
    b.plan.step_sec = b.now;
    tt_free(b.gathers.items);
    tt_free(b.gathers.releases);
    tt_free(b.buckets);
    tt_free(b.flights);
    tt_free(b.pending.unit);
    tt_free(b.joined.unit);
    tt_free(b.of);
    tt_free(b.summed);
    tt_free(b.ahead);
    tt_free(b.ahead_end);
    tt_free(b.other);
    tt_free(b.grows);
    return b.plan;
}

void tt_plan_release(struct tt_plan *plan)
{
    tt_schedule_release(&plan->schedule);
}
