/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt`: its subcommands and their options. The library returns results as JSON; without --json the files of the
 * subcommands print them as text.
 */
#include "cli/commands/ckpt/ckpt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/text.h"

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
    {"consolidate", tt_ckpt_verb_consolidate, 2, 2, "SRC DST",
     "|format|type|ema|adapter|dtype|max_shard_size|assets|model|flavor|force|",
     "the model as one plain folder: titan's, Hugging Face's or PyTorch's; or as one file for llama.cpp"},
    {"convert", tt_ckpt_verb_convert, 2, 2, "SRC DST",
     "|format|ema|dtype|max_shard_size|assets|model|flavor|leave_out|force|",
     "a folder of Hugging Face or PyTorch to a titan checkpoint, or the reverse"},
    {"average", tt_ckpt_verb_average, 2, MANY, "A B...", "|out|weights|format|type|ema|dtype|max_shard_size|force|",
     "the mean of the weights of several checkpoints, as one plain folder"},
    {"gc", tt_ckpt_verb_gc, 1, MANY, "PATH...", "|keep|abandoned|dry_run|",
     "remove what killed jobs left and good steps beyond the newest K"},
    {"rollback", tt_ckpt_verb_rollback, 2, 2, "RUN STEP", "|dry_run|",
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
    /* What people expect under other names. */
    static const struct {
        const char *words, *verb;
    } elsewhere[] = {{"ls|steps|show|status", "list"},
                     {"info|print|stat|summary|describe|tensors", "inspect"},
                     {"check|validate|fsck|test", "verify"},
                     {"compare|cmp", "diff"},
                     {"export|merge|hf|to-hf|to_hf|unshard|save", "consolidate"},
                     {"import|from-hf|from_hf|reshard", "convert"},
                     {"mean|ema|soup", "average"},
                     {"rm|remove|delete|prune|clean|cleanup", "gc"},
                     {"restore|reset|revert|undo|back", "rollback"}};
    const char *names[N_VERBS], *near;
    struct tt_text all = {0};
    int rc;

    for (int i = 0; i < N_VERBS; i++) {
        names[i] = verbs[i].name;
        tt_text_add(&all, "%s%s", i ? ", " : "", verbs[i].name);
    }
    near = word ? tt_text_nearest(word, names, N_VERBS) : NULL;
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere && word && !near; i++)
        if (tt_text_is_listed(word, elsewhere[i].words))
            near = elsewhere[i].verb;
    if (near)
        rc = tt_fail(TT_EUSAGE, "unknown command 'ckpt %s'\nhelp: did you mean 'ckpt %s'?", word, near);
    else
        rc = tt_fail(TT_EUSAGE, "%s%s%s\nhelp: use one of ckpt %s",
                     word ? "unknown command 'ckpt " : "'titan ckpt' needs to know what to do", word ? word : "",
                     word ? "'" : "", all.text);
    tt_text_release(&all);
    return rc;
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
