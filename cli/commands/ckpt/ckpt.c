/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt`: its subcommands and their options. The library returns results as JSON; without --json the files of the
 * subcommands print them as text.
 */
#include "cli/commands/ckpt/ckpt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/export/export.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "cli/run/screen.h"
#include "cli/watch/history.h"
#include "core/base/mem.h"
#include "core/base/text.h"

/* --- consolidate, convert, average --- */

/* Reads the type of the tensors. GGUF has its own types, and its output is a single file. */
static int read_type(const struct tt_args *args, struct tt_copy *options_out)
{
    static const char *const refused[] = {"dtype", "max_shard_size"};
    const char *type = tt_args_last(args, "type");
    bool gguf = options_out->format == TT_FORMAT_GGUF;

    if (type && !gguf)
        return tt_fail(TT_EUSAGE, "--type belongs to --format gguf\nhelp: other formats take --dtype");
    for (size_t i = 0; gguf && i < sizeof refused / sizeof *refused; i++)
        if (tt_args_has(args, refused[i]))
            return tt_fail(TT_EUSAGE, "%s",
                           i ? "--format gguf writes one file, so --max-shard-size has no meaning"
                             : "--format gguf takes --type, not --dtype\nhelp: --type bf16");
    options_out->type = type ? tt_gguf_type_named(type) : NULL;
    if (type && !options_out->type)
        return tt_fail(TT_EUSAGE, "no type '%s'\nhelp: --type takes f32, f16, bf16, q8_0 or q4_0", type);
    return 0;
}

static int read_options(const struct tt_args *args, struct tt_copy *options_out)
{
    static const struct {
        const char *name;
        enum tt_dtype dtype;
    } dtypes[] = {{"float32", TT_F32}, {"bfloat16", TT_BF16}, {"float16", TT_F16}};
    const char *format = tt_args_last(args, "format"), *dtype = tt_args_last(args, "dtype");
    const char *size = tt_args_last(args, "max_shard_size");

    if (format && strcmp(format, "hf") == 0)
        options_out->format = TT_FORMAT_HF;
    else if (format && strcmp(format, "dcp") == 0)
        options_out->format = TT_FORMAT_DCP;
    else if (format && strcmp(format, "gguf") == 0)
        options_out->format = TT_FORMAT_GGUF;
    else if (format && strcmp(format, "titan") != 0)
        return tt_fail(TT_EUSAGE, "no format '%s'\nhelp: --format takes titan, hf, dcp or gguf", format);
    if (tt_args_has(args, "adapter")) {
        if (format)
            return tt_fail(TT_EUSAGE, "--adapter writes PEFT's format, so --format %s has no meaning", format);
        options_out->format = TT_FORMAT_PEFT;
    }
    if (read_type(args, options_out) < 0)
        return TT_EUSAGE;
    for (size_t i = 0; dtype && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, dtype) != 0)
            continue;
        options_out->has_dtype = true;
        options_out->dtype = dtypes[i].dtype;
    }
    if (dtype && !options_out->has_dtype)
        return tt_cli_fail_choice("dtype", dtype, (const char *const[]){"float32", "bfloat16", "float16"}, 3);
    if (size && (!tt_text_to_bytes(size, &options_out->max_shard_bytes) || options_out->max_shard_bytes < 1))
        return tt_fail(TT_EUSAGE, "--max-shard-size '%s' is not a size\nhelp: such as 500MiB or 5GiB", size);
    options_out->told = (struct tt_told){.model = tt_args_last(args, "model"),
                                         .flavor = tt_args_last(args, "flavor"),
                                         .assets = tt_args_last(args, "assets")};
    if (!options_out->told.model != !options_out->told.flavor)
        return tt_fail(TT_EUSAGE, "--model and --flavor name a model together\nhelp: --model llama3 --flavor 8B");
    options_out->base = tt_args_last(args, "base");
    options_out->averages = tt_args_has(args, "ema");
    options_out->force = tt_args_has(args, "force");
    return 0;
}

static int make(const struct tt_args *args, struct tt_copy what)
{
    const char *pattern;
    struct tt_copied done;
    char bytes[32];
    int rc = 0;

    what.leave_out.is_list = true;
    for (int cap = 0; (pattern = tt_args_value(args, "leave_out", what.leave_out.n));)
        TT_PUSH(what.leave_out.word, what.leave_out.n, cap) = (char *)(uintptr_t)pattern;
    TT_TRY(read_options(args, &what));
    TT_TRY(tt_ckpt_copy(&what, &done));
    if (tt_args_has(args, "json")) {
        rc = tt_cli_print_json(json_pack("{s:o,s:o,s:i,s:i,s:I}", "source", tt_json_string(done.source), "destination",
                                         tt_json_string(what.destination), "files", done.files, "tensors", done.tensors,
                                         "bytes", (json_int_t)done.bytes));
        goto out;
    }
    if (what.n_more)
        tt_print("mean of %d checkpoints: ", 1 + what.n_more);
    tt_print("%s -> %s: %d tensors, %d file%s, %s\n", done.source, what.destination, done.tensors, done.files,
             done.files == 1 ? "" : "s", tt_text_bytes(bytes, sizeof bytes, (double)done.bytes));
out:
    tt_free(what.leave_out.word);
    return rc;
}

static int consolidate(const struct tt_args *args)
{
    return make(args, (struct tt_copy){.source = args->word[1], .destination = args->word[2]});
}

static int convert(const struct tt_args *args)
{
    const char *format = tt_args_last(args, "format");

    if (format && strcmp(format, "dcp") != 0)
        return tt_fail(TT_EUSAGE, "'titan ckpt convert' takes only --format dcp: otherwise the source decides the "
                                  "format\nhelp: titan ckpt consolidate takes --format titan, hf and gguf");
    return make(args, (struct tt_copy){.source = args->word[1], .destination = args->word[2], .convert = true});
}

/* Reads n comma-separated numbers, none of them negative and not all 0. */
static int read_shares(const char *text, double *share, int n)
{
    const char *at = text;
    double sum = 0.0;
    int found = 0;

    for (char *end = NULL;; at = end + 1) {
        double number = strtod(at, &end);

        if (end == at || !isfinite(number) || number < 0.0 || (*end && *end != ','))
            return tt_fail(TT_EUSAGE, "--weights '%s': '%s' does not begin with a number that is at least 0", text, at);
        if (found < n)
            share[found] = number;
        found++;
        sum += number;
        if (!*end)
            break;
    }
    if (found != n)
        return tt_fail(TT_EUSAGE, "--weights '%s' has %d number%s for %d checkpoints", text, found,
                       found == 1 ? "" : "s", n);
    return sum > 0.0 && isfinite(sum) ? 0 : tt_fail(TT_EUSAGE, "--weights '%s': the sum is %g", text, sum);
}

static int average(const struct tt_args *args)
{
    const char *weights = tt_args_last(args, "weights"), *out = tt_args_last(args, "out");
    int n = args->n_words - 1, rc = 0;
    double *share = tt_calloc((size_t)n, sizeof *share);

    if (!out)
        rc = tt_fail(TT_EUSAGE, "'titan ckpt average' needs a folder to write\nhelp: titan ckpt average A B --out DST");
    else if (weights)
        rc = read_shares(weights, share, n);
    if (rc == 0)
        rc = make(args, (struct tt_copy){.source = args->word[1],
                                         .more = (const char *const *)&args->word[2],
                                         .n_more = n - 1,
                                         .share = weights ? share : NULL,
                                         .destination = out});
    tt_free(share);
    return rc;
}

/* --- list, verify --- */
const char *tt_ckpt_count(char *buf, size_t buf_size, const json_t *json, const char *key)
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

/* "dp_replicate 2, dp_shard 4": the dimensions with more than one rank. */
const char *tt_ckpt_mesh(char *buf, size_t buf_size, const json_t *json)
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

/* run: the folder to show in the first column; NULL: there is no such column. */
static void add_step(const json_t *s, const char *run, struct tt_columns *table)
{
    char text[128];

    if (run)
        tt_columns_cell(table, "%s", run);
    tt_columns_cell(table, "%" PRId64, tt_cli_int(s, "step"));
    tt_columns_cell(table, "%s", tt_cli_text(s, "state"));
    tt_columns_cell(table, "%s", age_text(text, sizeof text, s, "age_s"));
    tt_columns_cell(table, "%s", tt_ckpt_bytes(text, sizeof text, s, "bytes"));
    tt_columns_cell(table, "%s", tt_ckpt_count(text, sizeof text, s, "tokens"));
    tt_columns_cell(table, "%s", tt_ckpt_count(text, sizeof text, s, "world"));
    tt_columns_cell(table, "%s", tt_cli_text(s, "policy"));
    tt_columns_cell(table, "%s", tt_ckpt_mesh(text, sizeof text, s));
    if (!json_is_false(json_object_get(s, "good")))
        return;
    for (int i = 0; i < 1 + (run != NULL); i++)
        tt_columns_cell(table, "%s", "");
    tt_columns_rest(table, 2, tt_cli_text(s, "problem"));
}

/* A step that was set aside, or the remains of a killed save. */
static void add_other(const json_t *l, struct tt_columns *table)
{
    char text[128] = "";

    tt_columns_cell(table, "%s", tt_cli_text(l, "name"));
    tt_columns_cell(table, "%s", tt_cli_text(l, "state"));
    tt_columns_cell(table, "%s", age_text(text, sizeof text, l, "age_s"));
    tt_columns_cell(table, "%s", tt_ckpt_bytes(text, sizeof text, l, "bytes"));
    if (json_is_string(json_object_get(l, "run_id")))
        (void)snprintf(text, sizeof text, "saved by run %s", tt_cli_text(l, "run_id"));
    tt_columns_rest(table, 2, json_is_string(json_object_get(l, "run_id")) ? text : "");
}

/* titan-ckpt(1) lists the order in which columns are left out on a narrow terminal. */
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
            int n = (int)strlen(tt_cli_text(json_array_get(names, i), "name"));

            columns[0].width = n > columns[0].width ? n : columns[0].width;
            add_other(json_array_get(names, i), &table);
        }
    }
    tt_print("%s\n", tt_cli_text(json, "folder"));
    tt_columns_print(&table);
}

static bool is_unreadable(const json_t *problem)
{
    return strcmp(tt_cli_text(problem, "kind"), "unreadable") == 0;
}

/* The first problem that proves damage, since other problems do not make a checkpoint bad. NULL: none does. */
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
    int64_t checksums = tt_cli_int(json, "checksums"), digests = tt_cli_int(json, "digests");
    struct tt_text text = {0};
    char b[32];

    for (size_t i = 0; i < json_array_size(problems); i++) {
        const json_t *problem = json_array_get(problems, i);

        tt_print("%s%s: %s\n", is_unreadable(problem) ? "" : "BAD ", tt_cli_text(problem, "kind"),
                 tt_cli_text(problem, "text"));
    }
    if (json_array_size(problems)) {
        tt_print("%s %s: %zu problem%s\n", find_damage(problems) ? "BAD" : "UNKNOWN", tt_cli_text(json, "path"),
                 json_array_size(problems), json_array_size(problems) == 1 ? "" : "s");
        return;
    }
    tt_text_add(&text, "OK %s: %" PRId64 " tensors, %" PRId64 " files, %s, coverage exact, ", tt_cli_text(json, "path"),
                tt_cli_int(json, "tensors"), tt_cli_int(json, "files"), tt_ckpt_bytes(b, sizeof b, json, "bytes"));
    if (checksums)
        tt_text_add(&text, "%" PRId64 " checksums match", checksums);
    else
        tt_text_add(&text, "checksums not compared");
    if (digests)
        tt_text_add(&text, ", %" PRId64 " digests match", digests);
    tt_text_add(&text, " (%.1f s)\n", json_real_value(json_object_get(json, "seconds")));
    tt_print_broken((int)strlen("OK "), "%s", text.text);
    tt_text_release(&text);
}

static void fail_verify(const char *path, const json_t *problems)
{
    const json_t *damage = find_damage(problems);
    const char *text = damage ? tt_cli_text(damage, "text") : NULL;

    if (text && strstr(text, "' is damaged")) /* the message itself names the file */
        (void)tt_fail(TT_EDATA, "%s", text);
    else if (text)
        (void)tt_fail(TT_EDATA, "'%s' is damaged: %s", path, text);
    else
        (void)tt_error_add_hint(
            tt_fail(TT_EIO, "'%s' could not be verified: %s", path, tt_cli_text(json_array_get(problems, 0), "text")),
            "it may be good; try again when it can be read");
}

typedef int (*describe_fn)(const struct tt_args *args, const char *path, json_t **ret_json);

/* Describes every PATH; with --json as an object, or as a list of objects for several paths. TT_EDATA: one of the
 * checkpoints is not "ok". */
static int describe(const struct tt_args *args, describe_fn look, void (*print)(const json_t *json))
{
    json_t *all = json_array();
    bool is_json = tt_args_has(args, "json"), ok = true;
    int rc = 0;

    for (int i = 1; i < args->n_words; i++) {
        json_t *json = NULL;

        TT_TRY(look(args, args->word[i], &json));
        (void)json_array_append_new(all, json);
        if (ok && json_is_false(json_object_get(json, "ok"))) {
            ok = false; /* fails with the error of the first problem */
            fail_verify(args->word[i], json_object_get(json, "problems"));
        }
        if (!is_json)
            print(json);
    }
    if (is_json)
        rc = tt_cli_print_json(json_incref(args->n_words == 2 ? json_array_get(all, 0) : all));
    rc = rc == 0 && !ok ? TT_EDATA : rc;
out:
    json_decref(all);
    return rc;
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

/* A run without checkpoints, or a run that cannot be read, gets a row that says so. */
static int list_runs(const struct tt_runs *runs, bool is_json)
{
    static const struct tt_column columns[] = {{"run", 0, false, 0, 0, 0}, STEP_COLUMNS(6, 2)};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    json_t *all = json_array();

    for (int i = 0; i < runs->n; i++) {
        const char *run = runs->folder[i];
        json_t *json = NULL;

        if (tt_ckpt_list(run, &json) == 0) {
            const json_t *steps = json_object_get(json, "steps");

            for (size_t k = 0; k < json_array_size(steps); k++)
                add_step(json_array_get(steps, k), run, &table);
            if (!json_array_size(steps)) {
                tt_columns_cell(&table, "%s", run);
                tt_columns_rest(&table, 2, "no steps");
            }
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
    return 0;
}

static int list(const struct tt_args *args)
{
    struct tt_runs runs = {0};
    bool as_given;
    int rc = 0;

    TT_TRY(tt_runs_find(args->n_words - 1, args->word + 1, &runs));
    as_given = runs.n == args->n_words - 1;
    for (int i = 0; i < runs.n && as_given; i++)
        as_given = strcmp(runs.folder[i], args->word[i + 1]) == 0;
    if (as_given)
        rc = describe(args, make_list, print_list);
    else
        rc = list_runs(&runs, tt_args_has(args, "json"));
out:
    tt_runs_release(&runs);
    return rc;
}

static int verify(const struct tt_args *args)
{
    if (tt_args_has(args, "deep") && tt_args_has(args, "quick"))
        return tt_fail(TT_EUSAGE, "'titan ckpt verify' takes only one of --deep and --quick\n"
                                  "help: --deep reads every byte, --quick none");
    return describe(args, make_verify, print_verify);
}

/* --- gc, rollback --- */

static int make_gc(const struct tt_args *args, const char *path, json_t **ret_json)
{
    int64_t keep = -1;
    int rc = tt_cli_count("ckpt gc", args, "keep", 0, 1 << 20, &keep);

    return rc < 0 ? rc : tt_ckpt_gc(path, keep, tt_args_has(args, "abandoned"), tt_args_has(args, "dry_run"), ret_json);
}

static void print_gc(const json_t *json)
{
    const json_t *removed = json_object_get(json, "removed");
    size_t kept = json_array_size(json_object_get(json, "kept"));
    size_t damaged = json_array_size(json_object_get(json, "damaged"));
    size_t pytorch = json_array_size(json_object_get(json, "pytorch"));
    bool dry = json_is_true(json_object_get(json, "dry_run"));
    char bytes[32];

    for (size_t i = 0; i < json_array_size(removed); i++) {
        const json_t *r = json_array_get(removed, i);
        bool restored = strcmp(tt_cli_text(r, "kind"), "restored") == 0;

        tt_print("%s%s %s, %s\n", dry ? "would be " : "", restored ? "put back:" : "removed:", tt_cli_text(r, "name"),
                 tt_ckpt_bytes(bytes, sizeof bytes, r, "bytes"));
    }
    tt_print("%s: %s %s; %zu good step%s kept", tt_cli_text(json, "folder"),
             tt_ckpt_bytes(bytes, sizeof bytes, json, "bytes"), dry ? "would be freed" : "freed", kept,
             kept == 1 ? "" : "s");
    if (damaged)
        tt_print(", %zu damaged left alone", damaged);
    if (pytorch)
        tt_print(", %zu of PyTorch left alone", pytorch);
    tt_print("\n");
}

static int gc(const struct tt_args *args)
{
    return describe(args, make_gc, print_gc);
}
static int rollback(const struct tt_args *args)
{
    const char *word = args->word[2]; /* "20" or "step-20" */
    char *name = tt_text_begins(word, "step-") ? tt_strdup(word) : tt_format("step-%s", word);
    int64_t step = tt_step_number(name);
    bool dry = tt_args_has(args, "dry_run");
    json_t *json = NULL, *aside;
    int rc = 0;

    tt_free(name);
    if (step < 0)
        return tt_fail(TT_EUSAGE, "'%s' is not a step\nhelp: titan ckpt rollback RUN STEP, such as 'outputs 20'", word);
    TT_TRY(tt_ckpt_rollback(args->word[1], step, dry, &json));
    if (tt_args_has(args, "json"))
        return tt_cli_print_json(json);
    aside = json_object_get(json, "set_aside");
    for (size_t i = 0; i < json_array_size(aside); i++)
        tt_print("%sset aside: step-%" PRId64 " as %s\n", dry ? "would be " : "",
                 tt_cli_int(json_array_get(aside, i), "step"), tt_cli_text(json_array_get(aside, i), "name"));
    tt_print("%s: the next start %s from step-%" PRId64 "\n", tt_cli_text(json, "folder"),
             dry ? "would resume" : "resumes", tt_cli_int(json, "step"));
out:
    json_decref(json);
    return rc;
}

/* --- titan ckpt --- */

static const struct tt_option options[] = {
    {"json", NULL, NULL, "print JSON"},
    {"stats", NULL, NULL, "inspect: read every tensor; min, max, mean, rms, values that are not finite"},
    {"moments", NULL, NULL, "inspect: the optimizer's tensors too (moments, averages of the weights)"},
    {"all", NULL, NULL, "inspect: a line for every tensor; otherwise similar layers and experts share a line"},
    {"deep", NULL, NULL, "verify: also check digests of whole tensors, and their values"},
    {"quick", NULL, NULL, "verify: manifest, sizes, headers and coverage only"},
    {"atol", NULL, "X", "diff: differences up to X do not count"},
    {"out", NULL, "DST", "average: the folder to write"},
    {"weights", NULL, "W,W,...", "average: the share of each checkpoint in the mean (default: equal)"},
    {"format", NULL, "titan|hf|dcp|gguf",
     "consolidate, average: the format of the output; convert: only dcp (PyTorch)"},
    {"type", NULL, "TYPE",
     "with --format gguf: type of the matrices: f32, f16, bf16, q8_0 or q4_0 (default: as "
     "stored)"},
    {"ema", NULL, NULL,
     "consolidate, convert, average: use the averages of the weights (ema.decay) instead of the weights"},
    {"adapter", NULL, NULL, "consolidate: the low-rank adapters alone, as PEFT writes them"},
    {"base", NULL, "PATH",
     "consolidate, average: where the weights are that a run with lora.base_dtype began from, if they have moved"},
    {"dtype", NULL, "TYPE", "consolidate, convert, average: float32, bfloat16 or float16 (default: as stored)"},
    {"max_shard_size", NULL, "SIZE",
     "consolidate, convert, average: largest size of a file, such as 2GiB (default: 5 "
     "GB)"},
    {"assets", NULL, "DIR",
     "consolidate, convert: folder with config.json and tokenizer, for a checkpoint without them (PyTorch)"},
    {"model", NULL, "NAME",
     "consolidate, convert: the model of such a checkpoint, such as llama3, if there is no "
     "config.json"},
    {"flavor", NULL, "FLAVOR", "consolidate, convert: the flavor of that model, such as 8B"},
    {"leave_out", NULL, "REGEX",
     "convert: tensors of a Hugging Face folder that may stay unused: a regular expression that matches part of their "
     "names; may repeat"},
    {"force", NULL, NULL, "consolidate, convert, average: replace an earlier output"},
    {"keep", NULL, "K", "gc: good steps to keep (default: the run's checkpoint.keep_latest_k; 0: all)"},
    {"abandoned", NULL, NULL, "gc: also remove steps that were set aside (abandoned, damaged)"},
    {"dry_run", NULL, NULL, "gc, rollback: only say what would be removed or set aside"},
    TT_OPTION_HELP,
    {0},
};

enum { MANY = 1 << 20 };

static const struct tt_cli_verb verbs[] = {
    {"list", list, "PATH...", "the steps of a run: state, age, size, tokens, ranks, policy", 1, MANY, "a path", "|"},
    {"inspect", tt_ckpt_verb_inspect, "PATH...", "one checkpoint, or any safetensors folder: files, tensors, shapes", 1,
     MANY, "a path", "|stats|moments|all|"},
    {"verify", verify, "PATH...", "read every byte and compare checksums; exit code 3 when something is wrong", 1, MANY,
     "a path", "|deep|quick|"},
    {"diff", tt_ckpt_verb_diff, "A B", "which tensors differ, digests first; exit code 1 when some do", 2, 2,
     "two paths", "|atol|"},
    {"consolidate", consolidate, "SRC DST",
     "the model as one plain folder: titan's, Hugging Face's or PyTorch's; or as one file for llama.cpp", 2, 2,
     "two paths", "|format|type|ema|adapter|base|dtype|max_shard_size|assets|model|flavor|force|"},
    {"convert", convert, "SRC DST", "convert a Hugging Face or PyTorch folder to a titan checkpoint, or the reverse", 2,
     2, "two paths", "|format|ema|dtype|max_shard_size|assets|model|flavor|leave_out|force|"},
    {"average", average, "A B...", "the mean of the weights of several checkpoints, as one plain folder", 2, MANY,
     "two paths", "|out|weights|format|type|ema|base|dtype|max_shard_size|force|"},
    {"gc", gc, "PATH...", "remove what killed jobs left and good steps beyond the newest K", 1, MANY, "a path",
     "|keep|abandoned|dry_run|"},
    {"rollback", rollback, "RUN STEP", "set aside the steps after STEP, so that the next start resumes from it", 2, 2,
     "a run and a step", "|dry_run|"},
    {0},
};

static const struct tt_cli_elsewhere elsewhere[] = {{"ls|steps|show|status", "list"},
                                                    {"info|print|stat|summary|describe|tensors", "inspect"},
                                                    {"check|validate|fsck|test", "verify"},
                                                    {"compare|cmp", "diff"},
                                                    {"export|merge|hf|to-hf|to_hf|unshard|save", "consolidate"},
                                                    {"import|from-hf|from_hf|reshard", "convert"},
                                                    {"mean|ema|soup", "average"},
                                                    {"rm|remove|delete|prune|clean|cleanup", "gc"},
                                                    {"restore|reset|revert|undo|back", "rollback"},
                                                    {0}};

const struct tt_command tt_command_ckpt = {
    .name = "ckpt",
    .arguments = "list|inspect|verify|diff|consolidate|convert|average|gc|rollback PATH...",
    .summary = "inspect, check, compare and convert checkpoints",
    .usage = "usage: titan ckpt list|inspect|verify|gc PATH... [options]\n"
             "       titan ckpt diff A B [--atol X]\n"
             "       titan ckpt consolidate|convert SRC DST [options]\n"
             "       titan ckpt average A B... --out DST [--weights W,W,...] [options]\n"
             "       titan ckpt rollback RUN STEP [--dry-run]\n\n"
             "  titan ckpt list outputs\n"
             "  titan ckpt consolidate outputs/checkpoint/step-60 model --format hf\n"
             "  titan ckpt convert Llama-3.2-1B base\n\n",
    .options = options,
    .more = "\nPATH: a step, or a run or checkpoint folder, which stands for its newest good step.\n"
            "More in titan-ckpt(1).\n",
    .verbs = verbs,
    .elsewhere = elsewhere,
};
