/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt inspect`: one checkpoint as text, or as JSON.
 */
#include "checkpoint/tools/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/commands/ckpt/alike.h"
#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/columns.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/text.h"

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

/* --- tensors --- */

static void add_stats(const json_t *stats, struct tt_columns *table)
{
    static const char *const keys[] = {"min", "max", "mean", "rms"};
    char number[32];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        tt_columns_cell(table, "%s", number_text(number, sizeof number, stats, keys[i]));
    tt_columns_cell(table, "%s", tt_ckpt_count(number, sizeof number, stats, "nonfinite"));
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
    struct tt_alike *alike = NULL;
    int n = 0, hidden = 0;

    tt_alike_find(manifest, &alike, &n);
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
    tt_alike_release(alike, n);
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

static void print_unread(const json_t *unread)
{
    for (size_t i = 0; i < json_array_size(unread); i++)
        tt_print("  not read    %s %s\n", tt_ckpt_text(json_array_get(unread, i), "key"),
                 tt_ckpt_text(json_array_get(unread, i), "why"));
}

static void print_inspect(const struct tt_ckpt_inspection *inspection, const struct tt_args *args)
{
    static const char *const groups[] = {"model", "optimizer"};
    const json_t *json = inspection->json, *assets = json_object_get(json, "assets");
    char a[160], b[32];

    tt_print("%s\n", tt_ckpt_text(json, "path"));
    if (strcmp(tt_ckpt_text(json, "kind"), "step") == 0) {
        tt_print("  step        %s\n", tt_ckpt_count(b, sizeof b, json, "step"));
        tt_print("  tokens      %s\n", tt_ckpt_count(b, sizeof b, json, "tokens"));
        tt_print("  saved       %s by run %s\n", time_text(a, sizeof a, json), tt_ckpt_text(json, "run_id"));
        tt_print("  mesh        %s, policy %s\n", tt_ckpt_mesh(a, sizeof a, json), tt_ckpt_text(json, "policy"));
    } else if (strcmp(tt_ckpt_text(json, "kind"), "dcp") == 0) {
        tt_print("  step        %s\n", tt_ckpt_count(b, sizeof b, json, "step"));
        tt_print("  tokens      %s\n", tt_ckpt_count(b, sizeof b, json, "tokens"));
        tt_print("  PyTorch's torch.distributed.checkpoint; %zu keys that titan does not use\n",
                 json_array_size(json_object_get(json_object_get(json_object_get(json, "meta"), "torch"), "other")));
        print_unread(json_object_get(json_object_get(json_object_get(json, "meta"), "torch"), "unread"));
    } else {
        tt_print("  %s\n", strcmp(tt_ckpt_text(json, "kind"), "gguf") == 0
                               ? "GGUF, the format of llama.cpp"
                               : "safetensors without a manifest of titan's");
    }
    tt_print("  parameters  %s\n", tt_ckpt_count(b, sizeof b, json, "parameters"));
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
