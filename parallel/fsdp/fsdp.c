/* SPDX-License-Identifier: MIT
 *
 * The eager scheduler. A visit is one stay of the computation in a unit: from the first node that reads one of the
 * unit's parameters (in backward: or writes one of their gradients) to the last. A unit has a forward visit and a backward
 * visit per microbatch; the visits of all microbatches, in order of their first node, are the sequence that the prefetch
 * looks ahead in. Visits of different units may overlap (a unit that spans the model).
 *
 * A unit of which no backward node touches anything is the output's weight alone: the head makes its gradient in forward.
 * FSDP2 knows no such thing, so the unit gets a backward visit all the same, behind the head and empty: gathered again if
 * the policy frees it after forward, freed, reduced. Every unit then has two visits, and traffic is one formula.
 */
#include "parallel/fsdp/fsdp.h"

#include <stdlib.h>

#include "core/base/mem.h"
#include "parallel/comm/collectives.h"

struct visit {
    int unit;
    int microbatch;
    bool backward;
    int first, last; /* nodes */
    bool empty;      /* comes behind node first == last and has no node of its own */
};

struct walk {
    const struct tt_fsdp *fsdp;
    struct tt_schedule *schedule;
    struct visit *visits; /* of all microbatches, in order */
    int n, cap;
    int next;        /* first visit that has not begun */
    bool *gathering; /* unit -> unshard issued and not resharded since */
    bool *ready;     /* unit -> unshard waited for */
    int *ends_at;    /* node -> first visit of this microbatch that ends after it, TT_NONE if none */
    int *next_end;   /* visit -> the next one that ends after the same node */
    int reducing;    /* visit whose reduce-scatter is under way, TT_NONE if none */
};

/* --- visits --- */

/* The nodes of a unit in forward and in backward, of any microbatch. */
struct phases {
    struct visit phase[2];
};

static void touch(struct phases *units, int unit, bool backward, int node)
{
    struct visit *v = &units[unit].phase[backward];

    if (v->first == TT_NONE)
        v->first = node;
    v->last = node;
}

/* One pass over the graph: who reads a parameter, and in backward who writes a gradient. */
static struct phases *find_phases(const struct tt_graph *graph, const struct tt_layout *layout)
{
    struct phases *units = tt_calloc((size_t)layout->n_units + 1, sizeof *units);

    for (int u = 0; u < layout->n_units; u++)
        units[u] = (struct phases){{{.unit = u, .first = TT_NONE}, {.unit = u, .backward = true, .first = TT_NONE}}};
    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];

        for (int i = 0; i < node->n_in; i++) {
            const struct tt_value *in = node->in[i] == TT_NONE ? NULL : &graph->values[node->in[i]];

            if (in && in->kind == TT_VALUE_PARAM)
                touch(units, layout->unit_of[in->param], node->backward, n);
        }
        for (int k = 0; k < node->n_out && node->backward; k++) {
            const struct tt_value *out = &graph->values[node->out[k]];

            if (out->kind == TT_VALUE_PARAM_GRAD)
                touch(units, layout->unit_of[out->param], true, n);
        }
    }
    return units;
}

static int compare_visits(const void *a, const void *b)
{
    const struct visit *x = a, *y = b;

    if (x->microbatch != y->microbatch)
        return x->microbatch < y->microbatch ? -1 : 1;
    if (x->backward != y->backward)
        return x->backward ? 1 : -1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* The node that makes the token losses, and with them the gradient of the output's weight. */
static int head_node(const struct tt_graph *graph)
{
    return graph->token_loss == TT_NONE ? TT_NONE : graph->values[graph->token_loss].producer;
}

static int find_visits(struct walk *w, bool with_backward)
{
    const struct tt_graph *graph = w->fsdp->graph;
    const struct tt_layout *layout = w->fsdp->layout;
    struct phases *units = find_phases(graph, layout);
    int rc = 0;

    for (int u = 0; u < layout->n_units; u++) {
        struct visit *visit = units[u].phase;

        if (with_backward && visit[1].first == TT_NONE && visit[0].last == head_node(graph)) {
            visit[1].first = visit[1].last = visit[0].last;
            visit[1].empty = true;
        }
        if (visit[0].first == TT_NONE || (with_backward && visit[1].first == TT_NONE)) {
            rc = tt_fail(TT_EINTERNAL, "nothing in the graph uses unit %s", layout->units[u].name);
            goto out;
        }
        for (int mb = 0; mb < w->fsdp->microbatches; mb++)
            for (int phase = 0; phase <= (int)with_backward; phase++) {
                visit[phase].microbatch = mb;
                TT_PUSH(w->visits, w->n, w->cap) = visit[phase];
            }
    }
    qsort(w->visits, (size_t)w->n, sizeof *w->visits, compare_visits);
out:
    tt_free(units);
    return rc;
}

/* --- what happens at the edges of a visit --- */

static void unshard(struct walk *w, int unit)
{
    if (w->gathering[unit])
        return;
    tt_schedule_add(w->schedule, TT_UNSHARD, 0, TT_NONE, unit);
    w->gathering[unit] = true;
    w->ready[unit] = false;
}

/* kind: TT_RESHARD or TT_KEEP */
static void reshard(struct walk *w, enum tt_instr_kind kind, int unit)
{
    tt_schedule_add(w->schedule, kind, 0, TT_NONE, unit);
    w->gathering[unit] = false;
}

/*
 * The two visits of the unit where forward turns into backward count as one: FSDP2 prefetches for the last block while
 * the head runs backward, and here the head runs forward and backward in one node.
 */
static void prefetch(struct walk *w, int at)
{
    for (int next = at + 1, ahead = 0; next < w->n && ahead < w->fsdp->prefetch; next++) {
        const struct visit *visit = &w->visits[next];

        if (visit->unit == visit[-1].unit && visit->microbatch == visit[-1].microbatch)
            continue;
        unshard(w, visit->unit);
        ahead++;
    }
}

static void begin_visit(struct walk *w, int at)
{
    int unit = w->visits[at].unit;

    unshard(w, unit);
    if (!w->ready[unit]) {
        tt_schedule_add(w->schedule, TT_WAIT_UNSHARD, 0, TT_NONE, unit);
        w->ready[unit] = true;
    }
    prefetch(w, at);
}

static void wait_for_reduce(struct walk *w)
{
    if (w->reducing == TT_NONE)
        return;
    tt_schedule_add(w->schedule, TT_WAIT_REDUCE, w->visits[w->reducing].microbatch, TT_NONE,
                    w->visits[w->reducing].unit);
    w->reducing = TT_NONE;
}

static void end_visit(struct walk *w, int at, bool with_backward)
{
    const struct visit *visit = &w->visits[at];
    const struct tt_unit *unit = &w->fsdp->layout->units[visit->unit];

    if (visit->backward) {
        bool reduces = !w->fsdp->reduce_last || visit->microbatch == w->fsdp->microbatches - 1;

        if (reduces)
            wait_for_reduce(w); /* one reduce-scatter at a time, which bounds what is in flight */
        reshard(w, TT_RESHARD, visit->unit);
        if (reduces) {
            tt_schedule_add(w->schedule, TT_REDUCE, visit->microbatch, TT_NONE, visit->unit);
            w->reducing = at;
        }
    } else if (!with_backward || unit->reshard_after_forward) {
        reshard(w, with_backward && unit->keep_degree ? TT_KEEP : TT_RESHARD, visit->unit);
    }
}

/* --- the walk --- */

/* A list of visits per node: those that end after it, in order. Only visits that are not empty are in a list. */
static void chain_by_last(const struct walk *w, int begin, int end)
{
    for (int n = 0; n < w->fsdp->graph->n_nodes; n++)
        w->ends_at[n] = TT_NONE;
    for (int v = end - 1; v >= begin; v--) {
        if (w->visits[v].empty)
            continue;
        w->next_end[v] = w->ends_at[w->visits[v].last];
        w->ends_at[w->visits[v].last] = v;
    }
}

static void walk_microbatch(struct walk *w, int mb, bool with_backward)
{
    const struct tt_graph *graph = w->fsdp->graph;
    int end = w->next; /* this microbatch's visits are [next, end) */

    while (end < w->n && w->visits[end].microbatch == mb)
        end++;
    chain_by_last(w, w->next, end);
    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];

        for (; w->next < end && w->visits[w->next].first == n && !w->visits[w->next].empty; w->next++)
            begin_visit(w, w->next);
        tt_schedule_add(w->schedule, TT_RUN, mb, n, TT_NONE);
        if (node->out[0] == graph->token_loss)
            tt_schedule_add(w->schedule, TT_LOSS, mb, TT_NONE, TT_NONE);
        for (int v = w->ends_at[n]; v != TT_NONE && v < w->next; v = w->next_end[v])
            end_visit(w, v, with_backward);
        for (; w->next < end && w->visits[w->next].first == n; w->next++) {
            begin_visit(w, w->next);
            end_visit(w, w->next, with_backward);
        }
    }
}

static int walk_all(const struct tt_fsdp *fsdp, bool with_backward, struct tt_schedule *schedule)
{
    size_t n_units = (size_t)fsdp->layout->n_units;
    struct walk w = {.fsdp = fsdp, .schedule = schedule, .reducing = TT_NONE};
    int rc = 0;

    w.gathering = tt_calloc(n_units, sizeof *w.gathering);
    w.ready = tt_calloc(n_units, sizeof *w.ready);
    TT_TRY(find_visits(&w, with_backward));
    w.ends_at = tt_calloc((size_t)fsdp->graph->n_nodes + 1, sizeof *w.ends_at);
    w.next_end = tt_calloc((size_t)w.n + 1, sizeof *w.next_end);
    for (int mb = 0; mb < fsdp->microbatches; mb++)
        walk_microbatch(&w, mb, with_backward);
    wait_for_reduce(&w);
out:
    tt_free(w.visits);
    tt_free(w.gathering);
    tt_free(w.ready);
    tt_free(w.ends_at);
    tt_free(w.next_end);
    return rc;
}

/* All-reduces over the replicas, each overlapping the norm of the one before; then clip; then the update. */
static void schedule_update(const struct tt_layout *layout, struct tt_schedule *schedule)
{
    for (int u = 0; u <= layout->n_units; u++) {
        if (u < layout->n_units)
            tt_schedule_add(schedule, TT_ALL_REDUCE, 0, TT_NONE, u);
        if (u > 0) {
            tt_schedule_add(schedule, TT_WAIT_ALL_REDUCE, 0, TT_NONE, u - 1);
            tt_schedule_add(schedule, TT_NORM, 0, TT_NONE, u - 1);
        }
    }
    tt_schedule_add(schedule, TT_CLIP, 0, TT_NONE, TT_NONE);
    for (int u = 0; u < layout->n_units; u++)
        tt_schedule_add(schedule, TT_OPTIMIZER, 0, TT_NONE, u);
}

int tt_fsdp_schedule_step(const struct tt_fsdp *fsdp, struct tt_schedule *schedule)
{
    int rc = walk_all(fsdp, true, schedule);

    if (rc == 0)
        schedule_update(fsdp->layout, schedule);
    return rc;
}

int tt_fsdp_schedule_forward(const struct tt_fsdp *fsdp, struct tt_schedule *schedule)
{
    int rc = walk_all(fsdp, false, schedule);

    if (rc == 0)
        tt_schedule_add(schedule, TT_CLIP, 0, TT_NONE, TT_NONE);
    return rc;
}

/* --- bytes --- */

int64_t tt_fsdp_reduce_staging(const struct tt_layout *layout, int64_t shard_bytes)
{
    return tt_reduce_scatter_scratch(layout->shard_degree, shard_bytes);
}

int64_t tt_fsdp_all_reduce_staging(const struct tt_layout *layout, int64_t shard_bytes)
{
    return tt_all_reduce_scratch(layout->replicate_degree, shard_bytes);
}

/* Every one of n neighbours sends its part, S / n chunks, to the others. */
static int64_t kept_payload(const struct tt_program *program, const struct tt_instr *instr)
{
    int n = program->layout->units[instr->unit].keep_degree;

    return tt_all_gather_payload(n, program->layout->shard_degree / n * tt_instr_shard_bytes(program, instr));
}

int64_t tt_fsdp_instr_payload_bytes(const struct tt_program *program, const struct tt_instr *instr)
{
    const struct tt_layout *layout = program->layout;

    switch (instr->kind) {
    case TT_UNSHARD:
        return tt_all_gather_payload(layout->shard_degree, tt_instr_shard_bytes(program, instr));
    case TT_UNSHARD_KEPT:
        return kept_payload(program, instr);
    case TT_REDUCE:
        return tt_reduce_scatter_payload(layout->shard_degree, tt_instr_shard_bytes(program, instr));
    case TT_ALL_REDUCE:
        return tt_all_reduce_payload(layout->replicate_degree, tt_instr_shard_bytes(program, instr));
    default:
        return 0;
    }
}

int64_t tt_fsdp_payload_bytes(const struct tt_program *program)
{
    int64_t bytes = 0;

    for (int i = 0; i < program->n_instrs; i++)
        bytes += tt_fsdp_instr_payload_bytes(program, &program->instrs[i]);
    return bytes;
}
