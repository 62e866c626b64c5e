/* SPDX-License-Identifier: MIT
 *
 * Finds the tensors of alike layers and experts.
 */
#include "cli/commands/ckpt/alike.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"

enum { SLOTS = 4, DIGITS = 9 }; /* numbers of a name that are compared, and of how many digits */

/* A tensor, and what those that are alike have in common. */
struct entry {
    char *key; /* the name without its numbers, group, type, shape and number of chunks */
    int tensor;
    int n_slots;
    int64_t slot[SLOTS]; /* the numbers of the name */
};

/* The length of the part of a name up to the next point. */
static size_t part_of(const char *name)
{
    return strcspn(name, ".");
}

static bool is_number(const char *part, size_t size)
{
    return size > 0 && size <= DIGITS && strspn(part, "0123456789") >= size && (size == 1 || part[0] != '0');
}

static struct entry make_entry(const struct tt_manifest_tensor *t, int number)
{
    struct entry e = {.tensor = number};
    struct tt_text key = {0};
    size_t size;

    for (const char *at = t->name; *at; at += size + (at[size] == '.')) {
        size = part_of(at);
        if (e.n_slots < SLOTS && is_number(at, size)) {
            e.slot[e.n_slots++] = strtoll(at, NULL, 10);
            tt_text_add(&key, "\n.");
        } else {
            tt_text_add(&key, "%.*s.", (int)size, at);
        }
    }
    tt_text_add(&key, "\n%d %d %d", (int)t->group, (int)t->dtype, t->n_chunks);
    for (int d = 0; d < t->ndim; d++)
        tt_text_add(&key, " %" PRId64, t->shape[d]);
    e.key = key.text;
    return e;
}

static int compare_entries(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    int order = strcmp(a->key, b->key);

    return order ? order : a->tensor - b->tensor;
}

static int compare_numbers(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;

    return a < b ? -1 : a > b;
}

/* The different numbers that n entries have in a slot, in ascending order; returns how many there are. */
static int64_t numbers_of(const struct entry *e, int n, int slot, int64_t *ret_numbers)
{
    int64_t count = 0;

    for (int i = 0; i < n; i++)
        ret_numbers[i] = e[i].slot[slot];
    qsort(ret_numbers, (size_t)n, sizeof *ret_numbers, compare_numbers);
    for (int i = 0; i < n; i++)
        if (i == 0 || ret_numbers[i] != ret_numbers[count - 1])
            ret_numbers[count++] = ret_numbers[i];
    return count;
}

/* "0-5,8" */
static void add_ranges(const int64_t *number, int64_t n, struct tt_text *out)
{
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && number[end] == number[end - 1] + 1; end++)
            ;
        tt_text_add(out, "%s%" PRId64, i ? "," : "", number[i]);
        if (end > i + 1)
            tt_text_add(out, "-%" PRId64, number[end - 1]);
    }
}

/* The name of n entries with one key; NULL if some combination of their numbers is missing. */
static char *name_of(const struct tt_manifest *manifest, const struct entry *e, int n)
{
    int64_t *number = tt_calloc((size_t)n, sizeof *number), product = 1, count;
    struct tt_text name = {0};
    int slot = 0;
    size_t size;

    for (const char *at = manifest->tensor[e->tensor].name; *at; at += size + (at[size] == '.')) {
        size = part_of(at);
        if (slot < e->n_slots && is_number(at, size)) {
            count = numbers_of(e, n, slot++, number);
            product *= count;
            add_ranges(number, count, &name);
        } else {
            tt_text_add(&name, "%.*s", (int)size, at);
        }
        tt_text_add(&name, "%s", at[size] ? "." : "");
    }
    tt_free(number);
    if (product != n)
        tt_text_release(&name);
    return name.text;
}

static int compare_alike(const void *x, const void *y)
{
    return ((const struct tt_alike *)x)->first - ((const struct tt_alike *)y)->first;
}

void tt_alike_find(const struct tt_manifest *manifest, struct tt_alike **ret_alike, int *ret_n)
{
    int n = manifest->n_tensors, found = 0;
    struct entry *entry = tt_calloc((size_t)n + 1, sizeof *entry);
    struct tt_alike *alike = tt_calloc((size_t)n + 1, sizeof *alike);

    for (int i = 0; i < n; i++)
        entry[i] = make_entry(&manifest->tensor[i], i);
    qsort(entry, (size_t)n, sizeof *entry, compare_entries);
    for (int i = 0, end; i < n; i = end) {
        char *name;

        for (end = i + 1; end < n && strcmp(entry[end].key, entry[i].key) == 0; end++)
            ;
        if ((name = name_of(manifest, &entry[i], end - i))) {
            alike[found++] = (struct tt_alike){entry[i].tensor, end - i, name};
            continue;
        }
        for (int k = i; k < end; k++)
            alike[found++] = (struct tt_alike){entry[k].tensor, 1, tt_strdup(manifest->tensor[entry[k].tensor].name)};
    }
    qsort(alike, (size_t)found, sizeof *alike, compare_alike);
    for (int i = 0; i < n; i++)
        tt_free(entry[i].key);
    tt_free(entry);
    *ret_alike = alike;
    *ret_n = found;
}

void tt_alike_release(struct tt_alike *alike, int n)
{
    for (int i = 0; i < n; i++)
        tt_free(alike[i].name);
    tt_free(alike);
}
