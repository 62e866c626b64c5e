/* SPDX-License-Identifier: MIT
 *
 * From sets of characters to kinds: every set divides each kind into what is in it and what is not.
 */
#include "core/tokenizer/kinds.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"

static int by_begin(const void *a, const void *b)
{
    const struct tt_kind_interval *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static size_t find_intervals(const struct tt_charset *set, int n_sets, struct tt_kind_interval **ret_interval)
{
    size_t n = 1, kept = 0;
    struct tt_kind_interval *interval;

    for (int i = 0; i < n_sets; i++)
        n += set[i].n;
    interval = tt_calloc(n, sizeof *interval);
    n = 1; /* the first begins at 0 */
    for (int i = 0; i < n_sets; i++)
        for (size_t k = 0; k < set[i].n; k++)
            interval[n++].begin = set[i].edge[k];
    qsort(interval, n, sizeof *interval, by_begin);
    for (size_t i = 0; i < n; i++)
        if ((i == 0 || interval[i].begin != interval[kept - 1].begin) && interval[i].begin < TT_CODE_END)
            interval[kept++] = interval[i];
    *ret_interval = interval;
    return kept;
}

/* Divides every kind into what is in a set and what is not. Returns the number of kinds, or one that is too large. */
static int divide(const struct tt_charset *set, struct tt_kind_interval *interval, size_t n, int n_kinds)
{
    int renamed[2][TT_MOST_KINDS], made = 0;
    size_t edges = 0;

    memset(renamed, 0xff, sizeof renamed);
    for (size_t i = 0; i < n; i++) {
        int *kind;

        while (edges < set->n && set->edge[edges] <= interval[i].begin)
            edges++;
        kind = &renamed[edges % 2][interval[i].kind];
        if (*kind < 0)
            *kind = made++;
        if (made > TT_MOST_KINDS)
            return made;
        interval[i].kind = *kind;
    }
    return made > n_kinds ? made : n_kinds;
}

/* Exchanges two names, so that the kind of the line end, which is alone in its kind, is the line end. */
static void name_line_end(struct tt_kind_interval *interval, size_t n)
{
    int kind = 0;

    for (size_t i = 0; i < n; i++)
        if (interval[i].begin == '\n')
            kind = interval[i].kind;
    for (size_t i = 0; i < n; i++)
        interval[i].kind = interval[i].kind == kind ? '\n' : interval[i].kind == '\n' ? kind : interval[i].kind;
}

static void add_pages(struct tt_kinds *kinds)
{
    const struct tt_kind_interval *interval = kinds->interval;
    size_t n = kinds->n, at = 0;
    uint16_t uniform[TT_MOST_KINDS];

    memset(uniform, 0xff, sizeof uniform);
    for (uint32_t page = 0; page < TT_CODE_END / 256; page++) {
        uint8_t row[256];
        bool is_uniform = true;

        for (uint32_t i = 0; i < 256; i++) {
            while (at + 1 < n && interval[at + 1].begin <= page * 256 + i)
                at++;
            row[i] = (uint8_t)interval[at].kind;
            is_uniform = is_uniform && row[i] == row[0];
        }
        if (is_uniform && uniform[row[0]] != 0xffff) {
            kinds->page[page] = uniform[row[0]];
            continue;
        }
        if (is_uniform)
            uniform[row[0]] = (uint16_t)kinds->n_rows;
        kinds->page[page] = (uint16_t)kinds->n_rows;
        if (kinds->n_rows == kinds->cap_rows) {
            kinds->cap_rows = 2 * kinds->cap_rows + 16;
            kinds->row = tt_realloc(kinds->row, kinds->cap_rows, sizeof *kinds->row);
        }
        memcpy(kinds->row[kinds->n_rows++], row, sizeof row);
    }
    memcpy(kinds->ascii, kinds->row[kinds->page[0]], sizeof kinds->ascii);
}

bool tt_kinds_init(struct tt_kinds *kinds, const struct tt_charset *set, int n_sets)
{
    int n_kinds = 1;

    *kinds = (struct tt_kinds){0};
    kinds->n = find_intervals(set, n_sets, &kinds->interval);
    for (int i = 0; i < n_sets && n_kinds <= TT_MOST_KINDS; i++)
        n_kinds = divide(&set[i], kinds->interval, kinds->n, n_kinds);
    if (n_kinds > TT_MOST_KINDS)
        return false;
    name_line_end(kinds->interval, kinds->n);
    add_pages(kinds);
    return true;
}

void tt_kinds_put(const struct tt_kinds *kinds, const struct tt_charset *set, struct tt_text *out)
{
    bool has[TT_MOST_KINDS] = {false};
    int count = 0, last = 0;

    for (size_t i = 0; i < kinds->n; i++)
        has[kinds->interval[i].kind] = has[kinds->interval[i].kind] || tt_charset_has(set, kinds->interval[i].begin);
    for (int k = 0; k < TT_MOST_KINDS; k++) {
        count += has[k];
        last = has[k] ? k : last;
    }
    if (count == 1) {
        tt_text_add(out, "\\x%02x", (unsigned)last);
        return;
    }
    tt_text_add(out, count ? "[" : "[^\\x00-\\xff");
    for (int k = 0; k < TT_MOST_KINDS; k++)
        if (has[k])
            tt_text_add(out, "\\x%02x", (unsigned)k);
    tt_text_add(out, "]");
}

void tt_kinds_release(struct tt_kinds *kinds)
{
    tt_free(kinds->interval);
    tt_free(kinds->row);
    *kinds = (struct tt_kinds){0};
}
