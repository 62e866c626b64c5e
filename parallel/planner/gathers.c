/* SPDX-License-Identifier: MIT
 *
 * Makes gathers from uses. Uses that read are taken in the order of their first read. Each begins a gather or extends
 * the unit's newest one.
 */
#include "parallel/planner/gathers.h"

#include <stdlib.h>

#include "core/base/mem.h"

static int compare_reads(const void *a, const void *b)
{
    const struct tt_use *x = *(const struct tt_use *const *)a, *y = *(const struct tt_use *const *)b;

    return x->first_read != y->first_read ? (x->first_read < y->first_read ? -1 : 1)
           : x->unit < y->unit            ? -1
                                          : x->unit > y->unit;
}

static int compare_releases(const void *a, const void *b)
{
    const struct tt_release *x = a, *y = b;

    return x->pos != y->pos         ? (x->pos < y->pos ? -1 : 1)
           : x->gather != y->gather ? (x->gather < y->gather ? -1 : 1)
           : x->bytes < y->bytes    ? -1
                                    : x->bytes > y->bytes;
}

static const struct tt_use **reading_uses(const struct tt_usage *u, int *ret_n)
{
    const struct tt_use **uses = tt_calloc((size_t)u->n_uses + 1, sizeof *uses);
    int n = 0;

    for (int i = 0; i < u->n_uses; i++)
        if (u->uses[i].first_read != TT_NONE)
            uses[n++] = &u->uses[i];
    qsort(uses, (size_t)n, sizeof *uses, compare_reads);
    *ret_n = n;
    return uses;
}

/* Whether the last read of the gather is in the forward of the microbatch whose backward this use is. */
static bool turns_back(const struct tt_usage *u, const struct tt_gather *gather, const struct tt_use *use)
{
    return tt_use_pass(u, use) != TT_PASS_FORWARD && u->positions[gather->last].microbatch == tt_use_microbatch(u, use);
}

static bool stays(const struct tt_usage *u, const struct tt_gather_list *list, int gather, const struct tt_use *use,
                  const bool *reshard, enum tt_stay stay)
{
    if (!reshard[use->unit] && turns_back(u, &list->items[gather], use))
        return true;
    return stay != TT_STAY_BY_POLICY && list->n - list->items[gather].n_before <= (stay == TT_STAY_OVER_ONE ? 1 : 0);
}

/* Notes the last read of each parameter in the unit's newest gather. A parameter that is not read ends where the gather
 * is waited for. */
static void note_reads(const struct tt_usage *u, const struct tt_use *use, bool fresh, int *param_pos)
{
    const struct tt_unit *unit = &u->layout->units[use->unit];

    for (int k = 0; k < unit->n_params; k++) {
        int read = u->param_last_read[use->param_reads + k];

        if (fresh)
            param_pos[unit->params[k].param] = use->first_read;
        if (read != TT_NONE)
            param_pos[unit->params[k].param] = read;
    }
}

static void close_gather(const struct tt_usage *u, struct tt_gather_list *list, int gather, const int *param_pos,
                         const int64_t *param_bytes)
{
    const struct tt_gather *g = &list->items[gather];

    for (int k = 0; k < u->layout->units[g->unit].n_params; k++) {
        int param = u->layout->units[g->unit].params[k].param;

        TT_PUSH(list->releases, list->n_releases, list->cap_releases) =
            (struct tt_release){g->keeps ? g->last : param_pos[param], gather, param_bytes[param]};
    }
}

struct tt_gather_list tt_gathers_make(const struct tt_usage *u, const int64_t *param_bytes, const bool *reshard,
                                      enum tt_stay stay)
{
    struct tt_gather_list list = {0};
    int *newest = tt_calloc((size_t)u->layout->n_units, sizeof *newest); /* [unit] its newest gather */
    int *param_pos = tt_calloc((size_t)u->layout->n_params, sizeof *param_pos);
    int n;
    const struct tt_use **uses = reading_uses(u, &n);

    for (int unit = 0; unit < u->layout->n_units; unit++)
        newest[unit] = TT_NONE;
    for (int i = 0; i < n; i++) {
        const struct tt_use *use = uses[i];
        int old = newest[use->unit];
        bool fresh = old == TT_NONE || !stays(u, &list, old, use, reshard, stay);
        bool from_kept = fresh && old != TT_NONE && u->layout->units[use->unit].keep_degree > 1 &&
                         turns_back(u, &list.items[old], use);

        if (from_kept)
            list.items[old].keeps = true;
        if (fresh && old != TT_NONE)
            close_gather(u, &list, old, param_pos, param_bytes);
        if (fresh) {
            newest[use->unit] = list.n;
            TT_PUSH(list.items, list.n, list.cap) = (struct tt_gather){
                .unit = use->unit, .first = use->first_read, .previous = old, .from_kept = from_kept};
        }
        list.items[newest[use->unit]].last = use->last_read;
        list.items[newest[use->unit]].n_before = list.n;
        note_reads(u, use, fresh, param_pos);
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

void tt_gather_list_release(struct tt_gather_list *list)
{
    tt_free(list->items);
    tt_free(list->releases);
    *list = (struct tt_gather_list){0};
}
