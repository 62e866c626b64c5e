/* SPDX-License-Identifier: MIT
 *
 * Sets of characters, Unicode properties as such sets, and kinds of characters: two characters are of the same kind if
 * every set contains both or neither.
 */
#include "core/tokenizer/charset.h"

#include <stdlib.h>
#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"

/* The numbers are distances between the edges of ranges. */
struct property {
    const char *name, *other; /* other: "" for none; two letters for categories only */
    const uint32_t *step;
    size_t n;
};

#define PROPERTY(name, other, ...) \
    {name, other, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)},
static const struct property properties[] = {
#include "core/tokenizer/unicode.def"
};
#undef PROPERTY

/* Names that stand for the union of other properties. A single letter is a group of categories. */
static const struct {
    const char *name, *of;
} unions[] = {
    {"letter", "l"},
    {"mark", "m"},
    {"number", "n"},
    {"punctuation", "p"},
    {"symbol", "s"},
    {"separator", "z"},
    {"other", "c"},
    {"casedletter", "lc"},
    {"lc", "lu ll lt"},
    {"alpha", "alphabetic"},
    {"upper", "uppercase"},
    {"lower", "lowercase"},
    {"digit", "nd"},
    {"alnum", "alphabetic nd"},
    {"blank", "zs tab"},
    {"cntrl", "cc"},
    {"space", "whitespace"},
    {"punct", "p"},
    {"bracketpunct", "p s"},
    {"bracketword", "alphabetic m nd pc"},
    {"word", "bracketword superscripts"}, /* Oniguruma's \w contains six numbers of Latin-1 */
    {"nograph", "whitespace cc cn cs"},
    {"print", "graph zs"},
};

/* Sets that are the same in all versions of Unicode; each list ends at the first 0 after its start. */
static const struct {
    const char *name;
    uint32_t edge[22];
} fixed[] = {
    {"any", {0, TT_CODE_END}},
    {"ascii", {0, 0x80}},
    {"tab", {'\t', '\t' + 1}},
    {"xdigit", {'0', '9' + 1, 'A', 'F' + 1, 'a', 'f' + 1}},
    {"superscripts", {0xb2, 0xb4, 0xb9, 0xba, 0xbc, 0xbf}},
    {"joincontrol", {0x200c, 0x200e}},
    {"whitespace", {9,      14,     0x20,   0x21,   0x85,   0x86,   0xa0,   0xa1,   0x1680, 0x1681,
                    0x2000, 0x200b, 0x2028, 0x202a, 0x202f, 0x2030, 0x205f, 0x2060, 0x3000, 0x3001}},
};

void tt_charset_release(struct tt_charset *set)
{
    tt_free(set->edge);
    *set = (struct tt_charset){0};
}

static void push(struct tt_charset *set, uint32_t edge)
{
    if (set->n && set->edge[set->n - 1] == edge) { /* where one range ends and another begins */
        set->n--;
        return;
    }
    if (set->n == set->cap) {
        set->cap = set->cap ? 2 * set->cap : 16;
        set->edge = tt_realloc(set->edge, set->cap, sizeof *set->edge);
    }
    set->edge[set->n++] = edge;
}

/* Adds the other set's characters to `set`. */
static void merge(struct tt_charset *set, const struct tt_charset *other, bool needs_both)
{
    const struct tt_charset *in[2] = {set, other};
    struct tt_charset made = {0};
    size_t at[2] = {0, 0};
    bool was_in = false;

    while (at[0] < set->n || at[1] < other->n) {
        uint32_t next = TT_CODE_END;
        bool a, b, is_in;

        for (int i = 0; i < 2; i++)
            if (at[i] < in[i]->n && in[i]->edge[at[i]] < next)
                next = in[i]->edge[at[i]];
        for (int i = 0; i < 2; i++)
            if (at[i] < in[i]->n && in[i]->edge[at[i]] == next)
                at[i]++;
        a = at[0] % 2;
        b = at[1] % 2;
        is_in = needs_both ? a && b : a || b;
        if (is_in != was_in)
            push(&made, next);
        was_in = is_in;
    }
    tt_free(set->edge);
    *set = made;
}

void tt_charset_unite(struct tt_charset *set, const struct tt_charset *other)
{
    merge(set, other, false);
}

void tt_charset_intersect(struct tt_charset *set, const struct tt_charset *other)
{
    merge(set, other, true);
}

void tt_charset_add(struct tt_charset *set, uint32_t first, uint32_t last)
{
    uint32_t edge[] = {first, last + 1};

    merge(set, &(struct tt_charset){edge, 2, 2}, false);
}

void tt_charset_complement(struct tt_charset *set)
{
    struct tt_charset made = {0};

    push(&made, 0);
    for (size_t i = 0; i < set->n; i++)
        push(&made, set->edge[i]);
    push(&made, TT_CODE_END);
    tt_free(set->edge);
    *set = made;
}

bool tt_charset_has(const struct tt_charset *set, uint32_t code)
{
    size_t low = 0, high = set->n; /* the number of edges <= code is in [low, high] */

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (set->edge[middle] <= code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low % 2;
}

/* --- properties --- */

static void add_row(struct tt_charset *set, const struct property *row)
{
    struct tt_charset made = {0};
    uint32_t edge = 0;

    for (size_t i = 0; i < row->n; i++)
        push(&made, edge += row->step[i]);
    merge(set, &made, false);
    tt_charset_release(&made);
}

static bool add_simple(struct tt_charset *set, const char *name)
{
    bool is_known = false;

    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        const struct property *row = &properties[i];
        bool is_group = !name[1] && row->other[0] == name[0] && strlen(row->other) == 2;

        if (is_group || strcmp(name, row->name) == 0 || (*row->other && strcmp(name, row->other) == 0)) {
            add_row(set, row);
            is_known = true;
        }
    }
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (strcmp(name, fixed[i].name) != 0)
            continue;
        for (size_t k = 0; fixed[i].edge[k + 1]; k += 2)
            tt_charset_add(set, fixed[i].edge[k], fixed[i].edge[k + 1] - 1);
        is_known = true;
    }
    return is_known;
}

/* The table has no cycles. */
static bool add_named(struct tt_charset *set, const char *name)
{
    static const char *const negated[][2] = {{"graph", "nograph"}, {"assigned", "cn"}};
    char word[16];

    for (size_t i = 0; i < sizeof unions / sizeof *unions; i++) {
        const char *p = unions[i].of;

        if (strcmp(name, unions[i].name) != 0)
            continue;
        for (size_t size; *p; p += size + (p[size] == ' ')) {
            size = strcspn(p, " ");
            memcpy(word, p, size);
            word[size] = 0;
            (void)add_named(set, word);
        }
        return true;
    }
    for (size_t i = 0; i < sizeof negated / sizeof *negated; i++) {
        struct tt_charset other = {0};

        if (strcmp(name, negated[i][0]) != 0)
            continue;
        (void)add_named(&other, negated[i][1]);
        tt_charset_complement(&other);
        merge(set, &other, false);
        tt_charset_release(&other);
        return true;
    }
    return add_simple(set, name);
}

bool tt_charset_add_property(struct tt_charset *set, const char *name, size_t size)
{
    char plain[40];
    size_t n = 0;

    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)name[i];

        if (c == ' ' || c == '_' || c == '-')
            continue;
        if (n + 1 == sizeof plain || c >= 0x80 || !isalnum(c))
            return false;
        plain[n++] = (char)tolower(c);
    }
    plain[n] = 0;
    return n && add_named(set, plain);
}

bool tt_charset_add_bracket(struct tt_charset *set, const char *name, size_t size)
{
    static const char *const names[] = {"alnum", "alpha", "ascii", "blank", "cntrl",  "digit", "graph",
                                        "lower", "print", "punct", "space", "xdigit", "upper", "word"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) != size || memcmp(name, names[i], size) != 0)
            continue;
        return add_named(set, strcmp(names[i], "punct") == 0  ? "bracketpunct"
                              : strcmp(names[i], "word") == 0 ? "bracketword"
                                                              : names[i]);
    }
    return false;
}

/* --- kinds --- */

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
    n = 1; /* the first range begins at 0 */
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

/* Splits every kind in two, by membership in a set. Returns the number of kinds, or more than TT_MOST_KINDS. */
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

/* Swaps the names of two kinds, so that the kind of the line end (which contains nothing else) is named by its byte. */
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

void tt_kinds_release(struct tt_kinds *kinds)
{
    tt_free(kinds->interval);
    tt_free(kinds->row);
    *kinds = (struct tt_kinds){0};
}
