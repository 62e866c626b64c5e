/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt`: lists, describes, verifies and consolidates checkpoints. The library says everything as JSON; without
 * --json it is laid out here for people.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "checkpoint/consolidate.h"
#include "checkpoint/inspect.h"
#include "cli/cli.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/config/args.h"

static const struct tt_option options[] = {
    {"json", NULL, NULL, "print JSON"},
    {"force", NULL, NULL, "consolidate: replace an earlier output"},
    {"format", NULL, "titan", "consolidate: names of the tensors"},
    {"dtype", NULL, "TYPE", "consolidate: float32, bfloat16 or float16 (default: as stored)"},
    {"max_shard_size", NULL, "SIZE", "consolidate: bytes per file at most, such as 2GiB (default: 5 GB)"},
    TT_OPTION_HELP,
    {NULL, NULL, NULL, NULL},
};

static int64_t get_int(const json_t *json, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(json, key));
}

static const char *get_text(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "-";
}

/* An integer with separators, "-" for null; buf of at least 28 bytes. */
static const char *count_text(char *buf, size_t buf_size, const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    return json_is_integer(value) ? tt_text_count(buf, buf_size, (int64_t)json_integer_value(value)) : "-";
}

static const char *bytes_text(char *buf, size_t buf_size, const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    return json_is_integer(value) ? tt_text_bytes(buf, buf_size, (double)json_integer_value(value)) : "-";
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
    const json_t *steps = json_object_get(json, "steps"), *leftovers = json_object_get(json, "leftovers");
    char tokens[32], bytes[32], mesh[128], when[32];

    (void)printf("%s\n%10s %16s %6s %12s  %-19s  %-24s %s\n", get_text(json, "folder"), "step", "tokens", "files",
                 "size", "saved", "mesh", "state");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *s = json_array_get(steps, i);
        bool good = json_is_true(json_object_get(s, "good"));

        (void)printf("%10" PRId64 " %16s %6" PRId64 " %12s  %-19s  %-24s %s%s\n", get_int(s, "step"),
                     count_text(tokens, sizeof tokens, s, "tokens"), get_int(s, "files"),
                     bytes_text(bytes, sizeof bytes, s, "bytes"), time_text(when, sizeof when, s),
                     mesh_text(mesh, sizeof mesh, s), good ? "good" : "DAMAGED: ", good ? "" : get_text(s, "problem"));
    }
    for (size_t i = 0; i < json_array_size(leftovers); i++)
        (void)printf("unfinished: %s\n", json_string_value(json_array_get(leftovers, i)));
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

static void print_tensors(const json_t *json)
{
    const json_t *tensors = json_object_get(json, "tensors");
    char shape[128];

    (void)printf("\n%-6s %-52s %-6s %-20s %s\n", "group", "tensor", "dtype", "shape", "chunks");
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *t = json_array_get(tensors, i);

        (void)printf("%-6s %-52s %-6s %-20s %" PRId64 "\n", get_text(t, "group"), get_text(t, "name"),
                     get_text(t, "dtype"), shape_text(shape, sizeof shape, t), get_int(t, "chunks"));
    }
}

static void print_inspect(const json_t *json)
{
    static const char *const groups[] = {"model", "optimizer"};
    const json_t *files = json_object_get(json, "files"), *assets = json_object_get(json, "assets");
    char a[160], b[32];

    (void)printf("%s\n", get_text(json, "path"));
    if (strcmp(get_text(json, "kind"), "step") == 0) {
        (void)printf("  step        %s\n", count_text(b, sizeof b, json, "step"));
        (void)printf("  tokens      %s\n", count_text(b, sizeof b, json, "tokens"));
        (void)printf("  saved       %s by run %s\n", time_text(a, sizeof a, json), get_text(json, "run_id"));
        (void)printf("  mesh        %s, policy %s\n", mesh_text(a, sizeof a, json), get_text(json, "policy"));
    } else {
        (void)printf("  safetensors without a manifest of titan's\n");
    }
    (void)printf("  parameters  %s\n", count_text(b, sizeof b, json, "parameters"));
    for (int i = 0; i < 2; i++) {
        const json_t *group = json_object_get(json, groups[i]);

        if (get_int(group, "tensors"))
            (void)printf("  %-11s %" PRId64 " tensors, %s\n", groups[i], get_int(group, "tensors"),
                         bytes_text(b, sizeof b, group, "bytes"));
    }
    (void)printf("  files       %zu, %s\n", json_array_size(files), bytes_text(b, sizeof b, json, "bytes"));
    for (size_t i = 0; i < json_array_size(files); i++)
        (void)printf("    %-60s %12s\n", get_text(json_array_get(files, i), "path"),
                     bytes_text(b, sizeof b, json_array_get(files, i), "bytes"));
    for (size_t i = 0; i < json_array_size(assets); i++)
        (void)printf("%s%s%s", i ? ", " : "  assets      ", json_string_value(json_array_get(assets, i)),
                     i + 1 == json_array_size(assets) ? "\n" : "");
    print_tensors(json);
}

static void print_verify(const json_t *json)
{
    const json_t *problems = json_object_get(json, "problems");
    char b[32];

    for (size_t i = 0; i < json_array_size(problems); i++)
        (void)printf("BAD %s: %s\n", get_text(json_array_get(problems, i), "kind"),
                     get_text(json_array_get(problems, i), "text"));
    if (json_is_true(json_object_get(json, "ok")))
        (void)printf("OK %s: %" PRId64 " tensors, %" PRId64 " files, %s, coverage exact, %" PRId64
                     " checksums match (%.1f s)\n",
                     get_text(json, "path"), get_int(json, "tensors"), get_int(json, "files"),
                     bytes_text(b, sizeof b, json, "bytes"), get_int(json, "checksums"),
                     json_real_value(json_object_get(json, "seconds")));
    else
        (void)printf("BAD %s: %zu problem%s\n", get_text(json, "path"), json_array_size(problems),
                     json_array_size(problems) == 1 ? "" : "s");
}

/* Says something about every PATH; with --json an object for one path, a list for more. */
static int describe(const struct tt_args *args, int (*make)(const char *path, json_t **ret_json),
                    void (*print)(const json_t *json), bool *ret_ok)
{
    json_t *all = json_array();
    bool is_json = tt_args_has(args, "json");
    int rc = 0;

    *ret_ok = true;
    for (int i = 1; i < args->n_words; i++) {
        json_t *json = NULL;

        TT_TRY(make(args->word[i], &json));
        (void)json_array_append_new(all, json);
        if (*ret_ok && json_is_false(json_object_get(json, "ok"))) {
            *ret_ok = false; /* the first problem is what the command fails with */
            (void)tt_fail(TT_EDATA, "'%s' is damaged: %s", args->word[i],
                          get_text(json_array_get(json_object_get(json, "problems"), 0), "text"));
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

static int list(const struct tt_args *args)
{
    bool ok;

    return describe(args, tt_ckpt_list, print_list, &ok);
}

static int inspect(const struct tt_args *args)
{
    bool ok;

    return describe(args, tt_ckpt_inspect, print_inspect, &ok);
}

static int verify(const struct tt_args *args)
{
    bool ok;
    int rc = describe(args, tt_ckpt_verify, print_verify, &ok);

    return rc == 0 && !ok ? tt_cli_fail(TT_EDATA) : rc;
}

static int read_options(const struct tt_args *args, struct tt_consolidate *options_out)
{
    static const struct {
        const char *name;
        enum tt_dtype dtype;
    } dtypes[] = {{"float32", TT_F32}, {"bfloat16", TT_BF16}, {"float16", TT_F16}};
    const char *format = tt_args_last(args, "format"), *dtype = tt_args_last(args, "dtype");
    const char *size = tt_args_last(args, "max_shard_size");

    if (format && strcmp(format, "hf") == 0)
        return tt_fail(TT_EUSAGE, "--format hf is not built yet\nhelp: --format titan writes titan's own names");
    if (format && strcmp(format, "titan") != 0)
        return tt_fail(TT_EUSAGE, "no format '%s'\nhelp: --format takes titan", format);
    for (size_t i = 0; dtype && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, dtype) != 0)
            continue;
        options_out->has_dtype = true;
        options_out->dtype = dtypes[i].dtype;
    }
    if (dtype && !options_out->has_dtype)
        return tt_fail(TT_EUSAGE, "no dtype '%s'\nhelp: --dtype takes float32, bfloat16 or float16", dtype);
    if (size && (!tt_text_to_bytes(size, &options_out->max_shard_bytes) || options_out->max_shard_bytes < 1))
        return tt_fail(TT_EUSAGE, "--max-shard-size '%s' is not a size\nhelp: such as 500MiB or 5GiB", size);
    options_out->force = tt_args_has(args, "force");
    return 0;
}

static int consolidate(const struct tt_args *args)
{
    struct tt_consolidate what = {0};
    struct tt_consolidated done;
    char bytes[32];
    int rc = 0;

    if (args->n_words != 3)
        return tt_cli_fail(tt_fail(TT_EUSAGE,
                                   "consolidate takes a source and a destination, %d given\n"
                                   "help: titan ckpt consolidate outputs model_folder",
                                   args->n_words - 1));
    what.source = args->word[1];
    what.destination = args->word[2];
    TT_TRY(read_options(args, &what));
    TT_TRY(tt_ckpt_consolidate(&what, &done));
    if (tt_args_has(args, "json"))
        return tt_cli_print_json(json_pack("{s:s,s:s,s:i,s:i,s:I}", "source", done.source, "destination",
                                           what.destination, "files", done.files, "tensors", done.tensors, "bytes",
                                           (json_int_t)done.bytes));
    (void)printf("%s -> %s: %d tensors, %d file%s, %s\n", done.source, what.destination, done.tensors, done.files,
                 done.files == 1 ? "" : "s", tt_text_bytes(bytes, sizeof bytes, (double)done.bytes));
    return tt_cli_finish();
out:
    return tt_cli_fail(rc);
}

static const struct {
    const char *name;
    int (*run)(const struct tt_args *args);
    const char *arguments, *doc;
} verbs[] = {
    {"list", list, "PATH...", "the steps of a run: tokens, size, mesh, whether they are good"},
    {"inspect", inspect, "PATH...", "one checkpoint, or any safetensors folder: files, tensors, shapes"},
    {"verify", verify, "PATH...", "read every byte and compare checksums; exit code 3 when something is wrong"},
    {"consolidate", consolidate, "SRC DST", "the model as one plain safetensors folder"},
};

enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

static int print_help(void)
{
    struct tt_text text = {0};

    tt_text_add(&text, "usage: titan ckpt list|inspect|verify PATH... [--json]\n"
                       "       titan ckpt consolidate SRC DST [--dtype TYPE] [--max-shard-size SIZE] [--force]\n\n"
                       "  titan ckpt list outputs\n"
                       "  titan ckpt consolidate outputs/checkpoint/step-60 model\n\n");
    for (int i = 0; i < N_VERBS; i++)
        tt_text_add(&text, "  %-12s %-8s %s\n", verbs[i].name, verbs[i].arguments, verbs[i].doc);
    tt_text_add(&text, "\n");
    tt_args_help(options, &text);
    tt_text_add(&text, "\nPATH: a run folder, a checkpoint folder or a step; of the first two the newest good step.\n"
                       "More in titan-ckpt(1).\n");
    (void)fwrite(text.text, 1, text.size, stdout);
    tt_text_release(&text);
    return tt_cli_finish();
}

static int fail_verb(const char *word)
{
    const char *names[N_VERBS], *near;

    for (int i = 0; i < N_VERBS; i++)
        names[i] = verbs[i].name;
    near = word ? tt_text_nearest(word, names, N_VERBS) : NULL;
    if (near)
        return tt_cli_fail(tt_fail(TT_EUSAGE, "unknown command 'ckpt %s'\nhelp: did you mean 'ckpt %s'?", word, near));
    return tt_cli_fail(tt_fail(TT_EUSAGE, "%s%s%s\nhelp: use one of ckpt list, inspect, verify, consolidate",
                               word ? "unknown command 'ckpt " : "'titan ckpt' needs to know what to do",
                               word ? word : "", word ? "'" : ""));
}

static int run(const struct tt_args *args)
{
    for (int i = 0; i < N_VERBS; i++) {
        if (args->n_words == 0 || strcmp(args->word[0], verbs[i].name) != 0)
            continue;
        if (args->n_words == 1)
            return tt_cli_fail(tt_fail(TT_EUSAGE, "'titan ckpt %s' needs a path\nhelp: titan ckpt %s %s", verbs[i].name,
                                       verbs[i].name, verbs[i].arguments));
        return verbs[i].run(args);
    }
    return fail_verb(args->n_words ? args->word[0] : NULL);
}

int tt_command_ckpt(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = tt_args_parse(argc, argv, options, &args);

    if (rc < 0)
        return tt_cli_fail(rc);
    if (tt_args_has(args, "help")) {
        rc = print_help();
    } else if (args->n_overrides) {
        rc = tt_cli_fail(tt_fail(TT_EUSAGE, "'%s' is not an option of titan ckpt\nhelp: titan ckpt --help lists them",
                                 args->override[0]));
    } else {
        tt_cli_install_log();
        rc = run(args);
    }
    tt_args_free(args);
    return rc;
}
