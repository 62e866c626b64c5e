/* SPDX-License-Identifier: MIT
 *
 * The memory plan: offsets in one arena for buffers whose lifetimes are known. Finding the minimal peak is NP-hard, so
 * several heuristics run and the best result is kept:
 *   in the order of time, each buffer in the tightest free gap, as malloc would do;
 *   in an order of importance, each at the lowest offset that is free for its whole life (better, but quadratic);
 *   the same again with the buffer that reached highest put first, for one order of importance after another, while
 *   that is cheap.
 * The plan is a function of the buffers alone, so every rank and every run gets the same one.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "core/program/program.h"

/*
 * --- the buffers that are already placed, with their lives, to find room for the next one ---
 *
 * A step is cut into blocks of instructions, each with a list of the buffers that live in it. So a buffer with a short
 * life is compared with few others; only a long life needs all of them.
 */

enum {
    AT_A_TIME = 32,     /* placed buffers that are examined at once */
    BLOCKS = 96,        /* blocks of a step, at most */
    FOR_A_BLOCK = 128,  /* buffers per block: shorter lists bring no gain */
    MOST_OF_BLOCKS = 6, /* a buffer that lives in more blocks than this is compared with all others */
};

struct item {
    int64_t offset, end;
    int first, last;
};

/* Sorted by offset. The search for gaps visits very many items, so each member is a separate array. The arrays have
 * room for AT_A_TIME items after the last one. */
struct list {
    int *first, *last; /* their lives */
    int64_t *offset, *end;
    int n, cap;
};

struct placed {
    struct list all, blocks[BLOCKS];
    struct item *late; /* not yet in `all`, in any order: they are merged before the next search in it */
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

/* Merges `late` into `all`, from the end. */
static void merge_late(struct placed *p)
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

static void placed_add(struct placed *p, struct item item)
{
    for (int b = item.first / p->block_instrs; b <= item.last / p->block_instrs; b++)
        insert(&p->blocks[b], &item);
    TT_PUSH(p->late, p->n_late, p->cap_late) = item;
}

/* --- looking for room --- */

/*
 * The lowest free offset from `low` on: no buffer before *at occupies it, and no later buffer that lives at the same
 * time. Planning a large model spends most of its time in this loop, and only few of many buffers live at the same
 * time. The loop finds them without a branch, so that the compiler can vectorize it.
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

/* The lowest offset at which wanted.end bytes are free during the buffer's whole life. */
static int64_t placed_lowest(struct placed *p, struct item wanted)
{
    int begin = wanted.first / p->block_instrs, n = wanted.last / p->block_instrs - begin + 1, at[MOST_OF_BLOCKS] = {0};
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

enum {
    QUADRATIC_LIMIT = 20000, /* with more buffers, only the heuristic in the order of time runs */
    CLOSE = 100,             /* a plan within 1 % of the bound is good enough */
    MOST_ROUNDS = 64,
    PATIENCE = 12,          /* rounds without a better plan */
    LONGEST_LIFE = 1 << 20, /* as the second criterion, all longer lives count as equal */
    PEAK_INSTRS = 64,       /* number of instructions for which one maximum is stored */
    MOST_WORK = 200000000,  /* pairs of buffers to examine; they take a few tenths of a second */
};

/* The bytes in use at each instruction. The caller frees the array. */
static int64_t *live_sums(const struct tt_buffer *buffers, int n, int n_instrs)
{
    int64_t *live = tt_calloc((size_t)n_instrs + 1, sizeof *live);

    for (int b = 0; b < n; b++) {
        if (buffers[b].root != b)
            continue;
        live[buffers[b].first] += tt_arena_bytes(buffers[b].bytes);
        live[buffers[b].last + 1] -= tt_arena_bytes(buffers[b].bytes);
    }
    for (int i = 1; i < n_instrs; i++)
        live[i] += live[i - 1];
    return live;
}

/* The largest value in every PEAK_INSTRS instructions, for many queries about lives. The caller frees the array. */
static int64_t *peaks_of(const int64_t *live, int n_instrs)
{
    int64_t *peaks = tt_calloc((size_t)n_instrs / PEAK_INSTRS + 1, sizeof *peaks);

    for (int i = 0; i < n_instrs; i++)
        if (live[i] > peaks[i / PEAK_INSTRS])
            peaks[i / PEAK_INSTRS] = live[i];
    return peaks;
}

/* --- in an order of importance --- */

struct ranked {
    int64_t key; /* larger keys first; among equal keys, larger buffers first */
    int64_t bytes;
    int index;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/*
 * The property that makes a buffer hard to place, so that it should be placed early: a long life, its size, both, or
 * many live bytes at the same time and then a long life.
 */
enum importance { BY_LIFE, BY_SIZE, BY_AREA, BY_CROWD, IMPORTANCES };

static int64_t importance_of(const struct tt_buffer *b, enum importance by, const int64_t *live, const int64_t *peaks)
{
    int64_t life = b->last - b->first + 1, crowd = 0;

    if (by != BY_CROWD)
        return by == BY_LIFE ? life : by == BY_SIZE ? tt_arena_bytes(b->bytes) : tt_arena_bytes(b->bytes) * life;
    for (int i = b->first; i <= b->last;) {
        bool whole = i % PEAK_INSTRS == 0 && i + PEAK_INSTRS <= b->last + 1;
        int64_t bytes = whole ? peaks[i / PEAK_INSTRS] : live[i];

        crowd = bytes > crowd ? bytes : crowd;
        i += whole ? PEAK_INSTRS : 1;
    }
    return crowd / TT_ARENA_ALIGN * LONGEST_LIFE + (life < LONGEST_LIFE ? life : LONGEST_LIFE - 1);
}

static void rank(const struct tt_buffer *buffers, int n, enum importance by, const int64_t *live, const int64_t *peaks,
                 struct ranked *order)
{
    int k = 0;

    for (int b = 0; b < n; b++)
        if (buffers[b].root == b)
            order[k++] =
                (struct ranked){importance_of(&buffers[b], by, live, peaks), tt_arena_bytes(buffers[b].bytes), b};
    if (k)
        qsort(order, (size_t)k, sizeof *order, compare_ranked);
}

/* Places each buffer at the lowest offset that is free for its whole life; quadratic. */
static int64_t plan_in_order(struct tt_buffer *buffers, const struct ranked *order, int n, struct placed *placed)
{
    int64_t high = 0;

    for (int b = 0; b < BLOCKS; b++)
        placed->blocks[b].n = 0;
    placed->all.n = placed->n_late = 0;
    for (int k = 0; k < n; k++) {
        struct tt_buffer *b = &buffers[order[k].index];
        int64_t bytes = tt_arena_bytes(b->bytes);

        b->offset = placed_lowest(placed, (struct item){0, bytes, b->first, b->last});
        if (b->offset + bytes > high)
            high = b->offset + bytes;
        placed_add(placed, (struct item){b->offset, b->offset + bytes, b->first, b->last});
    }
    return high;
}

/* Moves the last buffer that reaches up to `high` to the front. */
static void promote_highest(const struct tt_buffer *buffers, struct ranked *order, int n, int64_t high)
{
    int k = n - 1;
    struct ranked top;

    while (k > 0 && buffers[order[k].index].offset + tt_arena_bytes(buffers[order[k].index].bytes) < high)
        k--;
    top = order[k];
    memmove(order + 1, order, (size_t)k * sizeof *order);
    order[0] = top;
}

/* --- in time order --- */

struct gap {
    int64_t offset, bytes;
};

struct gaps {
    struct gap *gap; /* sorted by offset, never adjacent */
    int n, cap;
    int64_t high;
};

static void remove_gap(struct gaps *gaps, int at)
{
    memmove(&gaps->gap[at], &gaps->gap[at + 1], (size_t)(gaps->n - at - 1) * sizeof *gaps->gap);
    gaps->n--;
}

static int64_t take(struct gaps *gaps, int64_t bytes)
{
    int best = -1;
    int64_t offset;

    for (int i = 0; i < gaps->n && (best < 0 || gaps->gap[best].bytes != bytes); i++)
        if (gaps->gap[i].bytes >= bytes && (best < 0 || gaps->gap[i].bytes < gaps->gap[best].bytes))
            best = i;
    if (best < 0) { /* extend the arena, starting with the last gap if it is at the end */
        struct gap *last = gaps->n ? &gaps->gap[gaps->n - 1] : NULL;

        offset = last && last->offset + last->bytes == gaps->high ? last->offset : gaps->high;
        if (offset != gaps->high)
            gaps->n--;
        gaps->high = offset + bytes;
        return offset;
    }
    offset = gaps->gap[best].offset;
    gaps->gap[best].offset += bytes;
    gaps->gap[best].bytes -= bytes;
    if (gaps->gap[best].bytes == 0)
        remove_gap(gaps, best);
    return offset;
}

static void give(struct gaps *gaps, int64_t offset, int64_t bytes)
{
    int at = 0, end = gaps->n;
    bool before, after;

    while (at < end) {
        int middle = at + (end - at) / 2;

        if (gaps->gap[middle].offset < offset)
            at = middle + 1;
        else
            end = middle;
    }
    before = at > 0 && gaps->gap[at - 1].offset + gaps->gap[at - 1].bytes == offset;
    after = at < gaps->n && offset + bytes == gaps->gap[at].offset;
    if (before) {
        gaps->gap[at - 1].bytes += bytes + (after ? gaps->gap[at].bytes : 0);
        if (after)
            remove_gap(gaps, at);
    } else if (after) {
        gaps->gap[at].offset = offset;
        gaps->gap[at].bytes += bytes;
    } else {
        (void)TT_PUSH(gaps->gap, gaps->n, gaps->cap);
        memmove(&gaps->gap[at + 1], &gaps->gap[at], (size_t)(gaps->n - at - 1) * sizeof *gaps->gap);
        gaps->gap[at] = (struct gap){offset, bytes};
    }
}

/* The buffers that begin, or end, at each instruction: a linked list per instruction. */
struct events {
    int *head; /* first in the list, per instruction */
    int *next; /* next in the list, per buffer */
};

static struct events group(const struct tt_buffer *buffers, int n, int n_instrs, bool by_first)
{
    struct events events = {tt_ids_new((size_t)n_instrs), tt_calloc((size_t)n + 1, sizeof(int))};

    for (int b = n - 1; b >= 0; b--) {
        int at = by_first ? buffers[b].first : buffers[b].last;

        if (buffers[b].root != b)
            continue;
        events.next[b] = events.head[at];
        events.head[at] = b;
    }
    return events;
}

static int64_t plan_in_time_order(struct tt_buffer *buffers, int n, int n_instrs)
{
    struct events born = group(buffers, n, n_instrs, true), dead = group(buffers, n, n_instrs, false);
    struct gaps gaps = {0};

    for (int i = 0; i < n_instrs; i++) {
        for (int b = born.head[i]; b != TT_NONE; b = born.next[b])
            buffers[b].offset = take(&gaps, tt_arena_bytes(buffers[b].bytes));
        for (int b = dead.head[i]; b != TT_NONE; b = dead.next[b])
            give(&gaps, buffers[b].offset, tt_arena_bytes(buffers[b].bytes));
    }
    tt_free(born.head);
    tt_free(born.next);
    tt_free(dead.head);
    tt_free(dead.next);
    tt_free(gaps.gap);
    return gaps.high;
}

/* --- the best of them --- */

struct search {
    struct tt_buffer *buffers;
    int n;       /* buffers */
    int n_roots; /* the buffers that are not part of another buffer */
    const int64_t *live, *peaks;
    struct ranked *order;
    struct placed *placed;
    int64_t *best; /* offsets of the best plan so far */
    int64_t best_high;
};

static void keep_if_better(struct search *s, int64_t high)
{
    if (high >= s->best_high)
        return;
    s->best_high = high;
    for (int b = 0; b < s->n; b++)
        s->best[b] = s->buffers[b].offset;
}

/*
 * Tries every order of importance. Then repeats each of them with the buffer that reached the highest address placed
 * first, until the plan is within 1/CLOSE of the bound or the work limit is reached.
 */
static void search(struct search *s, int64_t live_bytes)
{
    int64_t enough = live_bytes + live_bytes / CLOSE, high[IMPORTANCES];
    int64_t rounds = MOST_WORK / ((int64_t)s->n_roots * s->n_roots + 1);
    enum importance best = BY_LIFE;

    for (enum importance by = BY_LIFE; by < IMPORTANCES && s->best_high > enough; by++) {
        rank(s->buffers, s->n, by, s->live, s->peaks, s->order);
        high[by] = plan_in_order(s->buffers, s->order, s->n_roots, s->placed);
        keep_if_better(s, high[by]);
        if (high[by] < high[best])
            best = by;
    }
    for (int k = 0; k < IMPORTANCES && rounds > 0 && s->best_high > enough; k++) { /* then only the best order */
        enum importance by = (best + (enum importance)k) % IMPORTANCES;
        int64_t top;
        int since = 0;

        rank(s->buffers, s->n, by, s->live, s->peaks, s->order);
        top = plan_in_order(s->buffers, s->order, s->n_roots, s->placed);
        for (int r = 0; r < MOST_ROUNDS && since < PATIENCE && rounds > 0 && s->best_high > enough; r++, rounds--) {
            promote_highest(s->buffers, s->order, s->n_roots, top);
            top = plan_in_order(s->buffers, s->order, s->n_roots, s->placed);
            since = top < s->best_high ? 0 : since + 1;
            keep_if_better(s, top);
        }
    }
}

int64_t tt_memory_plan(struct tt_buffer *buffers, int n, int n_instrs, int64_t *ret_live_bytes, int *ret_peak)
{
    int64_t *live = live_sums(buffers, n, n_instrs), *peaks = peaks_of(live, n_instrs);
    struct placed *placed = tt_calloc(1, sizeof *placed);
    struct search s = {
        .buffers = buffers, .n = n, .live = live, .peaks = peaks, .placed = placed, .best_high = INT64_MAX};
    int blocks;

    s.order = tt_calloc((size_t)n + 1, sizeof *s.order);
    s.best = tt_calloc((size_t)n + 1, sizeof *s.best);
    for (int b = 0; b < n; b++)
        s.n_roots += buffers[b].root == b;
    blocks = s.n_roots / FOR_A_BLOCK + 1;
    placed->block_instrs = n_instrs / (blocks < BLOCKS ? blocks : BLOCKS) + 1;
    *ret_live_bytes = *ret_peak = 0;
    for (int i = 0; i < n_instrs; i++)
        if (live[i] > *ret_live_bytes) {
            *ret_live_bytes = live[i];
            *ret_peak = i;
        }
    keep_if_better(&s, plan_in_time_order(buffers, n, n_instrs));
    if (s.n_roots <= QUADRATIC_LIMIT)
        search(&s, *ret_live_bytes);
    for (int b = 0; b < n; b++)
        if (buffers[b].root == b)
            buffers[b].offset = s.best[b];
    tt_free(s.order);
    for (int b = 0; b < BLOCKS; b++)
        release(&placed->blocks[b]);
    release(&placed->all);
    tt_free(placed->late);
    tt_free(placed);
    tt_free(s.best);
    tt_free(live);
    tt_free(peaks);
    return s.best_high;
}

/* --- an independent check of a program's memory, instruction by instruction --- */

static int check_operands(const struct tt_program *p)
{
    for (int i = 0; i < p->n_instrs; i++) {
        for (int k = 0; k < p->instrs[i].n_operands; k++) {
            int id = p->operands[p->instrs[i].operands + k];
            const struct tt_buffer *b = id == TT_NONE ? NULL : &p->buffers[id], *root = b ? &p->buffers[b->root] : NULL;

            if (root && tt_memory_is_of_step(root->kind) && (i < root->first || i > root->last))
                return tt_fail(TT_EINTERNAL, "instruction %d (%s) uses buffer %d outside of its life [%d, %d]", i,
                               tt_instr_name(&p->instrs[i]), b->root, root->first, root->last);
            if (b && b->root != id && (b->offset < 0 || b->offset + b->bytes > root->bytes))
                return tt_fail(TT_EINTERNAL, "buffer %d reaches beyond buffer %d, of which it is a part", id, b->root);
        }
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct tt_buffer *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

int tt_program_check(const struct tt_program *p)
{
    struct tt_buffer *sorted = tt_calloc((size_t)p->n_buffers + 1, sizeof *sorted);
    int n = 0, rc = check_operands(p);

    /* two buffers whose memory overlaps must not live at the same time */
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].root == b && tt_memory_is_of_step(p->buffers[b].kind))
            sorted[n++] = p->buffers[b];
    qsort(sorted, (size_t)n, sizeof *sorted, by_offset);
    for (int i = 0; i < n && rc == 0; i++) {
        const struct tt_buffer *a = &sorted[i];

        if (a->offset < 0 || a->offset + a->bytes > p->step_bytes)
            rc = tt_fail(TT_EINTERNAL, "buffer %d reaches beyond the step region", a->root);
        for (int j = i + 1; j < n && rc == 0 && sorted[j].offset < a->offset + a->bytes; j++) {
            const struct tt_buffer *b = &sorted[j];

            if (a->first <= b->last && b->first <= a->last)
                rc = tt_fail(TT_EINTERNAL, "buffers %d and %d (%s and %s) share memory and live at the same time",
                             a->root, b->root, tt_memory_name(a->kind), tt_memory_name(b->kind));
        }
    }
    tt_free(sorted);
    return rc;
}
