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
#include "core/base/mem.h"
#include "core/base/text.h"

/* --- consolidate, convert, average --- */

/* A GGUF file has a type of its own, and is one file. */
static int read_type(const struct tt_args *args, struct tt_copy *options_out)
{
    static const char *const refused[] = {"dtype", "max_shard_size"};
    const char *type = tt_args_last(args, "type");
    bool gguf = options_out->format == TT_FORMAT_GGUF;

    if (type && !gguf)
        return tt_fail(TT_EUSAGE, "--type is of --format gguf\nhelp: other formats take --dtype");
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
    tt_free(what.leave_out.word);
    if (tt_args_has(args, "json"))
        return tt_cli_print_json(json_pack("{s:o,s:o,s:i,s:i,s:I}", "source", tt_json_string(done.source),
                                           "destination", tt_json_string(what.destination), "files", done.files,
                                           "tensors", done.tensors, "bytes", (json_int_t)done.bytes));
    if (what.n_more)
        tt_print("mean of %d checkpoints: ", 1 + what.n_more);
    tt_print("%s -> %s: %d tensors, %d file%s, %s\n", done.source, what.destination, done.tensors, done.files,
             done.files == 1 ? "" : "s", tt_text_bytes(bytes, sizeof bytes, (double)done.bytes));
    return tt_cli_finish();
out:
    tt_free(what.leave_out.word);
    return tt_cli_fail(rc);
}

static int consolidate(const struct tt_args *args)
{
    return make(args, (struct tt_copy){.source = args->word[1], .destination = args->word[2]});
}

static int convert(const struct tt_args *args)
{
    const char *format = tt_args_last(args, "format");

    if (format && strcmp(format, "dcp") != 0)
        return tt_cli_fail(tt_fail(TT_EUSAGE, "'titan ckpt convert' takes --format dcp only: else the source decides\n"
                                              "help: titan ckpt consolidate takes --format titan, hf and gguf"));
    return make(args, (struct tt_copy){.source = args->word[1], .destination = args->word[2], .convert = true});
}

/* Reads n numbers between commas: none negative, and at least one not 0. */
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
    else
        rc = tt_cli_fail(rc);
    tt_free(share);
    return rc;
}

/* --- gc --- */

static void print_gc(const json_t *json)
{
    const json_t *removed = json_object_get(json, "removed");
    bool dry = json_is_true(json_object_get(json, "dry_run"));
    char bytes[32];

    for (size_t i = 0; i < json_array_size(removed); i++) {
        const json_t *r = json_array_get(removed, i);
        bool restored = strcmp(tt_ckpt_text(r, "kind"), "restored") == 0;

        tt_print("%s%s %s, %s\n", dry ? "would be " : "", restored ? "put back:" : "removed:", tt_ckpt_text(r, "name"),
                 tt_ckpt_bytes(bytes, sizeof bytes, r, "bytes"));
    }
    tt_print("%s: %s %s; %zu good step%s kept", tt_ckpt_text(json, "folder"),
             tt_ckpt_bytes(bytes, sizeof bytes, json, "bytes"), dry ? "would be freed" : "freed",
             json_array_size(json_object_get(json, "kept")),
             json_array_size(json_object_get(json, "kept")) == 1 ? "" : "s");
    if (json_array_size(json_object_get(json, "damaged")))
        tt_print(", %zu damaged left alone", json_array_size(json_object_get(json, "damaged")));
    if (json_array_size(json_object_get(json, "pytorch")))
        tt_print(", %zu of PyTorch left alone", json_array_size(json_object_get(json, "pytorch")));
    tt_print("\n");
}

static int gc(const struct tt_args *args)
{
    bool is_json = tt_args_has(args, "json");
    json_t *all = json_array();
    int64_t keep = -1;
    int rc = 0;

    TT_TRY(tt_cli_count("ckpt gc", args, "keep", 0, 1 << 20, &keep));
    for (int i = 1; i < args->n_words; i++) {
        json_t *json = NULL;

        TT_TRY(tt_ckpt_gc(args->word[i], keep, tt_args_has(args, "abandoned"), tt_args_has(args, "dry_run"), &json));
        (void)json_array_append_new(all, json);
        if (!is_json)
            print_gc(json);
    }
    rc = is_json ? tt_cli_print_json(args->n_words == 2 ? json_incref(json_array_get(all, 0)) : json_incref(all))
                 : tt_cli_finish();
out:
    json_decref(all);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

/* "20" or "step-20". */
static int read_step(const char *word, int64_t *ret_step)
{
    char *name = strncmp(word, "step-", 5) == 0 ? tt_strdup(word) : tt_format("step-%s", word);

    *ret_step = tt_step_number(name);
    tt_free(name);
    return *ret_step >= 0
               ? 0
               : tt_fail(TT_EUSAGE, "'%s' is not a step\nhelp: titan ckpt rollback RUN STEP, such as 'outputs 20'",
                         word);
}

static void print_rollback(const json_t *json)
{
    const json_t *aside = json_object_get(json, "set_aside");
    bool dry = json_is_true(json_object_get(json, "dry_run"));

    for (size_t i = 0; i < json_array_size(aside); i++)
        tt_print("%sset aside: step-%" PRId64 " as %s\n", dry ? "would be " : "",
                 tt_ckpt_int(json_array_get(aside, i), "step"), tt_ckpt_text(json_array_get(aside, i), "name"));
    tt_print("%s: the next start %s from step-%" PRId64 "\n", tt_ckpt_text(json, "folder"),
             dry ? "would resume" : "resumes", tt_ckpt_int(json, "step"));
}

static int rollback(const struct tt_args *args)
{
    json_t *json = NULL;
    int64_t step = -1;
    int rc = 0;

    TT_TRY(read_step(args->word[2], &step));
    TT_TRY(tt_ckpt_rollback(args->word[1], step, tt_args_has(args, "dry_run"), &json));
    if (tt_args_has(args, "json"))
        return tt_cli_print_json(json);
    print_rollback(json);
    rc = tt_cli_finish();
out:
    json_decref(json);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

/* --- titan ckpt --- */

const struct tt_option tt_ckpt_options[] = {
    {"json", NULL, NULL, "print JSON"},
    {"stats", NULL, NULL, "inspect: read every tensor; min, max, mean, rms, values that are not finite"},
    {"moments", NULL, NULL, "inspect: the optimizer's tensors too (moments, averages of the weights)"},
    {"all", NULL, NULL, "inspect: a line for every tensor; else those of alike layers and experts share one"},
    {"deep", NULL, NULL, "verify: digests of whole tensors and their values too"},
    {"quick", NULL, NULL, "verify: manifest, sizes, headers and coverage only"},
    {"atol", NULL, "X", "diff: differences up to X do not count"},
    {"out", NULL, "DST", "average: the folder to write"},
    {"weights", NULL, "W,W,...", "average: the share of each checkpoint in the mean (default: equal)"},
    {"format", NULL, "titan|hf|dcp|gguf",
     "consolidate, average: whose names and layout the tensors get; convert: only dcp, PyTorch's"},
    {"type", NULL, "TYPE", "the same, with --format gguf: f32, f16, bf16, q8_0 or q4_0 (default: as stored)"},
    {"ema", NULL, NULL,
     "consolidate, convert, average: the averages of the weights (ema.decay) instead of the weights"},
    {"adapter", NULL, NULL, "consolidate: the low-rank adapters alone, as PEFT writes them"},
    {"dtype", NULL, "TYPE", "consolidate, convert, average: float32, bfloat16 or float16 (default: as stored)"},
    {"max_shard_size", NULL, "SIZE", "the same: most bytes of a file, such as 2GiB (default: 5 GB)"},
    {"assets", NULL, "DIR",
     "consolidate, convert: config.json and tokenizer of a checkpoint that has none (PyTorch's)"},
    {"model", NULL, "NAME", "the same: its model, such as llama3, if there is no config.json"},
    {"flavor", NULL, "FLAVOR", "the same: the flavor of that model, such as 8B"},
    {"leave_out", NULL, "REGEX",
     "convert: tensors of a Hugging Face folder that may stay unused, by a regular expression that is found in their "
     "names; may repeat"},
    {"force", NULL, NULL, "consolidate, convert, average: replace an earlier output"},
    {"keep", NULL, "K", "gc: good steps to keep (default: the run's checkpoint.keep_latest_k; 0: all)"},
    {"abandoned", NULL, NULL, "gc: remove steps that were set aside too (abandoned, damaged)"},
    {"dry_run", NULL, NULL, "gc, rollback: only say what would be removed or set aside"},
    TT_OPTION_HELP,
    {NULL, NULL, NULL, NULL},
};

struct verb {
    const char *name;
    tt_ckpt_verb_fn run;
    int low, high; /* the number of paths */
    const char *arguments;
    const char *takes; /* its options, apart from json and help, between bars */
    const char *doc;
};

enum { MANY = 1 << 20 };

static const struct verb verbs[] = {
    {"list", tt_ckpt_verb_list, 1, MANY, "PATH...", "|", "the steps of a run: state, age, size, tokens, ranks, policy"},
    {"inspect", tt_ckpt_verb_inspect, 1, MANY, "PATH...", "|stats|moments|all|",
     "one checkpoint, or any safetensors folder: files, tensors, shapes"},
    {"verify", tt_ckpt_verb_verify, 1, MANY, "PATH...", "|deep|quick|",
     "read every byte and compare checksums; exit code 3 when something is wrong"},
    {"diff", tt_ckpt_verb_diff, 2, 2, "A B", "|atol|", "which tensors differ, digests first; exit code 1 when some do"},
    {"consolidate", consolidate, 2, 2, "SRC DST",
     "|format|type|ema|adapter|dtype|max_shard_size|assets|model|flavor|force|",
     "the model as one plain folder: titan's, Hugging Face's or PyTorch's; or as one file for llama.cpp"},
    {"convert", convert, 2, 2, "SRC DST", "|format|ema|dtype|max_shard_size|assets|model|flavor|leave_out|force|",
     "a folder of Hugging Face or PyTorch to a titan checkpoint, or the reverse"},
    {"average", average, 2, MANY, "A B...", "|out|weights|format|type|ema|dtype|max_shard_size|force|",
     "the mean of the weights of several checkpoints, as one plain folder"},
    {"gc", gc, 1, MANY, "PATH...", "|keep|abandoned|dry_run|",
     "remove what killed jobs left and good steps beyond the newest K"},
    {"rollback", rollback, 2, 2, "RUN STEP", "|dry_run|",
     "set aside the steps after STEP, so that the next start resumes from it"},
};

enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

static void help_verb(const struct verb *verb, struct tt_text *out)
{
    enum { LEFT_COLUMNS = 25 };
    char *left = tt_format("%-12s %s", verb->name, verb->arguments);

    tt_args_help_row(out, LEFT_COLUMNS, left, verb->doc);
    tt_free(left);
}

static int print_help(void)
{
    struct tt_text text = {0};

    tt_cli_add_usage(&text, "usage: titan ckpt list|inspect|verify|gc PATH... [options]\n"
                            "       titan ckpt diff A B [--atol X]\n"
                            "       titan ckpt consolidate|convert SRC DST [options]\n"
                            "       titan ckpt average A B... --out DST [--weights W,W,...] [options]\n"
                            "       titan ckpt rollback RUN STEP [--dry-run]\n\n"
                            "  titan ckpt list outputs\n"
                            "  titan ckpt consolidate outputs/checkpoint/step-60 model --format hf\n"
                            "  titan ckpt convert Llama-3.2-1B base\n\n");
    for (int i = 0; i < N_VERBS; i++)
        help_verb(&verbs[i], &text);
    tt_text_add(&text, "\n");
    tt_args_help(tt_ckpt_options, &text);
    tt_cli_add_usage(&text,
                     "\nPATH: a run folder, a checkpoint folder or a step; of the first two the newest good step.\n"
                     "More in titan-ckpt(1).\n");
    tt_print("%s", text.text);
    tt_text_release(&text);
    return tt_cli_finish();
}

static int fail_verb(const char *word)
{
    static const struct tt_cli_elsewhere elsewhere[] = {{"ls|steps|show|status", "list"},
                                                        {"info|print|stat|summary|describe|tensors", "inspect"},
                                                        {"check|validate|fsck|test", "verify"},
                                                        {"compare|cmp", "diff"},
                                                        {"export|merge|hf|to-hf|to_hf|unshard|save", "consolidate"},
                                                        {"import|from-hf|from_hf|reshard", "convert"},
                                                        {"mean|ema|soup", "average"},
                                                        {"rm|remove|delete|prune|clean|cleanup", "gc"},
                                                        {"restore|reset|revert|undo|back", "rollback"}};
    const char *names[N_VERBS];

    for (int i = 0; i < N_VERBS; i++)
        names[i] = verbs[i].name;
    return tt_cli_fail_verb("ckpt", word, names, N_VERBS, elsewhere, sizeof elsewhere / sizeof *elsewhere);
}

static int check_use(const struct verb *verb, const struct tt_args *args)
{
    int n = args->n_words - 1;

    for (int i = 0; i < args->n_options; i++) {
        const char *name = args->option[i].option->name;
        char word[64];

        (void)snprintf(word, sizeof word, "|%s|", name);
        if (strcmp(name, "json") != 0 && !strstr(verb->takes, word))
            return tt_fail(TT_EUSAGE,
                           "'titan ckpt %s' takes no --%s\nhelp: titan ckpt --help lists the options of each",
                           verb->name, name);
    }
    if (n < verb->low || n > verb->high)
        return tt_fail(TT_EUSAGE, "'titan ckpt %s' needs %s\nhelp: titan ckpt %s %s", verb->name,
                       strcmp(verb->name, "rollback") == 0 ? "a run and a step"
                       : verb->low == 2                    ? "two paths"
                                                           : "a path",
                       verb->name, verb->arguments);
    return 0;
}

static int run(const struct tt_args *args)
{
    const char *word = args->n_words ? args->word[0] : NULL;
    int rc = 0;

    for (int i = 0; word && i < N_VERBS; i++) {
        if (strcmp(word, verbs[i].name) != 0)
            continue;
        TT_TRY(check_use(&verbs[i], args));
        return verbs[i].run(args);
    }
    rc = fail_verb(word);
out:
    return tt_cli_fail(rc);
}

int tt_command_ckpt(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = tt_args_parse(argc, argv, tt_ckpt_options, &args);

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
