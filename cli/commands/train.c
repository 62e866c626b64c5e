/* SPDX-License-Identifier: MIT
 *
 * titan train: command line, communicator, the loop, exit code.
 */
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
#include "core/config/args.h"
#include "core/os/file.h"
#include "trainer/job/facts.h"
#include "trainer/job/job.h"
#include "trainer/run/console.h"

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
        rc = comm->rank == 0 ? tt_dry_report(&dry, json) : 0;
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
