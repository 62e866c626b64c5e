/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt list, verify`: prints the library's results as tables.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/tools/inspect.h"
#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/columns.h"
#include "cli/run/screen.h"
#include "cli/watch/runs.h"
#include "core/base/mem.h"
#include "core/base/text.h"

int64_t tt_ckpt_int(const json_t *json, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(json, key));
}

const char *tt_ckpt_text(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "-";
}

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

/* run: the folder that is shown too; NULL: none. */
static void add_step(const json_t *s, const char *run, struct tt_columns *table)
{
    char text[128];

    if (run)
        tt_columns_cell(table, "%s", run);
    tt_columns_cell(table, "%" PRId64, tt_ckpt_int(s, "step"));
    tt_columns_cell(table, "%s", tt_ckpt_text(s, "state"));
    tt_columns_cell(table, "%s", age_text(text, sizeof text, s, "age_s"));
    tt_columns_cell(table, "%s", tt_ckpt_bytes(text, sizeof text, s, "bytes"));
    tt_columns_cell(table, "%s", tt_ckpt_count(text, sizeof text, s, "tokens"));
    tt_columns_cell(table, "%s", tt_ckpt_count(text, sizeof text, s, "world"));
    tt_columns_cell(table, "%s", tt_ckpt_text(s, "policy"));
    tt_columns_cell(table, "%s", tt_ckpt_mesh(text, sizeof text, s));
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

    if (damage)
        (void)tt_fail(TT_EDATA, "'%s' is damaged: %s", path, tt_ckpt_text(damage, "text"));
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
