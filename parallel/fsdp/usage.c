/* SPDX-License-Identifier: MIT
 *
 * One pass over the graph finds who reads which parameter and who writes which gradient; the rest is sorting.
 */
#include "parallel/fsdp/usage.h"

#include <stdlib.h>

#include "core/base/mem.h"

static int64_t rounded(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

int64_t tt_usage_param_bytes(const struct tt_layout *layout, int unit, int k)
{
    if (layout->shard_degree == 1)
        return 0; /* it is the shard */
    return rounded(layout->units[unit].params[k].chunk * layout->shard_degree * (int64_t)sizeof(float));
}

/* --- facts --- */

static void note_reads(struct tt_usage *u, int node)
{
    const struct tt_node *n = &u->graph->nodes[node];

    for (int i = 0; i < n->n_in; i++) {
        const struct tt_value *in = n->in[i] == TT_NONE ? NULL : &u->graph->values[n->in[i]];
        int unit;

        if (!in || in->kind != TT_VALUE_PARAM)
            continue;
        unit = u->layout->unit_of[in->param];
        if (u->first[unit][n->backward] == TT_NONE)
            u->first[unit][n->backward] = node;
        u->last[unit][n->backward] = node;
        u->param_last[in->param][n->backward] = node;
    }
}

static void note_gradients(struct tt_usage *u, int node, bool *begun, int *ready)
{
    const struct tt_node *n = &u->graph->nodes[node];

    for (int k = 0; k < n->n_out; k++) {
        const struct tt_value *out = &u->graph->values[n->out[k]];

        if (out->kind != TT_VALUE_PARAM_GRAD)
            continue;
        if (!begun[out->param])
            u->grad_bytes[node] +=
                tt_usage_param_bytes(u->layout, u->layout->unit_of[out->param], u->layout->slot_of[out->param]);
        begun[out->param] = true;
        ready[u->layout->unit_of[out->param]] = node;
    }
}

static int list_ready(struct tt_usage *u, const int *ready)
{
    for (int unit = 0; unit < u->layout->n_units; unit++)
        if (ready[unit] == TT_NONE)
            return tt_fail(TT_EINTERNAL, "nothing in the graph makes a gradient of unit %s",
                           u->layout->units[unit].name);
    for (int unit = 0; unit < u->layout->n_units; unit++) /* a counting sort: equal nodes keep the order of units */
        u->ready_from[ready[unit] + 1]++;
    for (int node = 0; node < u->n_nodes; node++)
        u->ready_from[node + 1] += u->ready_from[node];
    for (int unit = 0; unit < u->layout->n_units; unit++) {
        int at = u->ready_from[ready[unit]]++;

        u->ready_nodes[at] = ready[unit];
        u->ready_units[at] = unit;
    }
    u->n_ready = u->layout->n_units;
    for (int node = 0, r = 0; node <= u->n_nodes; node++) {
        while (r < u->n_ready && u->ready_nodes[r] < node)
            r++;
        u->ready_from[node] = r;
    }
    return 0;
}

static void fill_none(int *array, size_t n)
{
    for (size_t i = 0; i < n; i++)
        array[i] = TT_NONE;
}

static void allocate(struct tt_usage *u)
{
    size_t n = (size_t)u->n_nodes, n_units = (size_t)u->layout->n_units, n_params = (size_t)u->layout->n_params;

    u->node_sec = tt_calloc(n, sizeof *u->node_sec);
    u->begin_sec = tt_calloc(n + 1, sizeof *u->begin_sec);
    u->grad_bytes = tt_calloc(n, sizeof *u->grad_bytes);
    u->first = tt_calloc(n_units, sizeof *u->first);
    u->last = tt_calloc(n_units, sizeof *u->last);
    u->param_last = tt_calloc(n_params, sizeof *u->param_last);
    u->ready_units = tt_calloc(n_units, sizeof *u->ready_units);
    u->ready_nodes = tt_calloc(n_units, sizeof *u->ready_nodes);
    u->ready_from = tt_calloc(n + 1, sizeof *u->ready_from);
    u->unit_bytes = tt_calloc(n_units, sizeof *u->unit_bytes);
    fill_none(&u->first[0][0], 2 * n_units);
    fill_none(&u->last[0][0], 2 * n_units);
    fill_none(&u->param_last[0][0], 2 * n_params);
}

int tt_usage_make(const struct tt_graph *graph, const struct tt_layout *layout, int microbatches, int threads,
                  const struct tt_machine *machine, struct tt_usage *ret_usage)
{
    struct tt_usage u = {.graph = graph,
                         .layout = layout,
                         .microbatches = microbatches,
                         .n_nodes = graph->n_nodes,
                         .reduce_last = graph->carries};
    bool *begun = tt_calloc((size_t)layout->n_params, sizeof *begun);
    int *ready = tt_calloc((size_t)layout->n_units, sizeof *ready);
    int rc = 0;

    allocate(&u);
    fill_none(ready, (size_t)layout->n_units);
    for (int n = 0; n < u.n_nodes; n++) {
        u.node_sec[n] = tt_cost_node_sec(machine, graph, n, threads);
        u.begin_sec[n + 1] = u.begin_sec[n] + u.node_sec[n];
        note_reads(&u, n);
        note_gradients(&u, n, begun, ready);
    }
    for (int unit = 0; unit < layout->n_units; unit++)
        for (int k = 0; k < layout->units[unit].n_params; k++)
            u.unit_bytes[unit] += tt_usage_param_bytes(layout, unit, k);
    TT_TRY(list_ready(&u, ready));
    *ret_usage = u;
    u = (struct tt_usage){0};
out:
    tt_free(begun);
    tt_free(ready);
    tt_usage_release(&u);
    return rc;
}

void tt_usage_release(struct tt_usage *u)
{
    tt_free(u->node_sec);
    tt_free(u->begin_sec);
    tt_free(u->grad_bytes);
    tt_free(u->first);
    tt_free(u->last);
    tt_free(u->param_last);
    tt_free(u->ready_units);
    tt_free(u->ready_nodes);
    tt_free(u->ready_from);
    tt_free(u->unit_bytes);
    *u = (struct tt_usage){0};
}

/* --- gathers --- */

/* One unit's reads in the forward or the backward of a microbatch. */
struct use {
    int unit;
    int microbatch;
    bool backward;
    int first, last; /* positions */
};

static int compare_uses(const void *a, const void *b)
{
    const struct use *x = a, *y = b;

    return x->first != y->first ? (x->first < y->first ? -1 : 1) : x->unit < y->unit ? -1 : x->unit > y->unit;
}

static int compare_releases(const void *a, const void *b)
{
    const struct tt_release *x = a, *y = b;

    return x->pos != y->pos         ? (x->pos < y->pos ? -1 : 1)
           : x->gather != y->gather ? (x->gather < y->gather ? -1 : 1)
           : x->bytes < y->bytes    ? -1
                                    : x->bytes > y->bytes;
}

static struct use *sorted_uses(const struct tt_usage *u, int *ret_n)
{
    struct use *uses = tt_calloc(2 * (size_t)u->layout->n_units * (size_t)u->microbatches, sizeof *uses);
    int n = 0;

    for (int mb = 0; mb < u->microbatches; mb++)
        for (int unit = 0; unit < u->layout->n_units; unit++)
            for (int phase = 0; phase < 2; phase++)
                if (u->first[unit][phase] != TT_NONE)
                    uses[n++] = (struct use){unit, mb, phase == 1, mb * u->n_nodes + u->first[unit][phase],
                                             mb * u->n_nodes + u->last[unit][phase]};
    qsort(uses, (size_t)n, sizeof *uses, compare_uses);
    *ret_n = n;
    return uses;
}

static bool stays(const struct tt_usage *u, const struct tt_gather_list *list, int gather, const struct use *use,
                  const bool *reshard, enum tt_near near)
{
    if (use->backward && !reshard[use->unit] && list->items[gather].last / u->n_nodes == use->microbatch)
        return true;
    return near != TT_NEAR_NONE && list->n - list->items[gather].after <= (near == TT_NEAR_ONE ? 1 : 0);
}

/* The last read of each parameter so far in the unit's newest gather; unread ones end where the gather is waited for. */
static void note_releases(const struct tt_usage *u, const struct use *use, bool fresh, int *param_pos)
{
    const struct tt_unit *unit = &u->layout->units[use->unit];

    for (int k = 0; k < unit->n_params; k++) {
        int p = unit->params[k].param, node = u->param_last[p][use->backward];

        if (fresh)
            param_pos[p] = use->first;
        if (node != TT_NONE)
            param_pos[p] = use->microbatch * u->n_nodes + node;
    }
}

static void close_gather(const struct tt_usage *u, struct tt_gather_list *list, int gather, const int *param_pos)
{
    int unit = list->items[gather].unit;

    for (int k = 0; k < u->layout->units[unit].n_params; k++)
        TT_PUSH(list->releases, list->n_releases, list->cap_releases) = (struct tt_release){
            list->items[gather].keeps ? list->items[gather].last : param_pos[u->layout->units[unit].params[k].param],
            gather, tt_usage_param_bytes(u->layout, unit, k)};
}

struct tt_gather_list tt_usage_gathers(const struct tt_usage *u, const bool *reshard, enum tt_near near)
{
    struct tt_gather_list list = {0};
    int *newest = tt_calloc((size_t)u->layout->n_units, sizeof *newest); /* gather of each unit */
    int *param_pos = tt_calloc((size_t)u->layout->n_params, sizeof *param_pos);
    int n;
    struct use *uses = sorted_uses(u, &n);

    fill_none(newest, (size_t)u->layout->n_units);
    for (int i = 0; i < n; i++) {
        const struct use *use = &uses[i];
        int old = newest[use->unit];
        bool fresh = old == TT_NONE || !stays(u, &list, old, use, reshard, near);

        bool from_kept = fresh && old != TT_NONE && use->backward && u->layout->units[use->unit].keep_degree > 1 &&
                         list.items[old].last / u->n_nodes == use->microbatch;

        if (from_kept)
            list.items[old].keeps = true;
        if (fresh && old != TT_NONE)
            close_gather(u, &list, old, param_pos);
        if (fresh) {
            newest[use->unit] = list.n;
            TT_PUSH(list.items, list.n, list.cap) = (struct tt_gather){
                .unit = use->unit, .first = use->first, .last = use->last, .previous = old, .from_kept = from_kept};
        }
        list.items[newest[use->unit]].last = use->last;
        list.items[newest[use->unit]].after = list.n;
        note_releases(u, use, fresh, param_pos);
    }
    for (int unit = 0; unit < u->layout->n_units; unit++)
        if (newest[unit] != TT_NONE)
            close_gather(u, &list, newest[unit], param_pos);
    if (list.n_releases)
        qsort(list.releases, (size_t)list.n_releases, sizeof *list.releases, compare_releases);
    tt_free(uses);
    tt_free(newest);
    tt_free(param_pos);
    return list;
}

void tt_gather_list_release(struct tt_gather_list *list)
{
    tt_free(list->items);
    tt_free(list->releases);
    *list = (struct tt_gather_list){0};
}
