/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt list, inspect, verify`: prints the library's results as tables.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include "checkpoint/tools/inspect.h"
#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/screen.h"
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

static const char *time_text(char *buf, size_t buf_size, const json_t *json)
{
    time_t seconds = (time_t)json_number_value(json_object_get(json, "time"));
    struct tm t;

    if (!seconds || !localtime_r(&seconds, &t) || !strftime(buf, buf_size, "%Y-%m-%d %H:%M:%S", &t))
        return "-";
    return buf;
}

/* "dp_replicate 2, dp_shard 4": the dimensions that are more than one rank. */
static const char *mesh_text(char *buf, size_t buf_size, const json_t *json)
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

static void print_list(const json_t *json)
{
    static const char *const others[] = {"set_aside", "leftovers"};
    const json_t *steps = json_object_get(json, "steps");
    char tokens[32], bytes[32], mesh[128], age[32], world[32];
    int width = 12;

    for (int list = 0; list < 2; list++) {
        const json_t *names = json_object_get(json, others[list]);

        for (size_t i = 0; i < json_array_size(names); i++) {
            int n = (int)strlen(tt_ckpt_text(json_array_get(names, i), "name"));

            width = n > width ? n : width;
        }
    }
    tt_print("%s\n%-*s  %-10s %8s %12s %16s %6s  %-9s %s\n", tt_ckpt_text(json, "folder"), width, "step", "state",
             "age", "size", "tokens", "world", "policy", "mesh");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *s = json_array_get(steps, i);

        tt_print("%-*" PRId64 "  %-10s %8s %12s %16s %6s  %-9s %s\n", width, tt_ckpt_int(s, "step"),
                 tt_ckpt_text(s, "state"), age_text(age, sizeof age, s, "age_s"),
                 tt_ckpt_bytes(bytes, sizeof bytes, s, "bytes"), tt_ckpt_count(tokens, sizeof tokens, s, "tokens"),
                 tt_ckpt_count(world, sizeof world, s, "world"), tt_ckpt_text(s, "policy"),
                 mesh_text(mesh, sizeof mesh, s));
        if (json_is_false(json_object_get(s, "good")))
            tt_print("%*s  %s\n", width, "", tt_ckpt_text(s, "problem"));
    }
    for (int list = 0; list < 2; list++) {
        const json_t *names = json_object_get(json, others[list]);

        for (size_t i = 0; i < json_array_size(names); i++) {
            const json_t *l = json_array_get(names, i);

            tt_print("%-*s  %-10s %8s %12s", width, tt_ckpt_text(l, "name"), tt_ckpt_text(l, "state"),
                     age_text(age, sizeof age, l, "age_s"), tt_ckpt_bytes(bytes, sizeof bytes, l, "bytes"));
            if (json_is_string(json_object_get(l, "run_id")))
                tt_print("  saved by run %s", tt_ckpt_text(l, "run_id"));
            tt_print("\n");
        }
    }
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

static void print_stats(const json_t *stats)
{
    static const char *const keys[] = {"min", "max", "mean", "rms"};
    char number[32];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        tt_print(" %10s", number_text(number, sizeof number, stats, keys[i]));
    tt_print(" %10s", tt_ckpt_count(number, sizeof number, stats, "nonfinite"));
}

static void print_tensors(const struct tt_ckpt_inspection *inspection)
{
    bool stats = inspection->stats && inspection->manifest.n_tensors;
    char shape[128];

    tt_print("\n%-6s %-52s %-6s %-20s %6s", "group", "tensor", "dtype", "shape", "chunks");
    if (stats)
        tt_print(" %10s %10s %10s %10s %10s", "min", "max", "mean", "rms", "nonfinite");
    tt_print("\n");
    for (int i = 0; i < inspection->manifest.n_tensors; i++) {
        json_t *t = tt_ckpt_inspect_tensor(inspection, i);

        tt_print("%-6s %-52s %-6s %-20s %6" PRId64, tt_ckpt_text(t, "group"), tt_ckpt_text(t, "name"),
                 tt_ckpt_text(t, "dtype"), shape_text(shape, sizeof shape, t), tt_ckpt_int(t, "chunks"));
        if (stats)
            print_stats(json_object_get(t, "stats"));
        tt_print("\n");
        json_decref(t);
    }
}

static void print_files(const char *title, const json_t *json)
{
    const json_t *files = json_object_get(json, "files");
    char b[32];

    tt_print("  %-11s %zu, %s\n", title, json_array_size(files), tt_ckpt_bytes(b, sizeof b, json, "bytes"));
    for (size_t i = 0; i < json_array_size(files); i++)
        tt_print("    %-60s %12s\n", tt_ckpt_text(json_array_get(files, i), "path"),
                 tt_ckpt_bytes(b, sizeof b, json_array_get(files, i), "bytes"));
}

static void print_unread(const json_t *unread)
{
    for (size_t i = 0; i < json_array_size(unread); i++)
        tt_print("  not read    %s %s\n", tt_ckpt_text(json_array_get(unread, i), "key"),
                 tt_ckpt_text(json_array_get(unread, i), "why"));
}

static void print_inspect(const struct tt_ckpt_inspection *inspection)
{
    static const char *const groups[] = {"model", "optimizer"};
    const json_t *json = inspection->json, *assets = json_object_get(json, "assets");
    char a[160], b[32];

    tt_print("%s\n", tt_ckpt_text(json, "path"));
    if (strcmp(tt_ckpt_text(json, "kind"), "step") == 0) {
        tt_print("  step        %s\n", tt_ckpt_count(b, sizeof b, json, "step"));
        tt_print("  tokens      %s\n", tt_ckpt_count(b, sizeof b, json, "tokens"));
        tt_print("  saved       %s by run %s\n", time_text(a, sizeof a, json), tt_ckpt_text(json, "run_id"));
        tt_print("  mesh        %s, policy %s\n", mesh_text(a, sizeof a, json), tt_ckpt_text(json, "policy"));
    } else if (strcmp(tt_ckpt_text(json, "kind"), "dcp") == 0) {
        tt_print("  step        %s\n", tt_ckpt_count(b, sizeof b, json, "step"));
        tt_print("  tokens      %s\n", tt_ckpt_count(b, sizeof b, json, "tokens"));
        tt_print("  PyTorch's torch.distributed.checkpoint; %zu keys that titan does not use\n",
                 json_array_size(json_object_get(json_object_get(json_object_get(json, "meta"), "torch"), "other")));
        print_unread(json_object_get(json_object_get(json_object_get(json, "meta"), "torch"), "unread"));
    } else {
        tt_print("  safetensors without a manifest of titan's\n");
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
    print_tensors(inspection);
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

int tt_ckpt_verb_list(const struct tt_args *args)
{
    bool ok;

    return describe(args, make_list, print_list, &ok);
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
        print_inspect(&all[i]);
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
