/* SPDX-License-Identifier: MIT
 *
 * Byte pair encoding with a linked list of symbols and a heap of candidate merges. A candidate is stale when its left
 * symbol was swallowed or its pair has changed. Stale ones are dropped when they reach the top of the heap.
 */
#include "core/tokenizer/bpe.h"

#include <stdbool.h>

#include "core/base/hash.h"
#include "core/base/mem.h"

struct tt_bpe_symbol {
    int32_t id; /* -1: swallowed by its left neighbour */
    int32_t before, after;
};

struct tt_bpe_candidate {
    int32_t rank, at, left, right, id;
};

static struct tt_bpe_merge *find(const struct tt_bpe *bpe, uint64_t pair)
{
    for (size_t i = tt_mix64(pair) & (bpe->cap - 1);; i = (i + 1) & (bpe->cap - 1)) {
        if (bpe->merge[i].rank < 0 || bpe->merge[i].pair == pair)
            return &bpe->merge[i];
    }
}

static void grow(struct tt_bpe *bpe)
{
    struct tt_bpe_merge *old = bpe->merge;
    size_t old_cap = bpe->cap;

    bpe->cap = old_cap ? 2 * old_cap : 256;
    bpe->merge = tt_calloc(bpe->cap, sizeof *bpe->merge);
    for (size_t i = 0; i < bpe->cap; i++)
        bpe->merge[i].rank = -1;
    for (size_t i = 0; i < old_cap; i++) {
        if (old[i].rank >= 0)
            *find(bpe, old[i].pair) = old[i];
    }
    tt_free(old);
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void tt_bpe_add(struct tt_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    struct tt_bpe_merge *m;

    if (2 * (bpe->n + 1) > bpe->cap)
        grow(bpe);
    m = find(bpe, pair_key(left, right));
    if (m->rank < 0)
        bpe->n++;
    *m = (struct tt_bpe_merge){.pair = pair_key(left, right), .rank = rank, .id = id};
}

void tt_bpe_release(struct tt_bpe *bpe)
{
    tt_free(bpe->merge);
    *bpe = (struct tt_bpe){0};
}

void tt_bpe_scratch_release(struct tt_bpe_scratch *scratch)
{
    tt_free(scratch->symbol);
    tt_free(scratch->heap);
    *scratch = (struct tt_bpe_scratch){0};
}

static bool is_before(const struct tt_bpe_candidate *a, const struct tt_bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct tt_bpe_candidate *heap, size_t *n, struct tt_bpe_candidate c)
{
    size_t i = (*n)++;

    while (i > 0 && is_before(&c, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = c;
}

static struct tt_bpe_candidate heap_pop(struct tt_bpe_candidate *heap, size_t *n)
{
    struct tt_bpe_candidate top = heap[0], last = heap[--*n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < *n) {
        if (child + 1 < *n && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* Puts the pair that begins at symbol `at` on the heap, if it has a merge. */
static void consider(const struct tt_bpe *bpe, struct tt_bpe_scratch *s, size_t *n_heap, int32_t at)
{
    const struct tt_bpe_symbol *left = &s->symbol[at];
    const struct tt_bpe_merge *m;

    if (at < 0 || left->after < 0)
        return;
    m = find(bpe, pair_key(left->id, s->symbol[left->after].id));
    if (m->rank >= 0)
        heap_push(s->heap, n_heap, (struct tt_bpe_candidate){m->rank, at, left->id, s->symbol[left->after].id, m->id});
}

static void reserve(struct tt_bpe_scratch *s, size_t n)
{
    if (n > s->symbol_cap) {
        s->symbol_cap = 2 * n;
        s->symbol = tt_realloc(s->symbol, s->symbol_cap, sizeof *s->symbol);
    }
    if (3 * n > s->heap_cap) { /* n - 1 first pairs, and each of at most n - 1 merges adds two */
        s->heap_cap = 6 * n;
        s->heap = tt_realloc(s->heap, s->heap_cap, sizeof *s->heap);
    }
}

size_t tt_bpe_encode(const struct tt_bpe *bpe, struct tt_bpe_scratch *scratch, int32_t *ids, size_t n)
{
    struct tt_bpe_symbol *symbol;
    size_t n_heap = 0, kept = 0;

    if (n < 2 || !bpe->n)
        return n;
    reserve(scratch, n);
    symbol = scratch->symbol;
    for (size_t i = 0; i < n; i++)
        symbol[i] = (struct tt_bpe_symbol){ids[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i + 1 < n; i++)
        consider(bpe, scratch, &n_heap, (int32_t)i);
    while (n_heap) {
        struct tt_bpe_candidate c = heap_pop(scratch->heap, &n_heap);
        struct tt_bpe_symbol *left = &symbol[c.at], *right;

        if (left->id != c.left || left->after < 0 || symbol[left->after].id != c.right)
            continue;
        right = &symbol[left->after];
        left->id = c.id;
        left->after = right->after;
        right->id = -1;
        if (left->after >= 0)
            symbol[left->after].before = c.at;
        if (left->before >= 0)
            consider(bpe, scratch, &n_heap, left->before);
        consider(bpe, scratch, &n_heap, c.at);
    }
    for (int32_t i = 0; i >= 0; i = symbol[i].after)
        ids[kept++] = symbol[i].id;
    return kept;
}
