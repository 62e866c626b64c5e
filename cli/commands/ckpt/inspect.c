/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt inspect` and `titan ckpt diff`: one checkpoint, or the differences of two, as text or as JSON.
 */
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint/tools/tools.h"
#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/text.h"

/* --- inspect --- */

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

/* --- tensors that are alike --- */

/* Tensors that share one line of a table, in the place of the first of them. */
struct alike {
    int n;
    char *name; /* "layers.0-5.attention.wq.weight" */
};

enum { SLOTS = 4, DIGITS = 9 }; /* how many numbers in a name are compared, and how many digits they may have */

/* A tensor, and a key that it shares with all similar tensors. */
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

/* Lists the different numbers in a slot of n entries, in ascending order; returns their count. */
static int64_t numbers_of(const struct entry *e, int n, int slot, int64_t *ret_numbers)
{
    int64_t count = 0;

    for (int i = 0; i < n; i++) {
        int64_t number = e[i].slot[slot], at = count;

        while (at > 0 && ret_numbers[at - 1] > number)
            at--;
        if (at > 0 && ret_numbers[at - 1] == number)
            continue;
        memmove(&ret_numbers[at + 1], &ret_numbers[at], (size_t)(count - at) * sizeof *ret_numbers);
        ret_numbers[at] = number;
        count++;
    }
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

/* A common name for n entries with the same key; NULL if some combination of their numbers is missing. */
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

/*
 * Groups tensors that differ only in the numbers in their names, such as the same weight of several layers or experts.
 * They must share group, type, shape and number of chunks, and every combination of their numbers must exist. Other
 * tensors form groups of one.
 *   ret_alike  [n_tensors], by the first tensor of each group; n is 0 for the tensors that are not the first
 */
static void find_alike(const struct tt_manifest *manifest, struct alike *ret_alike)
{
    int n = manifest->n_tensors;
    struct entry *entry = tt_calloc((size_t)n + 1, sizeof *entry);

    for (int i = 0; i < n; i++)
        entry[i] = make_entry(&manifest->tensor[i], i);
    qsort(entry, (size_t)n, sizeof *entry, compare_entries);
    for (int i = 0, end; i < n; i = end) {
        char *name;

        for (end = i + 1; end < n && strcmp(entry[end].key, entry[i].key) == 0; end++)
            ;
        name = name_of(manifest, &entry[i], end - i);
        if (name)
            ret_alike[entry[i].tensor] = (struct alike){end - i, name};
        for (int k = i; k < end && !name; k++)
            ret_alike[entry[k].tensor] = (struct alike){1, tt_strdup(manifest->tensor[entry[k].tensor].name)};
    }
    for (int i = 0; i < n; i++)
        tt_free(entry[i].key);
    tt_free(entry);
}

/* --- tensors --- */

/* Adds the cells of a tensor, up to the one with its number of chunks. */
static void add_tensor(const json_t *t, const char *name, struct tt_columns *table)
{
    char shape[128];

    tt_columns_cell(table, "%s", tt_cli_text(t, "group"));
    tt_columns_cell(table, "%s", name);
    tt_columns_cell(table, "%s", tt_cli_text(t, "dtype"));
    tt_columns_cell(table, "%s", shape_text(shape, sizeof shape, t));
    tt_columns_cell(table, "%" PRId64, tt_cli_int(t, "chunks"));
}

/* titan-ckpt(1) lists the order in which columns are left out on a narrow terminal. */
#define TENSOR_COLUMNS                                                                          \
    {"group", 6, false, 0, 5, 0}, {"tensor", 52, false, 1, 0, 0}, {"dtype", 6, false, 1, 0, 0}, \
        {"shape", 20, false, 1, 1, 0},                                                          \
    {                                                                                           \
        "chunks", 6, true, 1, 4, 0                                                              \
    }

/* Prints a line for each tensor. */
static void print_each(const struct tt_ckpt_inspection *inspection)
{
    static const struct tt_column columns[] = {TENSOR_COLUMNS,
                                               {"min", 10, true, 1, 2, 0},
                                               {"max", 10, true, 1, 2, 0},
                                               {"mean", 10, true, 1, 3, 0},
                                               {"rms", 10, true, 1, 0, 0},
                                               {"nonfinite", 10, true, 1, 0, 0}};
    static const char *const keys[] = {"min", "max", "mean", "rms"};
    enum { ALL = sizeof columns / sizeof *columns, STATS = 5 };
    char count[32];
    bool stats = inspection->stats && inspection->manifest.n_tensors;
    struct tt_columns table = {.column = columns, .n = stats ? ALL : ALL - STATS};

    for (int i = 0; i < inspection->manifest.n_tensors; i++) {
        json_t *t = tt_ckpt_inspect_tensor(inspection, i);

        add_tensor(t, tt_cli_text(t, "name"), &table);
        for (size_t k = 0; stats && k < sizeof keys / sizeof *keys; k++) {
            const json_t *value = json_object_get(json_object_get(t, "stats"), keys[k]);

            if (json_is_number(value))
                tt_columns_cell(&table, "%.4g", json_number_value(value));
            else
                tt_columns_cell(&table, "-");
        }
        if (stats)
            tt_columns_cell(&table, "%s", tt_ckpt_count(count, sizeof count, json_object_get(t, "stats"), "nonfinite"));
        json_decref(t);
    }
    tt_columns_print(&table);
}

/* Prints a line for each group of similar tensors. The optimizer's tensors are moments and averages of the weights. */
static void print_alike(const struct tt_ckpt_inspection *inspection, bool moments)
{
    static const struct tt_column columns[] = {TENSOR_COLUMNS, {"tensors", 7, true, 1, 3, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    const struct tt_manifest *manifest = &inspection->manifest;
    struct alike *alike = tt_calloc((size_t)manifest->n_tensors + 1, sizeof *alike);
    int lines = 0, hidden = 0;

    find_alike(manifest, alike);
    for (int i = 0; i < manifest->n_tensors; i++) {
        json_t *t;

        lines += alike[i].n > 0;
        if (!moments && manifest->meta && manifest->tensor[i].group == TT_CKPT_OPTIM) {
            hidden += alike[i].n;
        } else if (alike[i].n) {
            t = tt_ckpt_inspect_tensor(inspection, i);
            add_tensor(t, alike[i].name, &table);
            tt_columns_cell(&table, "%d", alike[i].n);
            json_decref(t);
        }
        tt_free(alike[i].name);
    }
    tt_columns_print(&table);
    if (hidden)
        tt_print_broken(2, "and %d tensors of the optimizer (--moments lists them, --all every tensor by itself)\n",
                        hidden);
    else if (lines < manifest->n_tensors)
        tt_print_broken(2, "tensors of alike layers are on one line (--all lists every tensor by itself)\n");
    tt_free(alike);
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
        tt_columns_cell(&table, "%s", tt_cli_text(json_array_get(files, i), "path"));
        tt_columns_cell(&table, "%s", tt_ckpt_bytes(b, sizeof b, json_array_get(files, i), "bytes"));
    }
    tt_columns_print(&table);
}

static void print_inspect(const struct tt_ckpt_inspection *inspection, const struct tt_args *args)
{
    static const char *const groups[] = {"model", "optimizer"};
    const json_t *json = inspection->json, *assets = json_object_get(json, "assets");
    const json_t *torch = json_object_get(json_object_get(json, "meta"), "torch"), *unread;
    const char *kind = tt_cli_text(json, "kind");
    bool is_step = strcmp(kind, "step") == 0, is_torch = strcmp(kind, "dcp") == 0;
    time_t seconds = (time_t)json_number_value(json_object_get(json, "time"));
    char mesh[160], saved[32], b[32];
    struct tm t;
    size_t k;

    tt_print("%s\n", tt_cli_text(json, "path"));
    if (is_step || is_torch) {
        tt_print("  step        %s\n", tt_ckpt_count(b, sizeof b, json, "step"));
        tt_print("  tokens      %s\n", tt_ckpt_count(b, sizeof b, json, "tokens"));
    } else {
        tt_print("  %s\n", strcmp(kind, "gguf") == 0 ? "GGUF, the format of llama.cpp"
                                                     : "safetensors without a manifest of titan's");
    }
    if (is_step) {
        if (!seconds || !localtime_r(&seconds, &t) || !strftime(saved, sizeof saved, "%Y-%m-%d %H:%M:%S", &t))
            (void)snprintf(saved, sizeof saved, "-");
        tt_print("  saved       %s by run %s\n", saved, tt_cli_text(json, "run_id"));
        tt_print("  mesh        %s, policy %s\n", tt_ckpt_mesh(mesh, sizeof mesh, json), tt_cli_text(json, "policy"));
    } else if (is_torch) {
        tt_print("  PyTorch's torch.distributed.checkpoint; %zu keys that titan does not use\n",
                 json_array_size(json_object_get(torch, "other")));
        json_array_foreach(json_object_get(torch, "unread"), k, unread)
            tt_print("  not read    %s %s\n", tt_cli_text(unread, "key"), tt_cli_text(unread, "why"));
    }
    tt_print("  parameters  %s\n", tt_ckpt_count(b, sizeof b, json, "parameters"));
    for (int i = 0; i < 2; i++) {
        const json_t *group = json_object_get(json, groups[i]);

        if (tt_cli_int(group, "tensors"))
            tt_print("  %-11s %" PRId64 " tensors, %s\n", groups[i], tt_cli_int(group, "tensors"),
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

/* Begins a line of JSON, indented by `depth` levels. */
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
            continue; /* print nothing before all paths are known to be good */
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
out:
    for (int i = 1; i < args->n_words; i++)
        tt_ckpt_inspection_release(&all[i]);
    tt_free(all);
    return rc;
}

/* --- diff --- */

enum { EXIT_DIFFERENT = 1 };

static void print_tensor(const json_t *t)
{
    char count[32], of[32];
    const json_t *most = json_object_get(t, "max_abs"), *first = json_object_get(t, "first");

    tt_print("%s/%s: ", tt_cli_text(t, "group"), tt_cli_text(t, "name"));
    if (!json_is_integer(json_object_get(t, "count"))) {
        tt_print("another %s\n", tt_cli_text(t, "why"));
        return;
    }
    tt_print("%s of %s values, ", tt_ckpt_count(count, sizeof count, t, "count"),
             tt_ckpt_count(of, sizeof of, t, "elements"));
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

/* end: text after the two values. */
static void print_note(const json_t *note, const char *end)
{
    char *a = tt_json_text(json_object_get(note, "a")), *b = tt_json_text(json_object_get(note, "b"));

    tt_print("  %s: %s, %s%s\n", tt_cli_text(note, "key"), a, b, end);
    tt_free(a);
    tt_free(b);
}

static void print_diff(const json_t *json)
{
    const json_t *different = json_object_get(json, "different"), *notes = json_object_get(json, "notes");
    const json_t *config = json_object_get(json, "config");

    for (size_t i = 0; i < json_array_size(different); i++)
        print_tensor(json_array_get(different, i));
    print_only(tt_cli_text(json, "a"), json_object_get(json, "only_a"));
    print_only(tt_cli_text(json, "b"), json_object_get(json, "only_b"));
    tt_print("%s: %s and %s, %" PRId64 " tensors compared, %" PRId64 " by their digests\n",
             json_is_true(json_object_get(json, "equal")) ? "EQUAL" : "DIFFERENT", tt_cli_text(json, "a"),
             tt_cli_text(json, "b"), tt_cli_int(json, "tensors"), tt_cli_int(json, "by_digest"));
    for (size_t i = 0; i < json_array_size(notes); i++)
        print_note(json_array_get(notes, i), " (not a difference)");
    if (json_array_size(config))
        tt_print("  in the configurations:\n");
    for (size_t i = 0; i < json_array_size(config); i++)
        print_note(json_array_get(config, i), "");
}

int tt_ckpt_verb_diff(const struct tt_args *args)
{
    json_t *json = NULL;
    double atol = -1.0;
    bool equal;
    int rc = 0;

    TT_TRY(tt_cli_real("ckpt diff", args, "atol", 0.0, DBL_MAX, "a number of 0 or more", &atol));
    TT_TRY(tt_ckpt_diff(args->word[1], args->word[2], atol, &json));
    equal = json_is_true(json_object_get(json, "equal"));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(json_incref(json));
    else
        print_diff(json);
    rc = rc ? rc : tt_cli_finish();
    rc = rc == 0 && !equal ? EXIT_DIFFERENT : rc;
out:
    json_decref(json);
    return rc;
}
