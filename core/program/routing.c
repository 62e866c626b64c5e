/* SPDX-License-Identifier: MIT
 *
 * The rounds in which ranks that share experts exchange rows of tokens.
 */
#include "core/program/routing.h"

#include "core/base/mem.h"

enum { MOST_KINDS = 2 };

static struct tt_swap_list list_of(int segments, int ranks)
{
    return (struct tt_swap_list){tt_calloc((size_t)segments + 1, sizeof(struct tt_segment)),
                                 tt_calloc((size_t)ranks + 1, sizeof(int))};
}

/* A rank sends rows to at most one pair per end, and receives no more blocks of pairs than that. */
void tt_routing_init(struct tt_routing *r, int most_ends, int most_ranks)
{
    int segments = MOST_KINDS * most_ends > most_ranks ? MOST_KINDS * most_ends : most_ranks;

    *r = (struct tt_routing){0};
    r->ends = tt_calloc((size_t)most_ends * (size_t)most_ranks + 1, sizeof *r->ends);
    r->first = tt_calloc((size_t)most_ranks + 1, sizeof *r->first);
    r->end = tt_calloc((size_t)most_ranks + 1, sizeof *r->end);
    r->pairs = tt_calloc((size_t)most_ends + 3, sizeof *r->pairs);
    r->there = list_of(segments, most_ranks);
    r->back = list_of(segments, most_ranks);
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

void tt_routing_begin(struct tt_routing *r, const struct tt_routing_ranks *ranks, int64_t window)
{
    r->ranks = *ranks;
    r->sources = ranks->n / ranks->blocks * ranks->grains;
    r->n_pairs = ranks->experts / ranks->n * r->sources;
    r->window = window;
    r->rows = 0;
    for (int q = 0; q < ranks->n; q++)
        r->first[q] = r->end[q] = 0;
}

/* A block of a pair: rows of one rank. */
struct block {
    int rank;
    int32_t begin, rows; /* begin: index among the rows of that rank */
};

/* Block `block` of a rank's pair. */
static struct block block_of(const struct tt_routing *r, int rank, int pair, int block)
{
    int own = r->ranks.experts / r->ranks.n, source = pair % r->sources;
    int expert = rank * own + pair / r->sources, from = source / r->ranks.grains * r->ranks.blocks + block;
    int at = expert * r->ranks.grains + source % r->ranks.grains;
    const int32_t *ends = &r->ends[(int64_t)from * tt_routing_ends(&r->ranks)];
    int32_t begin = at ? ends[at - 1] : 0;

    return (struct block){from, begin, ends[at] - begin};
}

static int32_t rows_of_pair(const struct tt_routing *r, int rank, int pair)
{
    int32_t rows = 0;

    for (int block = 0; block < r->ranks.blocks; block++)
        rows += block_of(r, rank, pair, block).rows;
    return rows;
}

bool tt_routing_next(struct tt_routing *r)
{
    int own = r->ranks.index;
    bool any = false;
    int32_t rows = 0;

    for (int rank = 0; rank < r->ranks.n; rank++) {
        int64_t left = r->window;

        any = any || r->end[rank] < r->n_pairs;
        r->first[rank] = r->end[rank];
        for (; r->end[rank] < r->n_pairs; r->end[rank]++) /* the next pairs that fit in its window */
            if ((left -= rows_of_pair(r, rank, r->end[rank])) < 0)
                break;
    }
    for (int pair = r->first[own]; pair < r->end[own]; pair++)
        r->pairs[pair] = rows += rows_of_pair(r, own, pair);
    r->pairs[r->n_pairs] = r->first[own];
    r->pairs[r->n_pairs + 1] = r->end[own];
    r->pairs[r->n_pairs + 2] = (int32_t)(r->rows < INT32_MAX ? r->rows : INT32_MAX);
    r->rows += rows;
    return any;
}

/* The first pair from `pair` on whose blocks include rows of `rank`. */
static int next_of(const struct tt_routing *r, int rank, int pair)
{
    int first = rank / r->ranks.blocks * r->ranks.grains, place = pair % r->sources;

    if (place < first)
        return pair + first - place;
    return place < first + r->ranks.grains ? pair : pair + r->sources + first - place;
}

static void add(struct tt_swap_list *list, int *total, int rank, char *data, int64_t bytes)
{
    if (bytes == 0)
        return;
    list->segments[(*total)++] = (struct tt_segment){data, (size_t)bytes};
    list->n[rank]++;
}

/* Lists the rows that this rank sends to another one. */
static void list_own(struct tt_routing *r, int rank, const struct tt_routed_rows *rows, int *total)
{
    int own = r->ranks.index, place = own % r->ranks.blocks;

    for (int pair = next_of(r, own, r->first[rank]); pair < r->end[rank]; pair = next_of(r, own, pair + 1)) {
        struct block block = block_of(r, rank, pair, place);

        add(&r->there, total, rank, rows->own + block.begin * rows->bytes, block.rows * rows->bytes);
    }
}

/* Lists the rows that this rank receives from another one. */
static void list_window(struct tt_routing *r, int rank, const struct tt_routed_rows *rows, int *total)
{
    int own = r->ranks.index, first = r->first[own], place = rank % r->ranks.blocks;

    for (int pair = next_of(r, rank, first); pair < r->end[own]; pair = next_of(r, rank, pair + 1)) {
        int64_t begin = pair > first ? r->pairs[pair - 1] : 0;

        for (int block = 0; block < place; block++)
            begin += block_of(r, own, pair, block).rows;
        add(&r->back, total, rank, rows->window + begin * rows->bytes,
            block_of(r, own, pair, place).rows * rows->bytes);
    }
}

void tt_routing_list(struct tt_routing *r, const struct tt_routed_rows *rows, int n)
{
    int given = 0, taken = 0;

    for (int rank = 0; rank < r->ranks.n; rank++) {
        r->there.n[rank] = r->back.n[rank] = 0;
        for (int k = 0; k < n; k++)
            list_own(r, rank, &rows[k], &given);
        for (int k = 0; k < n; k++)
            list_window(r, rank, &rows[k], &taken);
    }
}
