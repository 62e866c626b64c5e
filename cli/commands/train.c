/* SPDX-License-Identifier: MIT
 *
 * titan train: command line, communicator, the loop, exit code.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "cli/run/segments.h"
#include "cli/run/signals.h"
#include "cli/train/screen.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/config/args.h"
#include "core/os/file.h"
#include "trainer/dry.h"
#include "trainer/job/facts.h"
#include "trainer/job/job.h"
#include "trainer/run/console.h"

/* The findings of a dry run, as text or as JSON. */

enum { LABEL_COLUMNS = 11 }; /* as in the banner, which is printed before */

static int64_t steps_left(const struct tt_dry *d)
{
    return tt_deadline_steps(d->setup->cfg, &d->at, d->reporter.predicted_step_sec,
                             tt_train_progress_last_step(&d->at, d->setup, &d->data) - d->at.step);
}

/* --- text --- */

static void add_tokenizer(const struct tt_dry *d, struct tt_text *out)
{
    const struct tt_tokenizer *tokenizer = d->tokenizer;
    int unknown = 0;
    char count[32];

    for (int i = 0; i < d->data.n; i++)
        unknown += !tt_dry_knows_tokens(d, i);
    if (unknown < d->data.n)
        tt_text_add(out, "  tokens   made with %s, which has %s tokens%s\n", tt_tokenizer_info(tokenizer)->where,
                    tt_text_count(count, sizeof count, tt_tokenizer_info(tokenizer)->vocab_size),
                    unknown ? "; some datasets with an unknown tokenizer" : "");
    else
        tt_text_add(out, "  tokens   made with an unknown tokenizer; the largest one is %" PRId64 "\n",
                    d->data.part[0].dataset->ref.info.max_id);
}

/* Adds the text of a sample, on one line, or its tokens. */
static void add_sample(const struct tt_dry_sample *sample, struct tt_text *out)
{
    struct tt_text text = {0}, line = {0};

    tt_text_add(out, "  sample   %" PRId64 ": ", sample->number);
    if (sample->text.size) {
        tt_utf8_repair(sample->text.text, sample->text.size, &text);
        tt_text_add_replaced(&line, text.text, text.size, "\n", "\\n");
        tt_text_make_printable(&line);
        tt_text_add(out, "%s", line.text);
    }
    for (int64_t i = 0; i < sample->n && !sample->text.size; i++)
        tt_text_add(out, "%s%" PRId32, i ? " " : "", sample->token[i]);
    tt_text_add(out, " ...\n");
    tt_text_release(&text);
    tt_text_release(&line);
}

static void add_disk(const struct tt_dry *d, struct tt_text *out)
{
    const struct tt_saver_disk *disk = &d->disk;
    const struct tt_ckpt_demand *demand = &disk->demand;
    char one[32], last[32], most[32], have[32];

    if (!disk->folder) {
        tt_text_add(out, "  disk     no checkpoints are saved\n");
        return;
    }
    tt_text_add(out, "  disk     %" PRId64 " checkpoint%s of %s", demand->saves, demand->saves == 1 ? "" : "s",
                tt_text_bytes(one, sizeof one, demand->one));
    if (demand->last < demand->one)
        tt_text_add(out, " (the last one of %s)", tt_text_bytes(last, sizeof last, demand->last));
    tt_text_add(out, " will be saved in %s", disk->folder);
    if (demand->held)
        tt_text_add(out, ", which has %" PRId64 " now", demand->held);
    tt_text_add(out, "; %s at most %s (checkpoint.keep_latest_k %" PRId64 ")",
                demand->saves == 1 ? "it needs" : "they need", tt_text_bytes(most, sizeof most, disk->most),
                d->setup->cfg->checkpoint.keep_latest_k);
    if (disk->have >= 0.0)
        tt_text_add(out, ", %s are free%s", tt_text_bytes(have, sizeof have, disk->have),
                    disk->replaced ? " before the earlier run is removed" : "");
    tt_text_add(out, "\n");
}

/* Whether the first step of the run begins with random weights, so that its loss can be predicted. */
static bool predicts_loss(const struct tt_dry *d, struct tt_first_loss *ret_loss)
{
    return d->start.is_random && d->n_samples &&
           tt_model_first_loss(d->setup->job.model, d->data.seq_len, &d->repeats, ret_loss);
}

static void add_first_loss(const struct tt_dry *d, struct tt_text *out)
{
    struct tt_first_loss loss;
    char vocabulary[32];

    if (!d->n_samples)
        return;
    if (!d->start.is_random) {
        tt_text_add(out, "  loss     of the first step not predicted: its weights are loaded, not random\n");
        return;
    }
    if (!predicts_loss(d, &loss)) {
        tt_text_add(
            out,
            "  loss     of the first step not predicted: the head is tied, and titan does not estimate the part that "
            "the blocks of %s add to the embedding\n",
            d->setup->job.model->row->name);
        return;
    }
    tt_text_add(
        out, "  loss     about %.2f at step %" PRId64 "%s: ln %s = %.2f, and %.2f for the variance %.2f of the logits",
        loss.loss, d->at.step + 1, d->setup->cfg->training.z_loss > 0.0 ? ", without the z-loss" : "",
        tt_text_count(vocabulary, sizeof vocabulary, d->setup->job.model->dims.vocab_size), loss.blind, loss.spread,
        loss.variance);
    if (d->setup->job.model->dims.tied == 1)
        tt_text_add(out, ", and %.2f for the tied head, in which a token gives itself a logit of %.1f", loss.own,
                    loss.own_logit);
    tt_text_add(out, "\n");
}

static int print_text(const struct tt_dry *d)
{
    char shortest[32], longest[32], mean[32], cut[32];
    struct tt_text text = {0};
    add_tokenizer(d, &text);
    if (d->lengths.documents)
        tt_text_add(&text,
                    "  lengths  documents have %s to %s tokens, %s on average; %s of them are longer than a sequence\n",
                    tt_text_count(shortest, sizeof shortest, d->lengths.shortest),
                    tt_text_count(longest, sizeof longest, d->lengths.longest),
                    tt_text_count(mean, sizeof mean, d->lengths.tokens / d->lengths.documents),
                    tt_text_count(cut, sizeof cut, d->lengths.cut));
    for (int i = 0; i < d->n_samples; i++)
        add_sample(&d->sample[i], &text);
    add_disk(d, &text);
    add_first_loss(d, &text);
    if (steps_left(d) > 0)
        tt_text_add(&text, "  start    a run would begin with step %" PRId64 "; nothing was trained or saved\n",
                    d->at.step + 1);
    else
        tt_text_add(&text, "  start    the run is complete: a run would train nothing\n");
    tt_print_broken(LABEL_COLUMNS, "%s", text.text);
    tt_text_release(&text);
    return tt_cli_finish();
}

/* --- JSON --- */

static json_t *part_json(const struct tt_train_part *part, const struct tt_dataset_entry *entry)
{
    const struct tt_dataset_ref *ref = &part->dataset->ref;
    const struct tt_documents *documents = tt_sampler_documents(part->sampler);

    return json_pack("{s:o, s:s, s:o, s:I, s:I, s:I}", "name", tt_json_string(part->name), "dataset", ref->name, "path",
                     entry->dataset_path ? tt_json_string(entry->dataset_path) : json_null(), "documents",
                     (json_int_t)documents->n, "tokens", (json_int_t)documents->tokens, "samples_per_epoch",
                     (json_int_t)tt_sampler_epoch_samples(part->sampler));
}

static json_t *data_json(const struct tt_dry *d)
{
    const struct tt_tokenizer *tokenizer = d->tokenizer;
    json_t *o, *parts = json_array(), *samples = json_array();

    for (int i = 0; i < d->data.n; i++) {
        const struct tt_dataset_entry entry = tt_config_dataset(d->setup->cfg, &d->setup->cfg->training.dataset, i);

        (void)json_array_append_new(parts, part_json(&d->data.part[i], &entry));
    }
    for (int i = 0; i < d->n_samples; i++) {
        const struct tt_dry_sample *sample = &d->sample[i];
        json_t *tokens = json_array();

        for (int64_t k = 0; k < sample->n; k++)
            (void)json_array_append_new(tokens, json_integer(sample->token[k]));
        (void)json_array_append_new(samples, json_pack("{s:I, s:o, s:o*}", "sample", (json_int_t)sample->number,
                                                       "tokens", tokens, "text",
                                                       sample->text.size ? tt_json_string(sample->text.text) : NULL));
    }
    o = json_pack("{s:o, s:I, s:o, s:o}", "datasets", parts, "seq_len", (json_int_t)d->data.seq_len, "tokenizer",
                  tokenizer ? tt_json_string(tt_tokenizer_info(tokenizer)->where) : json_null(), "first_samples",
                  samples);
    if (d->lengths.documents)
        (void)json_object_update_new(
            o, json_pack("{s:I, s:I, s:I}", "shortest_document", (json_int_t)d->lengths.shortest, "longest_document",
                         (json_int_t)d->lengths.longest, "documents_longer_than_seq_len", (json_int_t)d->lengths.cut));
    return o;
}

static json_t *disk_json(const struct tt_dry *d)
{
    const struct tt_saver_disk *disk = &d->disk;
    json_t *o;

    if (!disk->folder)
        return json_null();
    o = json_pack("{s:o, s:I, s:I, s:f, s:f, s:f, s:I, s:f}", "folder", tt_json_string(disk->folder), "saves",
                  (json_int_t)disk->demand.saves, "held", (json_int_t)disk->demand.held, "bytes", disk->demand.one,
                  "last_bytes", disk->demand.last, "export_bytes", disk->demand.exports, "keep_latest_k",
                  (json_int_t)d->setup->cfg->checkpoint.keep_latest_k, "needed_bytes", disk->most);
    if (disk->have >= 0.0)
        (void)json_object_set_new(o, "free_bytes", json_real(disk->have));
    return o;
}

static int print_json(const struct tt_dry *d)
{
    const struct tt_setup *s = d->setup;
    const struct tt_config *cfg = s->cfg;
    double step = d->reporter.predicted_step_sec;
    json_t *sets = json_array(), *o;
    struct tt_first_loss loss;

    for (int i = 0; i < d->validator.n; i++) {
        const struct tt_dataset_entry entry = tt_config_dataset(cfg, &cfg->validation.dataset, i);

        (void)json_array_append_new(sets, part_json(&d->validator.set[i].part[0], &entry));
    }
    o = json_pack(
        "{s:i, s:i, s:s, s:s, s:I, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "ranks", s->comm->size,
        "threads_per_rank", s->threads, "model", s->job.model->row->name, "flavor", s->job.model->flavor, "parameters",
        (json_int_t)tt_model_n_elements(s->job.model), "weights", tt_json_string(d->start.weights_from), "resumed_from",
        d->start.since.step >= 0 ? json_integer(d->start.since.step) : json_null(), "steps_done",
        (json_int_t)d->at.step, "last_step", (json_int_t)(d->at.step + steps_left(d)), "data", data_json(d),
        "validation", sets, "memory",
        json_pack("{s:I, s:I, s:I}", "predicted_bytes", (json_int_t)d->reporter.largest_bytes, "staging_bytes",
                  (json_int_t)s->job.staging_bytes, "limit_bytes", (json_int_t)s->memory_limit),
        "time",
        json_pack("{s:f, s:f, s:f}", "step_seconds", step, "run_seconds", step * (double)steps_left(d), "peak_flops",
                  d->reporter.metrics.peak_flops),
        "checkpoints", disk_json(d));

    if (predicts_loss(d, &loss))
        (void)json_object_set_new(o, "first_loss",
                                  json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "expected", loss.loss, "ln_vocab_size",
                                            loss.blind, "of_variance", loss.spread, "of_tied_head", loss.own,
                                            "logit_variance", loss.variance, "own_logit", loss.own_logit));
    else
        (void)json_object_set_new(o, "first_loss", json_null());
    (void)json_object_set_new(o, "config", tt_config_to_json(cfg, false));
    return tt_cli_print_json(o);
}

/* Prints the findings of a dry run; the warnings go to the log. 0, or the exit code of a failed write. */
static int report_dry(const struct tt_dry *d, bool json)
{
    const struct tt_run_about about = {&d->reporter, &d->start, &d->at, &d->data, &d->validator};

    tt_describe_run(&about, true, json ? NULL : stdout);
    tt_saver_warn_of_space(d->setup->cfg, &d->disk);
    return json ? print_json(d) : print_text(d);
}

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"json", NULL, NULL, "print the records of metrics.jsonl instead of console lines"},
    {"overwrite", NULL, NULL, "replace the run that dump_folder holds"},
    {"verbose", NULL, NULL, "print the whole banner at the start, not six lines of it"},
    {"dry_run", NULL, NULL, "do everything but the steps: check files, data, memory, disk and time"},
    TT_OPTION_HELP,
    {0},
};

static int print_help(const struct tt_args *args)
{
    struct tt_text text = {0};

    if (!args->n_words)
        return tt_command_help(&tt_command_train);
    if (strcmp(args->word[0], "keys") != 0)
        return tt_cli_fail(tt_fail(TT_EUSAGE,
                                   "train: there is no help on '%s'\nhelp: titan train --help, or titan train "
                                   "--help keys",
                                   args->word[0]));
    tt_config_help(&text);
    tt_print("%s", text.text);
    tt_text_release(&text);
    return tt_cli_finish();
}

/* A segment that is this old and that no process maps is unused: a process maps its segment right after making it. */
enum { SEGMENT_AGE_SEC = 60 };

struct command {
    struct tt_args *args;
    int argc;
    char **argv;
};

/* Earlier versions of titan ran the built-in configuration in ./outputs itself. A user who repeats that command must
 * not mistake this run for the old one. */
static void note_earlier_run(const struct tt_config *cfg)
{
    static const char earlier[] = "outputs/run.yaml";
    char *own = tt_format("%s/run.yaml", cfg->job.dump_folder), *text = NULL;
    bool has = false, begun = false;
    size_t size = 0;
    int rc = 0;

    if (strcmp(tt_config_origin(cfg, TT_KEY(job.dump_folder)), "builtin:quick") != 0)
        goto out;
    TT_TRY(tt_path_exists(earlier, &has));
    TT_TRY(tt_path_exists(own, &begun));
    if (!has || begun)
        goto out;
    TT_TRY(tt_file_read(earlier, &text, &size));
    if (strstr(text, "description: \"built-in quick run\""))
        tt_note("a run of the built-in configuration is in ./outputs, where an earlier titan put it; this one is in "
                "%s (--job.dump_folder=outputs continues the other)",
                cfg->job.dump_folder);
out:
    if (rc < 0)
        tt_warn("it is not known whether an earlier titan has run in ./outputs: %s", tt_error_message());
    tt_free(text);
    tt_free(own);
}

/*
 * What a rank does, with its communicator. Returns the same code on every rank. A dry run checks the files that the
 * configuration names, but only on rank 0: other hosts may lack files that they do not read, such as a text whose
 * tokens are in their cache. They open the files that they do read, as they would in a run.
 */
static int train(struct tt_comm *comm, void *arg)
{
    const struct command *command = arg;
    const struct tt_args *args = command->args;
    bool json = tt_args_has(args, "json"), verbose = tt_args_has(args, "verbose"),
         is_dry = tt_args_has(args, "dry_run");
    struct tt_train_screen screen;
    const struct tt_loop_options loop_options = {.events = &screen.events,
                                                 .overwrite = tt_args_has(args, "overwrite"),
                                                 .argc = command->argc,
                                                 .argv = command->argv};
    struct tt_setup setup = {.cfg = NULL};
    struct tt_dry dry = {.setup = NULL};
    struct tt_loop loop = {.setup = NULL};
    struct tt_config *cfg = NULL;
    int removed, rc;

    if (comm->rank == 0) {
        tt_console_begin();
        tt_signals_answer("stopping before the first step", "stop at once");
    }
    rc = tt_cli_load_variant("train", args, &(struct tt_cli_variant){.files = is_dry && comm->rank == 0}, &cfg);
    if (rc == 0 && is_dry && comm->rank != 0)
        rc = tt_job_adopt_family(cfg); /* the check of files has done this on rank 0 */
    if (rc == 0 && comm->rank == 0)
        note_earlier_run(cfg);
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_facts_agree_on_config(comm, cfg, args));
    TT_TRY(tt_setup_init(cfg, comm, loop_options.overwrite, &setup));
    if (is_dry) {
        TT_TRY(tt_dry_look(&setup, loop_options.overwrite, tt_signals_asked, &dry));
        rc = comm->rank == 0 ? report_dry(&dry, json) : 0;
        goto out;
    }
    removed = setup.local_rank == 0 ? tt_segments_sweep("/dev/shm", "/proc", SEGMENT_AGE_SEC) : 0;
    if (removed && verbose)
        tt_note("removed %d shared-memory segment%s that killed MPI processes left in /dev/shm", removed,
                removed == 1 ? "" : "s");
    tt_train_screen_init(&setup, json, verbose, &screen);
    TT_TRY(tt_loop_open(&setup, &loop_options, &loop));
    rc = tt_loop_run(&loop);
out:
    rc = tt_config_locate(cfg, rc);
    tt_dry_release(&dry);
    tt_loop_close(&loop, tt_error_exit_code(rc));
    /* if another rank ends first, mpirun ends this one, which could then print nothing more */
    tt_signals_answer(NULL, NULL);
    tt_setup_release(&setup);
    tt_config_free(cfg);
    return rc;
}

static int run(int argc, char **argv)
{
    struct command command = {.argc = argc, .argv = argv};
    int rc = tt_cli_parse(argc, argv, options, &command.args), code;

    if (rc == 0 && tt_args_has(command.args, "help")) {
        code = print_help(command.args);
    } else {
        tt_signals_install();
        code = tt_cli_run_ranks(rc, command.args, train, &command);
        tt_console_close(); /* after the error message, if any */
    }
    tt_args_free(command.args);
    return code;
}

const struct tt_command tt_command_train = {
    .name = "train",
    .arguments = "[--config FILE]... [--section.key=value]...",
    .summary = "train a model; without --config: the built-in quick run",
    .usage = "usage: titan train [--config FILE]... [--section.key=value]...\n\n"
             "Trains. Without --config: the built-in quick run. Under mpirun every process is one rank.\n\n",
    .options = options,
    .more = "\nConfiguration keys, as flags --section.key=value (`titan train --help keys` explains each, as\n"
            "titan-config(5) does):\n\n",
    .add_more = tt_config_help_sections,
    .main = run,
};
