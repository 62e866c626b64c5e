/* SPDX-License-Identifier: MIT
 *
 * The memory plan: offsets in one arena for buffers whose lifetimes are known. Minimal peak is NP-hard; two heuristics
 * are tried and the better kept:
 *   in time order, each buffer into the tightest free gap (a malloc that knows the future only by its past);
 *   by size, largest first, each at the lowest offset that is free during its whole life (better, but quadratic).
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/program/program.h"

enum {
    ALIGNMENT = 64,          /* cache line, and the widest vector */
    QUADRATIC_LIMIT = 20000, /* buffers; beyond, only the time-ordered plan */
};

static int64_t rounded(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t largest_live_sum(const struct tt_buffer *buffers, int n, int n_instrs, int *ret_peak)
{
    int64_t *change = tt_calloc((size_t)n_instrs + 1, sizeof *change);
    int64_t live = 0, most = 0;

    *ret_peak = 0;
    for (int b = 0; b < n; b++) {
        if (buffers[b].root != b)
            continue;
        change[buffers[b].first] += rounded(buffers[b].bytes);
        change[buffers[b].last + 1] -= rounded(buffers[b].bytes);
    }
    for (int i = 0; i < n_instrs; i++) {
        live += change[i];
        if (live > most) {
            most = live;
            *ret_peak = i;
        }
    }
    tt_free(change);
    return most;
}

/* --- by size --- */

struct sized {
    int64_t bytes;
    int index;
};

static int compare_sized(const void *a, const void *b)
{
    const struct sized *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Lowest offset at which `bytes` fit beside the placed buffers (sorted by offset) that live at the same time. */
static int64_t lowest_fit(const struct tt_buffer *buffers, const int *placed, int n_placed, const struct tt_buffer *b)
{
    int64_t end = 0, bytes = rounded(b->bytes);

    for (int k = 0; k < n_placed; k++) {
        const struct tt_buffer *other = &buffers[placed[k]];

        if (other->last < b->first || other->first > b->last)
            continue;
        if (other->offset - end >= bytes)
            break;
        if (other->offset + rounded(other->bytes) > end)
            end = other->offset + rounded(other->bytes);
    }
    return end;
}

static int64_t plan_by_size(struct tt_buffer *buffers, const struct sized *order, int n)
{
    int *placed = tt_calloc((size_t)n + 1, sizeof *placed);
    int64_t high = 0;

    for (int k = 0; k < n; k++) {
        struct tt_buffer *b = &buffers[order[k].index];
        int at = k;

        b->offset = lowest_fit(buffers, placed, k, b);
        if (b->offset + rounded(b->bytes) > high)
            high = b->offset + rounded(b->bytes);
        while (at > 0 && buffers[placed[at - 1]].offset > b->offset) {
            placed[at] = placed[at - 1];
            at--;
        }
        placed[at] = order[k].index;
    }
    tt_free(placed);
    return high;
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

static int64_t take(struct gaps *gaps, int64_t bytes)
{
    int best = -1;
    int64_t offset;

    for (int i = 0; i < gaps->n; i++)
        if (gaps->gap[i].bytes >= bytes && (best < 0 || gaps->gap[i].bytes < gaps->gap[best].bytes))
            best = i;
    if (best < 0) { /* extend the arena, starting in the last gap if that is at its end */
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
    if (gaps->gap[best].bytes == 0) {
        memmove(&gaps->gap[best], &gaps->gap[best + 1], (size_t)(gaps->n - best - 1) * sizeof *gaps->gap);
        gaps->n--;
    }
    return offset;
}

static void give(struct gaps *gaps, int64_t offset, int64_t bytes)
{
    int at = 0;

    while (at < gaps->n && gaps->gap[at].offset < offset)
        at++;
    if (at > 0 && gaps->gap[at - 1].offset + gaps->gap[at - 1].bytes == offset) {
        gaps->gap[at - 1].bytes += bytes;
        if (at < gaps->n && offset + bytes == gaps->gap[at].offset) {
            gaps->gap[at - 1].bytes += gaps->gap[at].bytes;
            memmove(&gaps->gap[at], &gaps->gap[at + 1], (size_t)(gaps->n - at - 1) * sizeof *gaps->gap);
            gaps->n--;
        }
        return;
    }
    if (at < gaps->n && offset + bytes == gaps->gap[at].offset) {
        gaps->gap[at].offset = offset;
        gaps->gap[at].bytes += bytes;
        return;
    }
    (void)TT_PUSH(gaps->gap, gaps->n, gaps->cap);
    memmove(&gaps->gap[at + 1], &gaps->gap[at], (size_t)(gaps->n - at - 1) * sizeof *gaps->gap);
    gaps->gap[at] = (struct gap){offset, bytes};
}

/* Buffers grouped by the instruction at which something happens: a linked list per instruction. */
struct events {
    int *head; /* per instruction */
    int *next; /* per buffer */
};

static struct events group(const struct tt_buffer *buffers, int n, int n_instrs, bool by_first)
{
    struct events events = {tt_calloc((size_t)n_instrs + 1, sizeof(int)), tt_calloc((size_t)n + 1, sizeof(int))};

    for (int i = 0; i < n_instrs; i++)
        events.head[i] = TT_NONE;
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
            buffers[b].offset = take(&gaps, rounded(buffers[b].bytes));
        for (int b = dead.head[i]; b != TT_NONE; b = dead.next[b])
            give(&gaps, buffers[b].offset, rounded(buffers[b].bytes));
    }
    tt_free(born.head);
    tt_free(born.next);
    tt_free(dead.head);
    tt_free(dead.next);
    tt_free(gaps.gap);
    return gaps.high;
}

int64_t tt_memory_plan(struct tt_buffer *buffers, int n, int n_instrs, int64_t *ret_live_bytes, int *ret_peak)
{
    struct sized *order = tt_calloc((size_t)n + 1, sizeof *order);
    int64_t *offsets = NULL;
    int64_t high;
    int n_roots = 0;

    for (int b = 0; b < n; b++)
        if (buffers[b].root == b)
            order[n_roots++] = (struct sized){buffers[b].bytes, b};
    *ret_live_bytes = largest_live_sum(buffers, n, n_instrs, ret_peak);
    high = plan_in_time_order(buffers, n, n_instrs);
    if (high > *ret_live_bytes && n_roots <= QUADRATIC_LIMIT) {
        int64_t by_size;

        offsets = tt_calloc((size_t)n + 1, sizeof *offsets);
        for (int b = 0; b < n; b++)
            offsets[b] = buffers[b].offset;
        if (n_roots)
            qsort(order, (size_t)n_roots, sizeof *order, compare_sized);
        by_size = plan_by_size(buffers, order, n_roots);
        if (by_size < high)
            high = by_size;
        else
            for (int b = 0; b < n; b++)
                buffers[b].offset = offsets[b];
    }
    tt_free(offsets);
    tt_free(order);
    return high;
}
