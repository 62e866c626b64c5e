/* SPDX-License-Identifier: MIT
 *
 * Rounds of rows for experts that ranks share; see routing.h.
 */
#include "core/program/routing.h"

#include "core/base/mem.h"

enum { MOST_KINDS = 2 };

static struct tt_swap_list list_of(int segments, int ranks)
{
    return (struct tt_swap_list){tt_calloc((size_t)segments + 1, sizeof(struct tt_segment)),
                                 tt_calloc((size_t)ranks + 1, sizeof(int))};
}

/* A rank gives rows to as many pairs as there are experts, and takes those of as many. */
void tt_routing_init(struct tt_routing *r, int most_experts, int most_ranks)
{
    *r = (struct tt_routing){0};
    r->ends = tt_calloc((size_t)most_experts * (size_t)most_ranks + 1, sizeof *r->ends);
    r->first = tt_calloc((size_t)most_ranks + 1, sizeof *r->first);
    r->end = tt_calloc((size_t)most_ranks + 1, sizeof *r->end);
    r->pairs = tt_calloc((size_t)most_experts + 2, sizeof *r->pairs);
    r->there = list_of(MOST_KINDS * most_experts, most_ranks);
    r->back = list_of(MOST_KINDS * most_experts, most_ranks);
}

void tt_routing_release(struct tt_routing *r)
{
    tt_free(r->ends);
    tt_free(r->first);
    tt_free(r->end);
    tt_free(r->pairs);
    tt_free(r->there.segments);
    tt_free(r->there.n);
    tt_free(r->back.segments);
    tt_free(r->back.n);
    *r = (struct tt_routing){0};
}

void tt_routing_begin(struct tt_routing *r, int ranks, int index, int experts, int64_t window)
{
    r->ranks = ranks;
    r->index = index;
    r->experts = experts;
    r->window = window;
    for (int q = 0; q < ranks; q++)
        r->first[q] = r->end[q] = 0;
}

/* --- rounds --- */

/* The first of source's rows for an expert, and their number. */
static int32_t rows_of(const struct tt_routing *r, int source, int expert, int32_t *ret_begin)
{
    const int32_t *ends = &r->ends[(int64_t)source * r->experts];

    *ret_begin = expert ? ends[expert - 1] : 0;
    return ends[expert] - *ret_begin;
}

static int32_t rows_of_pair(const struct tt_routing *r, int rank, int pair)
{
    int32_t begin;

    return rows_of(r, pair % r->ranks, rank * (r->experts / r->ranks) + pair / r->ranks, &begin);
}

/* As many further pairs as fit into a rank's window. */
static void extend(struct tt_routing *r, int rank)
{
    int64_t rows = 0;
    int pair = r->first[rank] = r->end[rank];

    for (; pair < r->experts; pair++) {
        rows += rows_of_pair(r, rank, pair);
        if (rows > r->window)
            break;
    }
    r->end[rank] = pair;
}

/* A rank has as many pairs as there are experts. */
bool tt_routing_next(struct tt_routing *r)
{
    bool any = false;
    int32_t rows = 0;

    for (int rank = 0; rank < r->ranks; rank++) {
        any = any || r->end[rank] < r->experts;
        extend(r, rank);
    }
    for (int pair = r->first[r->index]; pair < r->end[r->index]; pair++)
        r->pairs[pair] = rows += rows_of_pair(r, r->index, pair);
    r->pairs[r->experts] = r->first[r->index];
    r->pairs[r->experts + 1] = r->end[r->index];
    return any;
}

/* --- lists --- */

/* The first expert of a rank, from 0 on, whose rows of `source` are in this round, and the end of these. */
static void experts_in_round(const struct tt_routing *r, int rank, int source, int *ret_first, int *ret_end)
{
    *ret_first = (r->first[rank] + r->ranks - 1 - source) / r->ranks;
    *ret_end = (r->end[rank] + r->ranks - 1 - source) / r->ranks;
}

static void add(struct tt_swap_list *list, int *total, int rank, char *data, int64_t bytes)
{
    if (bytes == 0)
        return;
    list->segments[(*total)++] = (struct tt_segment){data, (size_t)bytes};
    list->n[rank]++;
}

/* What this rank gives to another one. */
static void list_own(struct tt_routing *r, int rank, const struct tt_routed_rows *rows, int *total)
{
    int own = r->experts / r->ranks, first, end;

    experts_in_round(r, rank, r->index, &first, &end);
    for (int expert = first; expert < end; expert++) {
        int32_t begin, n = rows_of(r, r->index, rank * own + expert, &begin);

        add(&r->there, total, rank, rows->own + begin * rows->bytes, n * rows->bytes);
    }
}

/* What this rank takes from another one. */
static void list_window(struct tt_routing *r, int rank, const struct tt_routed_rows *rows, int *total)
{
    int first, end;

    experts_in_round(r, r->index, rank, &first, &end);
    for (int expert = first; expert < end; expert++) {
        int pair = expert * r->ranks + rank;
        int32_t begin = pair > r->first[r->index] ? r->pairs[pair - 1] : 0;

        add(&r->back, total, rank, rows->window + begin * rows->bytes, (r->pairs[pair] - begin) * rows->bytes);
    }
}

void tt_routing_list(struct tt_routing *r, const struct tt_routed_rows *rows, int n)
{
    int given = 0, taken = 0;

    for (int rank = 0; rank < r->ranks; rank++) {
        r->there.n[rank] = r->back.n[rank] = 0;
        for (int k = 0; k < n; k++)
            list_own(r, rank, &rows[k], &given);
        for (int k = 0; k < n; k++)
            list_window(r, rank, &rows[k], &taken);
    }
}
