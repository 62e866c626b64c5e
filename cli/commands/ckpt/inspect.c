/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt inspect`: one checkpoint as text, or as JSON.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include "checkpoint/tools/tools.h"
#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/screen.h"
#include "cli/watch/history.h"
#include "core/base/mem.h"
#include "core/base/text.h"

/* --- list --- */

int64_t tt_ckpt_int(const json_t *json, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(json, key));
}

const char *tt_ckpt_text(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "-";
}

static const char *count_of(char *buf, size_t buf_size, const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    return json_is_integer(value) ? tt_text_count(buf, buf_size, (int64_t)json_integer_value(value)) : "-";
}

const char *tt_ckpt_bytes(char *buf, size_t buf_size, const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    return json_is_integer(value) ? tt_text_bytes(buf, buf_size, (double)json_integer_value(value)) : "-";
}

/* "2 min", "5 h", "12 d". */
static const char *age_text(char *buf, size_t buf_size, const json_t *json, const char *key)
{
    enum { MINUTE = 60, HOUR = 3600, DAY = 86400 };
    const json_t *value = json_object_get(json, key);
    double s = json_number_value(value);

    if (!json_is_number(value))
        return "-";
    if (s < 2 * MINUTE)
        (void)snprintf(buf, buf_size, "%.0f s", s < 0.0 ? 0.0 : s);
    else if (s < 2 * HOUR)
        (void)snprintf(buf, buf_size, "%.0f min", s / MINUTE);
    else if (s < 2 * DAY)
        (void)snprintf(buf, buf_size, "%.0f h", s / HOUR);
    else
        (void)snprintf(buf, buf_size, "%.0f d", s / DAY);
    return buf;
}

/* "dp_replicate 2, dp_shard 4": the dimensions that are more than one rank. */
static const char *mesh_of(char *buf, size_t buf_size, const json_t *json)
{
    json_t *mesh = json_object_get(json, "mesh"), *size;
    const char *name;
    size_t used = 0;

    if (!json_is_object(mesh))
        return "-";
    (void)snprintf(buf, buf_size, "1 rank");
    json_object_foreach(mesh, name, size) if (json_integer_value(size) > 1 && used < buf_size) used += (size_t)snprintf(
        buf + used, buf_size - used, "%s%s %" JSON_INTEGER_FORMAT, used ? ", " : "", name, json_integer_value(size));
    return buf;
}

/* run: the folder to show in the first column; NULL: no such column. */
static void add_step(const json_t *s, const char *run, struct tt_columns *table)
{
    char text[128];

    if (run)
        tt_columns_cell(table, "%s", run);
    tt_columns_cell(table, "%" PRId64, tt_ckpt_int(s, "step"));
    tt_columns_cell(table, "%s", tt_ckpt_text(s, "state"));
    tt_columns_cell(table, "%s", age_text(text, sizeof text, s, "age_s"));
    tt_columns_cell(table, "%s", tt_ckpt_bytes(text, sizeof text, s, "bytes"));
    tt_columns_cell(table, "%s", count_of(text, sizeof text, s, "tokens"));
    tt_columns_cell(table, "%s", count_of(text, sizeof text, s, "world"));
    tt_columns_cell(table, "%s", tt_ckpt_text(s, "policy"));
    tt_columns_cell(table, "%s", mesh_of(text, sizeof text, s));
    if (!json_is_false(json_object_get(s, "good")))
        return;
    for (int i = 0; i < 1 + (run != NULL); i++)
        tt_columns_cell(table, "%s", "");
    tt_columns_rest(table, 2, tt_ckpt_text(s, "problem"));
}

/* What was set aside, or a killed save has left. */
static void add_other(const json_t *l, struct tt_columns *table)
{
    char text[128] = "";

    tt_columns_cell(table, "%s", tt_ckpt_text(l, "name"));
    tt_columns_cell(table, "%s", tt_ckpt_text(l, "state"));
    tt_columns_cell(table, "%s", age_text(text, sizeof text, l, "age_s"));
    tt_columns_cell(table, "%s", tt_ckpt_bytes(text, sizeof text, l, "bytes"));
    if (json_is_string(json_object_get(l, "run_id")))
        (void)snprintf(text, sizeof text, "saved by run %s", tt_ckpt_text(l, "run_id"));
    tt_columns_rest(table, 2, json_is_string(json_object_get(l, "run_id")) ? text : "");
}

/* The order in which columns are left out on a narrow terminal is in titan-ckpt(1). */
#define STEP_COLUMNS(width, gap)                                                                 \
    {"step", width, false, gap, 0, 0}, {"state", 10, false, 2, 0, 0}, {"age", 8, true, 1, 0, 0}, \
        {"size", 12, true, 1, 0, 0}, {"tokens", 16, true, 1, 1, 0}, {"world", 6, true, 1, 2, 0}, \
        {"policy", 9, false, 2, 4, 0},                                                           \
    {                                                                                            \
        "mesh", 0, false, 1, 3, 16                                                               \
    }

static void print_list(const json_t *json)
{
    static const char *const others[] = {"set_aside", "leftovers"};
    struct tt_column columns[] = {STEP_COLUMNS(12, 0)};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    const json_t *steps = json_object_get(json, "steps");

    for (size_t i = 0; i < json_array_size(steps); i++)
        add_step(json_array_get(steps, i), NULL, &table);
    for (int list = 0; list < 2; list++) {
        const json_t *names = json_object_get(json, others[list]);

        for (size_t i = 0; i < json_array_size(names); i++) {
            int n = (int)strlen(tt_ckpt_text(json_array_get(names, i), "name"));

            columns[0].width = n > columns[0].width ? n : columns[0].width;
            add_other(json_array_get(names, i), &table);
        }
    }
    tt_print("%s\n", tt_ckpt_text(json, "folder"));
    tt_columns_print(&table);
}

static bool is_unreadable(const json_t *problem)
{
    return strcmp(tt_ckpt_text(problem, "kind"), "unreadable") == 0;
}

/* The first problem that is damage; only damage proves that a checkpoint is bad. NULL: what could not be
 * read may be good. */
static const json_t *find_damage(const json_t *problems)
{
    for (size_t i = 0; i < json_array_size(problems); i++) {
        if (!is_unreadable(json_array_get(problems, i)))
            return json_array_get(problems, i);
    }
    return NULL;
}

static void print_verify(const json_t *json)
{
    const json_t *problems = json_object_get(json, "problems");
    int64_t checksums = tt_ckpt_int(json, "checksums"), digests = tt_ckpt_int(json, "digests");
    struct tt_text text = {0};
    char b[32];

    for (size_t i = 0; i < json_array_size(problems); i++) {
        const json_t *problem = json_array_get(problems, i);

        tt_print("%s%s: %s\n", is_unreadable(problem) ? "" : "BAD ", tt_ckpt_text(problem, "kind"),
                 tt_ckpt_text(problem, "text"));
    }
    if (json_array_size(problems)) {
        tt_print("%s %s: %zu problem%s\n", find_damage(problems) ? "BAD" : "UNKNOWN", tt_ckpt_text(json, "path"),
                 json_array_size(problems), json_array_size(problems) == 1 ? "" : "s");
        return;
    }
    tt_text_add(&text, "OK %s: %" PRId64 " tensors, %" PRId64 " files, %s, coverage exact, ",
                tt_ckpt_text(json, "path"), tt_ckpt_int(json, "tensors"), tt_ckpt_int(json, "files"),
                tt_ckpt_bytes(b, sizeof b, json, "bytes"));
    if (checksums)
        tt_text_add(&text, "%" PRId64 " checksums match", checksums);
    else
        tt_text_add(&text, "checksums not compared");
    if (digests)
        tt_text_add(&text, ", %" PRId64 " digests match", digests);
    tt_text_add(&text, " (%.1f s)\n", json_real_value(json_object_get(json, "seconds")));
    tt_screen_put(stdout, text.text, tt_screen_columns(STDOUT_FILENO), (int)strlen("OK "));
    tt_text_release(&text);
}

static void fail_verify(const char *path, const json_t *problems)
{
    const json_t *damage = find_damage(problems);
    const char *text = damage ? tt_ckpt_text(damage, "text") : NULL;

    if (text && strstr(text, "' is damaged")) /* it names the file */
        (void)tt_fail(TT_EDATA, "%s", text);
    else if (text)
        (void)tt_fail(TT_EDATA, "'%s' is damaged: %s", path, text);
    else
        (void)tt_error_add_hint(
            tt_fail(TT_EIO, "'%s' could not be verified: %s", path, tt_ckpt_text(json_array_get(problems, 0), "text")),
            "it may be good; try again when it can be read");
}

typedef int (*describe_fn)(const struct tt_args *args, const char *path, json_t **ret_json);

/* Describes every PATH; with --json an object for one path, a list for more. */
static int describe(const struct tt_args *args, describe_fn make, void (*print)(const json_t *json), bool *ret_ok)
{
    json_t *all = json_array();
    bool is_json = tt_args_has(args, "json");
    int rc = 0;

    *ret_ok = true;
    for (int i = 1; i < args->n_words; i++) {
        json_t *json = NULL;

        TT_TRY(make(args, args->word[i], &json));
        (void)json_array_append_new(all, json);
        if (*ret_ok && json_is_false(json_object_get(json, "ok"))) {
            *ret_ok = false; /* the command fails with the first problem */
            fail_verify(args->word[i], json_object_get(json, "problems"));
        }
        if (!is_json)
            print(json);
    }
    rc = is_json ? tt_cli_print_json(args->n_words == 2 ? json_incref(json_array_get(all, 0)) : json_incref(all))
                 : tt_cli_finish();
out:
    json_decref(all);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

static int make_list(const struct tt_args *args, const char *path, json_t **ret_json)
{
    (void)args;
    return tt_ckpt_list(path, ret_json);
}

static int make_verify(const struct tt_args *args, const char *path, json_t **ret_json)
{
    enum tt_ckpt_depth depth = tt_args_has(args, "deep")    ? TT_VERIFY_DEEP
                               : tt_args_has(args, "quick") ? TT_VERIFY_QUICK
                                                            : TT_VERIFY_BYTES;

    return tt_ckpt_verify(path, depth, ret_json);
}

/* --- the steps of several runs --- */

static void add_steps(const char *run, const json_t *json, struct tt_columns *table)
{
    const json_t *steps = json_object_get(json, "steps");

    for (size_t i = 0; i < json_array_size(steps); i++)
        add_step(json_array_get(steps, i), run, table);
    if (!json_array_size(steps)) {
        tt_columns_cell(table, "%s", run);
        tt_columns_rest(table, 2, "no steps");
    }
}

/* A run without checkpoints, or one that cannot be read, has a row that says so. */
static int list_runs(const struct tt_runs *runs, bool is_json)
{
    static const struct tt_column columns[] = {{"run", 0, false, 0, 0, 0}, STEP_COLUMNS(6, 2)};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    json_t *all = json_array();

    for (int i = 0; i < runs->n; i++) {
        const char *run = runs->folder[i];
        json_t *json = NULL;

        if (tt_ckpt_list(run, &json) == 0) {
            add_steps(run, json, &table);
            (void)json_array_append_new(all, json);
            continue;
        }
        tt_error_drop_hint();
        tt_columns_cell(&table, "%s", run);
        tt_columns_rest(&table, 2, tt_error_message());
        (void)json_array_append_new(
            all, json_pack("{s:o, s:o}", "folder", tt_json_string(run), "error", tt_json_string(tt_error_message())));
    }
    if (!is_json)
        tt_columns_print(&table);
    tt_columns_release(&table);
    if (is_json)
        return tt_cli_print_json(all);
    json_decref(all);
    return tt_cli_finish();
}

int tt_ckpt_verb_list(const struct tt_args *args)
{
    struct tt_runs runs = {0};
    bool ok, as_given;
    int rc = 0;

    for (int i = 1; i < args->n_words; i++)
        TT_TRY(tt_runs_add(args->word[i], &runs));
    as_given = runs.n == args->n_words - 1;
    for (int i = 0; i < runs.n && as_given; i++)
        as_given = strcmp(runs.folder[i], args->word[i + 1]) == 0;
    if (as_given)
        rc = describe(args, make_list, print_list, &ok);
    else
        rc = list_runs(&runs, tt_args_has(args, "json"));
out:
    tt_runs_release(&runs);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

int tt_ckpt_verb_verify(const struct tt_args *args)
{
    bool ok;
    int rc;

    if (tt_args_has(args, "deep") && tt_args_has(args, "quick"))
        return tt_cli_fail(tt_fail(TT_EUSAGE, "'titan ckpt verify' takes one of --deep and --quick, both were given\n"
                                              "help: --deep reads every byte, --quick none"));
    rc = describe(args, make_verify, print_verify, &ok);
    return rc == 0 && !ok ? tt_cli_fail(TT_EDATA) : rc;
}

/* --- inspect --- */

static const char *time_text(char *buf, size_t buf_size, const json_t *json)
{
    time_t seconds = (time_t)json_number_value(json_object_get(json, "time"));
    struct tm t;

    if (!seconds || !localtime_r(&seconds, &t) || !strftime(buf, buf_size, "%Y-%m-%d %H:%M:%S", &t))
        return "-";
    return buf;
}

static const char *shape_text(char *buf, size_t buf_size, const json_t *tensor)
{
    const json_t *shape = json_object_get(tensor, "shape");
    size_t used = (size_t)snprintf(buf, buf_size, "[");

    for (size_t d = 0; d < json_array_size(shape) && used < buf_size; d++)
        used += (size_t)snprintf(buf + used, buf_size - used, "%s%" JSON_INTEGER_FORMAT, d ? ", " : "",
                                 json_integer_value(json_array_get(shape, d)));
    if (used < buf_size)
        (void)snprintf(buf + used, buf_size - used, "]");
    return buf;
}

static const char *number_text(char *buf, size_t buf_size, const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    if (!json_is_number(value))
        return "-";
    (void)snprintf(buf, buf_size, "%.4g", json_number_value(value));
    return buf;
}

/* --- tensors that are alike --- */

/* Tensors on one line of a table, in the place of the first. */
struct alike {
    int first; /* of the manifest's tensors */
    int n;
    char *name; /* "layers.0-5.attention.wq.weight" */
};

enum { SLOTS = 4, DIGITS = 9 }; /* numbers of a name that are compared, and of how many digits */

/* A tensor, and what all tensors like it have in common. */
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
    return ((const struct alike *)x)->first - ((const struct alike *)y)->first;
}

/*
 * Groups tensors that differ only in the numbers of their names, such as a weight of several layers or experts. They
 * share group, type, shape and number of chunks, and every combination of the numbers exists. Others stay alone.
 * In the order of the manifest. The caller releases *ret_alike.
 */
static void find_alike(const struct tt_manifest *manifest, struct alike **ret_alike, int *ret_n)
{
    int n = manifest->n_tensors, found = 0;
    struct entry *entry = tt_calloc((size_t)n + 1, sizeof *entry);
    struct alike *alike = tt_calloc((size_t)n + 1, sizeof *alike);

    for (int i = 0; i < n; i++)
        entry[i] = make_entry(&manifest->tensor[i], i);
    qsort(entry, (size_t)n, sizeof *entry, compare_entries);
    for (int i = 0, end; i < n; i = end) {
        char *name;

        for (end = i + 1; end < n && strcmp(entry[end].key, entry[i].key) == 0; end++)
            ;
        if ((name = name_of(manifest, &entry[i], end - i))) {
            alike[found++] = (struct alike){entry[i].tensor, end - i, name};
            continue;
        }
        for (int k = i; k < end; k++)
            alike[found++] = (struct alike){entry[k].tensor, 1, tt_strdup(manifest->tensor[entry[k].tensor].name)};
    }
    qsort(alike, (size_t)found, sizeof *alike, compare_alike);
    for (int i = 0; i < n; i++)
        tt_free(entry[i].key);
    tt_free(entry);
    *ret_alike = alike;
    *ret_n = found;
}

static void release_alike(struct alike *alike, int n)
{
    for (int i = 0; i < n; i++)
        tt_free(alike[i].name);
    tt_free(alike);
}

/* --- tensors --- */

static void add_stats(const json_t *stats, struct tt_columns *table)
{
    static const char *const keys[] = {"min", "max", "mean", "rms"};
    char number[32];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        tt_columns_cell(table, "%s", number_text(number, sizeof number, stats, keys[i]));
    tt_columns_cell(table, "%s", count_of(number, sizeof number, stats, "nonfinite"));
}

/* The cells of a tensor up to the number of its chunks. */
static void add_tensor(const json_t *t, const char *name, struct tt_columns *table)
{
    char shape[128];

    tt_columns_cell(table, "%s", tt_ckpt_text(t, "group"));
    tt_columns_cell(table, "%s", name);
    tt_columns_cell(table, "%s", tt_ckpt_text(t, "dtype"));
    tt_columns_cell(table, "%s", shape_text(shape, sizeof shape, t));
    tt_columns_cell(table, "%" PRId64, tt_ckpt_int(t, "chunks"));
}

/* The order in which columns are left out on a narrow terminal is in titan-ckpt(1). */
#define TENSOR_COLUMNS                                                                          \
    {"group", 6, false, 0, 5, 0}, {"tensor", 52, false, 1, 0, 0}, {"dtype", 6, false, 1, 0, 0}, \
        {"shape", 20, false, 1, 1, 0},                                                          \
    {                                                                                           \
        "chunks", 6, true, 1, 4, 0                                                              \
    }

/* A line for each tensor. */
static void print_each(const struct tt_ckpt_inspection *inspection)
{
    static const struct tt_column columns[] = {TENSOR_COLUMNS,
                                               {"min", 10, true, 1, 2, 0},
                                               {"max", 10, true, 1, 2, 0},
                                               {"mean", 10, true, 1, 3, 0},
                                               {"rms", 10, true, 1, 0, 0},
                                               {"nonfinite", 10, true, 1, 0, 0}};
    enum { ALL = sizeof columns / sizeof *columns, STATS = 5 };
    bool stats = inspection->stats && inspection->manifest.n_tensors;
    struct tt_columns table = {.column = columns, .n = stats ? ALL : ALL - STATS};

    for (int i = 0; i < inspection->manifest.n_tensors; i++) {
        json_t *t = tt_ckpt_inspect_tensor(inspection, i);

        add_tensor(t, tt_ckpt_text(t, "name"), &table);
        if (stats)
            add_stats(json_object_get(t, "stats"), &table);
        json_decref(t);
    }
    tt_columns_print(&table);
}

/* A line for alike tensors. Moments, with the averages of the weights, are the optimizer's tensors. */
static void print_alike(const struct tt_ckpt_inspection *inspection, bool moments)
{
    static const struct tt_column columns[] = {TENSOR_COLUMNS, {"tensors", 7, true, 1, 3, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    const struct tt_manifest *manifest = &inspection->manifest;
    struct alike *alike = NULL;
    int n = 0, hidden = 0;

    find_alike(manifest, &alike, &n);
    for (int i = 0; i < n; i++) {
        json_t *t;

        if (!moments && manifest->meta && manifest->tensor[alike[i].first].group == TT_CKPT_OPTIM) {
            hidden += alike[i].n;
            continue;
        }
        t = tt_ckpt_inspect_tensor(inspection, alike[i].first);
        add_tensor(t, alike[i].name, &table);
        tt_columns_cell(&table, "%d", alike[i].n);
        json_decref(t);
    }
    tt_columns_print(&table);
    if (hidden)
        tt_print_broken(2, "and %d tensors of the optimizer (--moments lists them, --all every tensor by itself)\n",
                        hidden);
    else if (n < manifest->n_tensors)
        tt_print_broken(2, "tensors of alike layers are on one line (--all lists every tensor by itself)\n");
    release_alike(alike, n);
}

/* --- the rest --- */

static void print_files(const char *title, const json_t *json)
{
    static const struct tt_column columns[] = {{"file", 60, false, 4, 0, 0}, {"bytes", 12, true, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = 2, .no_titles = true};
    const json_t *files = json_object_get(json, "files");
    char b[32];

    tt_print("  %-11s %zu, %s\n", title, json_array_size(files), tt_ckpt_bytes(b, sizeof b, json, "bytes"));
    for (size_t i = 0; i < json_array_size(files); i++) {
        tt_columns_cell(&table, "%s", tt_ckpt_text(json_array_get(files, i), "path"));
        tt_columns_cell(&table, "%s", tt_ckpt_bytes(b, sizeof b, json_array_get(files, i), "bytes"));
    }
    tt_columns_print(&table);
}

static void print_inspect(const struct tt_ckpt_inspection *inspection, const struct tt_args *args)
{
    static const char *const groups[] = {"model", "optimizer"};
    const json_t *json = inspection->json, *assets = json_object_get(json, "assets");
    const json_t *torch = json_object_get(json_object_get(json, "meta"), "torch"), *unread;
    char a[160], b[32];
    size_t k;

    tt_print("%s\n", tt_ckpt_text(json, "path"));
    if (strcmp(tt_ckpt_text(json, "kind"), "step") == 0) {
        tt_print("  step        %s\n", count_of(b, sizeof b, json, "step"));
        tt_print("  tokens      %s\n", count_of(b, sizeof b, json, "tokens"));
        tt_print("  saved       %s by run %s\n", time_text(a, sizeof a, json), tt_ckpt_text(json, "run_id"));
        tt_print("  mesh        %s, policy %s\n", mesh_of(a, sizeof a, json), tt_ckpt_text(json, "policy"));
    } else if (strcmp(tt_ckpt_text(json, "kind"), "dcp") == 0) {
        tt_print("  step        %s\n", count_of(b, sizeof b, json, "step"));
        tt_print("  tokens      %s\n", count_of(b, sizeof b, json, "tokens"));
        tt_print("  PyTorch's torch.distributed.checkpoint; %zu keys that titan does not use\n",
                 json_array_size(json_object_get(torch, "other")));
        json_array_foreach(json_object_get(torch, "unread"), k, unread)
            tt_print("  not read    %s %s\n", tt_ckpt_text(unread, "key"), tt_ckpt_text(unread, "why"));
    } else {
        tt_print("  %s\n", strcmp(tt_ckpt_text(json, "kind"), "gguf") == 0
                               ? "GGUF, the format of llama.cpp"
                               : "safetensors without a manifest of titan's");
    }
    tt_print("  parameters  %s\n", count_of(b, sizeof b, json, "parameters"));
    for (int i = 0; i < 2; i++) {
        const json_t *group = json_object_get(json, groups[i]);

        if (tt_ckpt_int(group, "tensors"))
            tt_print("  %-11s %" PRId64 " tensors, %s\n", groups[i], tt_ckpt_int(group, "tensors"),
                     tt_ckpt_bytes(b, sizeof b, group, "bytes"));
    }
    print_files("files", json);
    if (json_is_object(json_object_get(json, "hf")))
        print_files("hf", json_object_get(json, "hf"));
    for (size_t i = 0; i < json_array_size(assets); i++)
        tt_print("%s%s%s", i ? ", " : "  assets      ", json_string_value(json_array_get(assets, i)),
                 i + 1 == json_array_size(assets) ? "\n" : "");
    tt_print("\n");
    if (inspection->stats || tt_args_has(args, "all"))
        print_each(inspection);
    else
        print_alike(inspection, tt_args_has(args, "moments"));
}

/* Begins a line of JSON that is `depth` levels in. */
static void put_line(const char *before, int depth)
{
    tt_print("%s\n%*s", before, 2 * depth, "");
}

static void put_tensors(const struct tt_ckpt_inspection *inspection, int depth)
{
    for (int i = 0; i < inspection->manifest.n_tensors; i++) {
        json_t *tensor = tt_ckpt_inspect_tensor(inspection, i);

        put_line(i ? "," : "[", depth + 1);
        tt_cli_put_json(tensor, depth + 1);
        json_decref(tensor);
    }
    if (inspection->manifest.n_tensors)
        put_line("", depth);
    tt_print("%s", inspection->manifest.n_tensors ? "]" : "[]");
}

static void put_inspection(const struct tt_ckpt_inspection *inspection, int depth)
{
    const char *key, *before = "{";
    json_t *value;

    json_object_foreach(inspection->json, key, value)
    {
        put_line(before, depth + 1);
        tt_print("\"%s\": ", key);
        if (strcmp(key, "tensors") == 0)
            put_tensors(inspection, depth + 1);
        else
            tt_cli_put_json(value, depth + 1);
        before = ",";
    }
    put_line("", depth);
    tt_print("}");
}

int tt_ckpt_verb_inspect(const struct tt_args *args)
{
    bool is_json = tt_args_has(args, "json"), is_list = args->n_words != 2;
    struct tt_ckpt_inspection *all = tt_calloc((size_t)args->n_words, sizeof *all);
    int rc = 0;

    for (int i = 1; i < args->n_words; i++) {
        TT_TRY(tt_ckpt_inspect(args->word[i], tt_args_has(args, "stats"), &all[i]));
        if (is_json)
            continue; /* nothing is printed before all paths are known to be good */
        print_inspect(&all[i], args);
        tt_ckpt_inspection_release(&all[i]);
    }
    for (int i = 1; is_json && i < args->n_words; i++) {
        if (is_list)
            put_line(i > 1 ? "," : "[", 1);
        put_inspection(&all[i], is_list);
    }
    if (is_json)
        tt_print(is_list ? "\n]\n" : "\n");
    rc = tt_cli_finish();
out:
    for (int i = 1; i < args->n_words; i++)
        tt_ckpt_inspection_release(&all[i]);
    tt_free(all);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

/* --- diff --- */

enum { EXIT_DIFFERENT = 1 };

static void print_tensor(const json_t *t)
{
    char count[32], of[32];
    const json_t *most = json_object_get(t, "max_abs"), *first = json_object_get(t, "first");

    tt_print("%s/%s: ", tt_ckpt_text(t, "group"), tt_ckpt_text(t, "name"));
    if (!json_is_integer(json_object_get(t, "count"))) {
        tt_print("another %s\n", tt_ckpt_text(t, "why"));
        return;
    }
    tt_print("%s of %s values, ", count_of(count, sizeof count, t, "count"), count_of(of, sizeof of, t, "elements"));
    if (json_is_number(most))
        tt_print("at most %.9g", json_number_value(most));
    else
        tt_print("not finite");
    tt_print(", the first at ");
    for (size_t i = 0; i < json_array_size(first); i++)
        tt_print("%s%" JSON_INTEGER_FORMAT, i ? ", " : "[", json_integer_value(json_array_get(first, i)));
    tt_print("]\n");
}

static void print_only(const char *where, const json_t *names)
{
    for (size_t i = 0; i < json_array_size(names); i++)
        tt_print("only in %s: %s\n", where, json_string_value(json_array_get(names, i)));
}

/* end: what follows the two values. */
static void print_note(const json_t *note, const char *end)
{
    char *a = tt_json_text(json_object_get(note, "a")), *b = tt_json_text(json_object_get(note, "b"));

    tt_print("  %s: %s, %s%s\n", tt_ckpt_text(note, "key"), a, b, end);
    tt_free(a);
    tt_free(b);
}

static void print_diff(const json_t *json)
{
    const json_t *different = json_object_get(json, "different"), *notes = json_object_get(json, "notes");
    const json_t *config = json_object_get(json, "config");

    for (size_t i = 0; i < json_array_size(different); i++)
        print_tensor(json_array_get(different, i));
    print_only(tt_ckpt_text(json, "a"), json_object_get(json, "only_a"));
    print_only(tt_ckpt_text(json, "b"), json_object_get(json, "only_b"));
    tt_print("%s: %s and %s, %" PRId64 " tensors compared, %" PRId64 " by their digests\n",
             json_is_true(json_object_get(json, "equal")) ? "EQUAL" : "DIFFERENT", tt_ckpt_text(json, "a"),
             tt_ckpt_text(json, "b"), tt_ckpt_int(json, "tensors"), tt_ckpt_int(json, "by_digest"));
    for (size_t i = 0; i < json_array_size(notes); i++)
        print_note(json_array_get(notes, i), " (not a difference)");
    if (json_array_size(config))
        tt_print("  in the configurations:\n");
    for (size_t i = 0; i < json_array_size(config); i++)
        print_note(json_array_get(config, i), "");
}

static int read_atol(const struct tt_args *args, double *ret_atol)
{
    const char *text = tt_args_last(args, "atol");
    char *end = NULL;

    *ret_atol = -1.0;
    if (!text)
        return 0;
    *ret_atol = strtod(text, &end);
    if (end == text || *end || !(*ret_atol >= 0.0) || !isfinite(*ret_atol))
        return tt_fail(TT_EUSAGE, "--atol '%s' is not a number of 0 or more", text);
    return 0;
}

int tt_ckpt_verb_diff(const struct tt_args *args)
{
    json_t *json = NULL;
    double atol = 0.0;
    bool equal;
    int rc = 0;

    TT_TRY(read_atol(args, &atol));
    TT_TRY(tt_ckpt_diff(args->word[1], args->word[2], atol, &json));
    equal = json_is_true(json_object_get(json, "equal"));
    if (tt_args_has(args, "json")) {
        rc = tt_cli_print_json(json);
    } else {
        print_diff(json);
        json_decref(json);
        rc = tt_cli_finish();
    }
    return rc == 0 && !equal ? EXIT_DIFFERENT : rc;
out:
    return tt_cli_fail(rc);
}
