/* SPDX-License-Identifier: MIT
 *
 * titan new: reads the text, measures the machine, prints the plan, and writes the folder.
 */
#include "cli/new/new.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/measure/bench.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/data/dataset.h"
#include "core/data/source.h"
#include "core/os/file.h"
#include "core/os/machine.h"
#include "core/os/team.h"
#include "trainer/job/job.h"

static const char *const uses[TT_NEW_USES] = {[TT_NEW_TEXT] = "text", [TT_NEW_CODE] = "code"};

static const struct tt_option options[] = {
    {"data", TT_KEY_NAME(training.dataset_path), "PATH",
     "the text: a file, a folder or a pattern; text, JSON lines, Parquet or Arrow"},
    {"hours", NULL, "H", "how long the run may take (default: 8, unless a size or tokens are given)"},
    {"tokens", NULL, "N", "how many tokens the run reads, instead of --hours: 20000000, 20M"},
    {"for", NULL, "USE", "text (default) or code: what the expected loss is compared with"},
    {"depth", NULL, "L", "layers of the model, from which its widths follow (default: the best for the hours)"},
    {"params", NULL, "N", "parameters of the model, such as 30M, instead of --depth: the nearest depth"},
    {"ranks", NULL, "N", "processes that train together (default: 1)"},
    {"text_field", TT_KEY_NAME(training.text_field), "FIELD",
     "the field of JSON lines or column that holds the text (default: text)"},
    {"machine", TT_KEY_NAME(parallelism.machine_file), "FILE", "what `titan bench` saved, instead of measuring now"},
    {"dry_run", NULL, NULL, "print the plan and write nothing"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan new DIR --data PATH [--hours H | --tokens N] [--for text|code] [--params N | --depth L]\n"
    "                 [--ranks N] [--dry-run]\n\n"
    "Writes a configuration and a tokenizer for a text, this machine and a number of hours into DIR, with\n"
    "a reason at every choice, and prints the plan and the command that starts the run.\n\n";

/* --- the command line --- */

/* A count such as 20000000, 2e7, 20k, 20M or 20B. */
static int read_count(const struct tt_args *args, const char *option, double *value)
{
    static const char units[] = "kMB";
    const char *text = tt_args_last(args, option), *unit;
    char *end = NULL;
    double read;

    if (!text)
        return 0;
    read = strtod(text, &end);
    unit = end != text && *end ? strchr(units, *end == 'K' ? 'k' : *end == 'm' ? 'M' : *end == 'b' ? 'B' : *end) : NULL;
    if (unit && !end[1])
        read *= pow(1e3, (double)(unit - units + 1));
    if (end == text || (*end && (!unit || end[1])) || !(read >= 1.0) || !(read <= 1e15))
        return tt_fail(TT_EUSAGE, "new: --%s '%s' is not a number such as 30M", option, text);
    *value = read;
    return 0;
}

/* The depth whose model is nearest to a number of parameters. */
static int64_t depth_of(double parameters)
{
    struct tt_recipe r = {0};
    double nearest = (double)INFINITY;
    int64_t best = 0;

    for (int64_t depth = TT_NEW_LEAST_DEPTH; depth <= TT_NEW_MOST_DEPTH; depth++) {
        tt_rule_shape(depth, &r);
        if (fabs(log((double)r.parameters / parameters)) < nearest) {
            nearest = fabs(log((double)r.parameters / parameters));
            best = depth;
        }
    }
    return best;
}

/* A path from the root, so that the configuration works in any folder; the caller frees it. */
static char *absolute(const char *path)
{
    char here[4096];

    return *path == '/' || !getcwd(here, sizeof here) ? tt_strdup(path) : tt_format("%s/%s", here, path);
}

static int read_options(const struct tt_args *args, struct tt_new_request *q)
{
    const char *use = tt_args_last(args, "for"), *data = tt_args_last(args, "data");
    double parameters = 0.0;
    int64_t ranks = 1;
    int rc = 0;

    if (args->n_words != 1 || !data)
        return tt_fail(TT_EUSAGE, "new needs %s\nhelp: titan new DIR --data PATH --hours 8",
                       args->n_words == 0  ? "the name of a new folder"
                       : args->n_words > 1 ? "one folder, the only word that is not an option"
                                           : "--data");
    for (int i = 0; use && strcmp(use, uses[q->use]) != 0; i++) {
        if (i == TT_NEW_USES)
            return tt_cli_fail_choice("for", use, uses, TT_NEW_USES);
        q->use = (enum tt_new_use)i;
    }
    TT_TRY(tt_cli_real("new", args, "hours", 0.001, 87600.0, "a number of hours, above 0 and at most ten years",
                       &q->hours));
    TT_TRY(read_count(args, "tokens", &q->tokens));
    TT_TRY(read_count(args, "params", &parameters));
    TT_TRY(tt_cli_count("new", args, "depth", TT_NEW_LEAST_DEPTH, TT_NEW_MOST_DEPTH, &q->depth));
    TT_TRY(tt_cli_count("new", args, "ranks", 1, tt_cores()->cores, &ranks));
    if (q->hours > 0.0 && q->tokens > 0.0)
        return tt_fail(TT_EUSAGE, "new: --hours and --tokens both say how long the run is\nhelp: leave one out");
    if (q->depth && parameters > 0.0)
        return tt_fail(TT_EUSAGE, "new: --depth and --params both say how large the model is\nhelp: leave one out");
    if (parameters > 0.0)
        q->depth = depth_of(parameters);
    if (q->hours == 0.0 && q->tokens == 0.0 && !q->depth)
        q->hours = 8.0;
    q->ranks = (int)ranks;
    q->threads = tt_team_fair_cores(q->ranks);
out:
    return rc;
}

/* TT_EUSAGE if something is in the folder. */
static int check_folder(const char *folder)
{
    struct tt_path_info info;
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_path_look(folder, &info));
    if (info.kind == TT_FILE_NONE && !info.is_link)
        return 0;
    if (info.kind != TT_FILE_FOLDER)
        return tt_fail(TT_EUSAGE, "'%s' exists and is not a folder\nhelp: another name", folder);
    TT_TRY(tt_folder_list(folder, &names, &n));
    if (n)
        rc = tt_fail(
            TT_EUSAGE,
            "'%s' exists and is not empty: it has '%s'\nhelp: choose another name; titan new overwrites nothing",
            folder, names[0]);
out:
    tt_names_free(names, n);
    return rc;
}

/* --- the text and the machine --- */

static int take_document(void *arg, const char *text, size_t size)
{
    struct tt_new_text *t = arg;

    t->documents++;
    t->bytes += (int64_t)size;
    /* a part of a large text tells which words are frequent */
    return t->bytes <= TT_NEW_WORDS_BYTES ? tt_word_counts_add(&t->words, text, size) : 0;
}

static int read_text(const struct tt_args *args, struct tt_new_text *t)
{
    const char *path = tt_args_last(args, "data");
    struct tt_dataset_spec spec = {.path = path, .text_field = tt_args_last(args, "text_field")};
    int rc = 0;

    spec.name = !tt_source_is_there(path) && strcmp(path, "kjv") == 0 ? "kjv" : NULL;
    if (!spec.name)
        TT_TRY(tt_source_guess(path, &spec.name));
    TT_TRY(tt_word_counts_init(&t->words, "llama3", TT_WORDS_MOST));
    TT_TRY(tt_dataset_each(&spec, "reading the text", take_document, t));
    t->dataset = spec.name;
    t->field = spec.text_field;
    t->path = strcmp(spec.name, "kjv") == 0 ? NULL : absolute(path);
out:
    return rc;
}

/* Reads the machine file, or measures products and the ops of small models for a few seconds. *ret_file: the
 * measurements, to be kept with the configuration; json_decref. */
static int measure(const struct tt_args *args, struct tt_new_request *q, json_t **ret_file)
{
    const struct tt_args none = {0};
    struct tt_bench bench = {.args = &none, .seconds = 4.0, .fewest = 1};
    const char *file = tt_args_last(args, "machine");
    struct tt_comm *self = NULL;
    int rc = 0;

    if (file) {
        rc = tt_machine_load(file, &q->machine);
    } else {
        bench.wanted[TT_BENCH_SGEMM] = bench.wanted[TT_BENCH_MEMORY] = bench.wanted[TT_BENCH_OPS] = true;
        self = tt_comm_self_new();
        TT_TRY(tt_bench_run(&bench, self));
        q->machine = bench.machine;
        *ret_file = tt_bench_machine_json(&bench);
        q->others = bench.others;
        bench.others = NULL;
    }
    /* below this ratio bfloat16 costs precision and wins little */
    q->dtype = q->machine.bgemm_flops > 1.3 * q->machine.sgemm_flops ? TT_BF16 : TT_F32;
out:
    tt_comm_free(self);
    tt_bench_release(&bench);
    return rc;
}

/* --- the plan on the screen --- */

static void add_start(const struct tt_args *args, const struct tt_new_request *q, struct tt_text *out)
{
    char *config = tt_format("%s/config.yaml", args->word[0]);

    if (q->ranks > 1)
        tt_text_add(out, "titan launch -n %d -- train --config ", q->ranks);
    else
        tt_text_add(out, "titan train --config ");
    tt_text_add_word(out, config);
    tt_free(config);
}

static void add_notes(const struct tt_new_request *q, const struct tt_recipe *r, struct tt_text *out)
{
    char left[32];

    if (q->others)
        tt_text_add(out, "note     %s, so the times are too long; repeat this when the machine is idle\n", q->others);
    if (q->hours > 0.0 && r->is_repeated_out)
        tt_text_add(out,
                    "note     %s would be left: the text is too small for --hours %g, since more than %g passes "
                    "teach little; more text is better than more time\n",
                    tt_text_duration(left, sizeof left, 3600.0 * q->hours - r->run_sec), q->hours, tt_rule_epochs);
    else if (r->is_repeated_out)
        tt_text_add(out,
                    "note     the text is too small for this model, which wants %.0fM tokens: a smaller one "
                    "learns as much\n",
                    tt_rule_tokens(r) / 1e6);
    if (r->epochs > tt_rule_epochs)
        tt_text_add(out, "note     %.1f passes through the text are more than %g, after which a pass teaches little\n",
                    r->epochs, tt_rule_epochs);
    if (tt_rule_tokens(r) > 4.0 * (double)(r->steps * r->batch * r->seq_len) && q->depth > TT_NEW_LEAST_DEPTH)
        tt_text_add(out, "note     the model is too large for the tokens: a smaller one learns more in the time\n");
    if (r->split == 0.0)
        tt_text_add(out, "note     no validation: the text has too few documents to leave some out\n");
    if (r->is_beyond)
        tt_text_add(out, "note     larger than the runs that the loss was fitted to: the range is a guess there\n");
}

static void print_plan(const struct tt_args *args, const struct tt_new_request *q, const struct tt_recipe *r,
                       bool is_dry)
{
    char a[32], b[32];
    struct tt_text t = {0};
    double per_bit = log(2.0);
    int columns = tt_screen_columns(STDOUT_FILENO);

    tt_text_add(&t, "text     %s documents, %s bytes of %s\n", tt_text_count(a, sizeof a, q->text.documents),
                tt_text_count(b, sizeof b, q->text.bytes), q->text.dataset);
    tt_text_add(&t, "machine  %d thread%s of %s, %.0f GF/s in %s\n", q->ranks * q->threads,
                q->ranks * q->threads == 1 ? "" : "s", q->machine.name,
                (q->dtype == TT_BF16 ? q->machine.bgemm_flops : q->machine.sgemm_flops) * q->ranks * q->threads / 1e9,
                tt_cli_dtype_name(q->dtype));
    tt_text_add(&t, "tokens   a vocabulary of %s; %.2f bytes a token, %.1fM tokens in the text\n",
                tt_text_count(a, sizeof a, r->vocab), r->bytes_per_token,
                (double)q->text.bytes / r->bytes_per_token / 1e6);
    tt_text_add(&t,
                "model    llama3 of depth %" PRId64 ": width %" PRId64 ", %" PRId64 " heads, feed-forward %s; %.1fM "
                "parameters\n",
                r->depth, r->dim, r->heads, tt_text_count(a, sizeof a, r->ffn_dim), (double)r->parameters / 1e6);
    tt_text_add(&t, "run      %s steps of %" PRId64 " x %" PRId64 " tokens: %.1fM tokens, %.2f passes\n",
                tt_text_count(a, sizeof a, r->steps), r->batch, r->seq_len,
                (double)(r->steps * r->batch * r->seq_len) / 1e6, r->epochs);
    tt_text_add(&t, "time     %s, %s a step\n", tt_text_duration(a, sizeof a, r->run_sec),
                tt_text_duration(b, sizeof b, r->step_sec));
    tt_text_add(&t, "memory   %s%s\n", tt_text_bytes(a, sizeof a, (double)r->peak_bytes),
                q->ranks > 1 ? " for each rank" : "");
    tt_text_add(&t, "rate     learning rate %.3g after %s steps of warm-up, then down to 0\n", r->lr,
                tt_text_count(a, sizeof a, r->warmup));
    tt_text_add(&t, "loss     about %.2f at the end, %.2f to %.2f expected; %.2f to %.2f bits a byte\n",
                r->loss * r->bytes_per_token, r->low * r->bytes_per_token, r->high * r->bytes_per_token,
                r->low / per_bit, r->high / per_bit);
    add_notes(q, r, &t);
    tt_screen_put(stdout, t.text, columns ? columns : TT_HELP_COLUMNS, 9);
    t.size = 0;
    if (is_dry)
        tt_text_add(&t, "\nnothing was written; without --dry-run, this starts the run:\n\n  ");
    else
        tt_text_add(&t, "\nwrote %s; this starts the run, and continues it:\n\n  ", args->word[0]);
    add_start(args, q, &t);
    tt_print("%s\n", t.text);
    tt_text_release(&t);
}

static json_t *plan_json(const struct tt_args *args, const struct tt_new_request *q, const struct tt_recipe *r,
                         bool is_dry)
{
    struct tt_text start = {0};
    json_t *json;

    add_start(args, q, &start);
    json =
        json_pack("{s:s, s:i, s:o, s:b, s:s, s:s, s:I, s:I, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f}", "type",
                  "new", "schema", 1, "folder", tt_json_string(args->word[0]), "written", !is_dry, "start", start.text,
                  "dataset", q->text.dataset, "documents", (json_int_t)q->text.documents, "bytes",
                  (json_int_t)q->text.bytes, "machine", q->machine.name, "dtype", tt_cli_dtype_name(q->dtype), "ranks",
                  q->ranks, "threads_per_rank", q->threads, "depth", (json_int_t)r->depth, "dim", (json_int_t)r->dim,
                  "parameters", (json_int_t)r->parameters, "parameters_without_embedding", (json_int_t)r->multiplying,
                  "vocab_size", (json_int_t)r->vocab, "bytes_per_token", r->bytes_per_token);
    (void)json_object_update_new(
        json, json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:b}", "seq_len",
                        (json_int_t)r->seq_len, "global_batch_size", (json_int_t)r->batch, "steps",
                        (json_int_t)r->steps, "tokens", (json_int_t)(r->steps * r->batch * r->seq_len), "epochs",
                        r->epochs, "lr", r->lr, "validation_split", r->split, "step_seconds", r->step_sec,
                        "run_seconds", r->run_sec, "peak_bytes", (json_int_t)r->peak_bytes, "loss_per_byte", r->loss,
                        "loss_per_byte_low", r->low, "loss_per_byte_high", r->high, "beyond_the_ladder", r->is_beyond));
    tt_text_release(&start);
    return json;
}

/* --- the folder --- */

/* Writes everything under another name, and renames it. A folder that exists is empty, so the rename replaces it. */
static int write_folder(const struct tt_new_request *q, const struct tt_recipe *r, const json_t *machine)
{
    char *folder = NULL, *config = NULL, *tokenizer = NULL, *file = NULL;
    struct tt_tokenizer *check = NULL;
    struct tt_text text = {0};
    int rc = 0;

    TT_TRY(tt_folder_temporary(q->folder, &folder));
    config = tt_format("%s/config.yaml", folder);
    tokenizer = tt_format("%s/tokenizer", folder);
    file = tt_format("%s/machine.json", folder);
    TT_TRY(tt_bpe_write(tt_new_tokenizer(q, r), &q->text.words, tt_new_special[0], tt_new_special[1], tokenizer));
    TT_TRY(tt_tokenizer_load(tokenizer, &check));
    if (machine)
        TT_TRY(tt_json_save(file, machine));
    tt_new_config(q, r, &text);
    TT_TRY(tt_file_replace(config, text.text, text.size));
    if (rename(folder, q->folder) < 0)
        rc = tt_path_fail("write", q->folder, errno);
out:
    if (rc < 0 && folder && tt_folder_remove(folder) < 0)
        tt_warn("'%s' was left behind", folder);
    tt_tokenizer_free(check);
    tt_text_release(&text);
    tt_free(folder);
    tt_free(config);
    tt_free(tokenizer);
    tt_free(file);
    return rc;
}

static int run(const struct tt_args *args)
{
    struct tt_new_request *q = tt_calloc(1, sizeof *q);
    const char *given = tt_args_last(args, "machine");
    bool is_dry = tt_args_has(args, "dry_run");
    char *folder = NULL, *machine_file = NULL;
    json_t *machine = NULL;
    struct tt_recipe r;
    int rc = 0;

    TT_TRY(read_options(args, q));
    TT_TRY(check_folder(args->word[0]));
    q->folder = folder = absolute(args->word[0]);
    TT_TRY(read_text(args, &q->text));
    TT_TRY(measure(args, q, &machine));
    q->machine_file = machine_file = given ? absolute(given) : tt_format("%s/machine.json", folder);
    TT_TRY(tt_new_plan(q, &r));
    if (!is_dry)
        TT_TRY(write_folder(q, &r, machine));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(plan_json(args, q, &r, is_dry));
    else
        print_plan(args, q, &r, is_dry);
out:
    for (int i = 0; i < TT_NEW_VOCABULARIES; i++)
        tt_bpe_trained_release(&q->trained[i]);
    tt_word_counts_release(&q->text.words);
    tt_free(q->text.path);
    tt_free(q->others);
    tt_free(folder);
    tt_free(machine_file);
    json_decref(machine);
    tt_free(q);
    return rc;
}

const struct tt_command tt_command_new = {
    .name = "new",
    .arguments = "DIR --data PATH [--hours H]",
    .summary = "write a configuration and a tokenizer for a text and this machine",
    .usage = usage,
    .options = options,
    .run = run,
};
