/* SPDX-License-Identifier: MIT
 *
 * Lists of placed buffers, sorted by offset: one of each block of instructions, and one of all buffers.
 */
#include "core/program/placed.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"

enum {
    AT_A_TIME = 32,     /* placed buffers that are examined at once */
    BLOCKS = 96,        /* of a step, at most */
    FOR_A_BLOCK = 128,  /* buffers for each block: lists of few are quick anyway */
    MOST_OF_BLOCKS = 6, /* a buffer that lives in more of them is compared with all others */
};

struct item {
    int64_t offset, end;
    int first, last;
};

/* Sorted by offset. The search for gaps goes through very many items, so each member is an array of its own. The arrays
 * have room for AT_A_TIME items after the last one. */
struct list {
    int *first, *last; /* their lives */
    int64_t *offset, *end;
    int n, cap;
};

struct tt_placed {
    struct list all, blocks[BLOCKS];
    struct item *late; /* not yet in `all`, in any order: they are added when somebody looks there */
    int n_late, cap_late;
    int block_instrs;
};

static void *resized(void *array, size_t n, size_t cap, size_t size)
{
    char *bytes = tt_realloc(array, cap, size);

    memset(bytes + n * size, 0, (cap - n) * size);
    return bytes;
}

static void reserve(struct list *list, int n)
{
    size_t cap, old = (size_t)list->n;

    if (n <= list->cap)
        return;
    list->cap = n < 64 ? 64 : n + n / 2;
    cap = (size_t)list->cap + AT_A_TIME;
    list->first = resized(list->first, old, cap, sizeof *list->first);
    list->last = resized(list->last, old, cap, sizeof *list->last);
    list->offset = resized(list->offset, old, cap, sizeof *list->offset);
    list->end = resized(list->end, old, cap, sizeof *list->end);
}

static void release(struct list *list)
{
    tt_free(list->first);
    tt_free(list->last);
    tt_free(list->offset);
    tt_free(list->end);
}

struct tt_placed *tt_placed_new(int n_buffers, int n_instrs)
{
    struct tt_placed *p = tt_calloc(1, sizeof *p);
    int blocks = n_buffers / FOR_A_BLOCK + 1;

    p->block_instrs = n_instrs / (blocks < BLOCKS ? blocks : BLOCKS) + 1;
    return p;
}

void tt_placed_free(struct tt_placed *p)
{
    if (!p)
        return;
    for (int b = 0; b < BLOCKS; b++)
        release(&p->blocks[b]);
    release(&p->all);
    tt_free(p->late);
    tt_free(p);
}

void tt_placed_clear(struct tt_placed *p)
{
    for (int b = 0; b < BLOCKS; b++)
        p->blocks[b].n = 0;
    p->all.n = p->n_late = 0;
}

/* --- adding --- */

static void put(struct list *list, int at, const struct item *item)
{
    list->first[at] = item->first;
    list->last[at] = item->last;
    list->offset[at] = item->offset;
    list->end[at] = item->end;
}

static void insert(struct list *list, const struct item *item)
{
    int low = 0, at = list->n;
    size_t moved;

    reserve(list, list->n + 1);
    while (low < at) {
        int middle = low + (at - low) / 2;

        if (list->offset[middle] > item->offset)
            at = middle;
        else
            low = middle + 1;
    }
    moved = (size_t)(list->n++ - at);
    memmove(&list->first[at + 1], &list->first[at], moved * sizeof *list->first);
    memmove(&list->last[at + 1], &list->last[at], moved * sizeof *list->last);
    memmove(&list->offset[at + 1], &list->offset[at], moved * sizeof *list->offset);
    memmove(&list->end[at + 1], &list->end[at], moved * sizeof *list->end);
    put(list, at, item);
}

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Merges the late ones, from the end. */
static void merge_late(struct tt_placed *p)
{
    struct list *all = &p->all;
    int to = all->n + p->n_late, from = all->n, late = p->n_late;

    if (late == 0)
        return;
    reserve(all, to);
    qsort(p->late, (size_t)late, sizeof *p->late, compare_items);
    while (late > 0) {
        if (from > 0 && all->offset[from - 1] > p->late[late - 1].offset) {
            from--;
            put(all, --to, &(struct item){all->offset[from], all->end[from], all->first[from], all->last[from]});
        } else {
            put(all, --to, &p->late[--late]);
        }
    }
    all->n += p->n_late;
    p->n_late = 0;
}

void tt_placed_add(struct tt_placed *p, int first, int last, int64_t offset, int64_t end)
{
    struct item item = {offset, end, first, last};

    for (int b = first / p->block_instrs; b <= last / p->block_instrs; b++)
        insert(&p->blocks[b], &item);
    TT_PUSH(p->late, p->n_late, p->cap_late) = item;
}

/* --- looking for room --- */

/*
 * The lowest offset from `low` on at which no buffer before *at is, and none after it that lives at the same time.
 * Planning a large model spends most of its time in this loop, and only few of many buffers live at the same time. They
 * are found without a branch, so that the compiler can use vectors.
 */
static int64_t lowest_of(const struct list *list, int *at, const struct item *wanted, int64_t low)
{
    int64_t bytes = wanted->end - wanted->offset;
    int first = wanted->first, last = wanted->last, meets[AT_A_TIME];

    for (int from = *at; from < list->n; from += AT_A_TIME) {
        int any = 0;

        for (int k = 0; k < AT_A_TIME; k++) { /* items after the last one are ignored */
            meets[k] = (list->last[from + k] >= first) & (list->first[from + k] <= last);
            any |= meets[k];
        }
        for (int k = 0; any && k < AT_A_TIME && from + k < list->n; k++) {
            if (!meets[k])
                continue;
            if (list->offset[from + k] - low >= bytes) {
                *at = from + k;
                return low;
            }
            if (list->end[from + k] > low)
                low = list->end[from + k];
        }
    }
    *at = list->n;
    return low;
}

int64_t tt_placed_lowest(struct tt_placed *p, int first, int last, int64_t bytes)
{
    const struct item wanted = {0, bytes, first, last};
    int begin = first / p->block_instrs, n = last / p->block_instrs - begin + 1, at[MOST_OF_BLOCKS] = {0};
    int64_t low = 0, before;

    if (n > MOST_OF_BLOCKS) {
        merge_late(p);
        return lowest_of(&p->all, &at[0], &wanted, 0);
    }
    do {
        before = low;
        for (int b = 0; b < n; b++)
            low = lowest_of(&p->blocks[begin + b], &at[b], &wanted, low);
    } while (n > 1 && low != before);
    return low;
}
