/* SPDX-License-Identifier: MIT
 *
 * titan: the command table.
 *
 * To add a command:
 *   1. A row in the table below.
 *   2. A file cli/commands/<name>.c with an options table, which the row names. A command without a configuration is
 *      one call of tt_cli_run, one on ranks of tt_cli_run_job.
 *   3. man/titan-<name>.1.scd, and its line in man/meson.build and titan(1). tests/cli/test_man.sh compares it with
 *      --help.
 *   4. Cases in tests/cli.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <sys/resource.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/os/machine.h"
#include "parallel/comm/mpi.h"
#include "trainer/run/revision.h"

static int command_help(int argc, char **argv);
static int command_version(int argc, char **argv);
static int command_completion(int argc, char **argv);

static const struct tt_option version_options[] = {{"json", NULL, NULL, "print JSON"}, TT_OPTION_HELP, {0}};

static const struct tt_command commands[] = {
    {"train", "[--config FILE]... [--section.key=value]...", "train a model; without --config: the built-in quick run",
     tt_command_train, tt_train_options},
    {"plan", "[--config FILE]... --ranks N [--rank R]", "the step of one rank: units, collectives, memory, time",
     tt_command_plan, tt_plan_options},
    {"estimate", "[--config FILE]... --ranks N[,N...]", "memory, traffic and time per policy; fits or not",
     tt_command_estimate, tt_estimate_options},
    {"tune", "[--config FILE]... [--over KEY,...]", "try combinations of policies on these ranks; name the fastest",
     tt_command_tune, tt_tune_options},
    {"launch", "-n N [--print] -- train ...", "run on N ranks, each bound to its cores", tt_command_launch,
     tt_launch_options},
    {"status", "[DIR] [--follow]", "is a run alive, where is it, what is wrong, and what continues it",
     tt_command_status, tt_status_options},
    {"plot", "[RUN]... [--key FIELD,...]", "draw loss, norm, learning rate and speed, as text or in files",
     tt_command_plot, tt_plot_options},
    {"compare", "A B [--assert-equal]", "the first step and field in which two runs differ", tt_command_compare,
     tt_compare_options},
    {"export", "--csv [RUN]", "what a run recorded, as a table", tt_command_export, tt_export_options},
    {"trace", "summary DIR", "where the time of a traced step went", tt_command_trace, tt_trace_options},
    {"bench", "[--only PART,...] [--save FILE] [overrides]", "measure this machine and one step of a model",
     tt_command_bench, tt_bench_options},
    {"config", "show|check|diff|init|import [--config FILE]... [overrides]", "show, check or write a configuration",
     tt_command_config, tt_config_options},
    {"models", "[--json]", "the models and their flavors", tt_command_models, tt_models_options},
    {"ckpt", "list|inspect|verify|diff|consolidate|convert|average|gc|rollback PATH...",
     "inspect, check, compare and convert checkpoints", tt_command_ckpt, tt_ckpt_options},
    {"generate", "PATH --prompt TEXT", "continue a text with a checkpoint or a Hugging Face folder",
     tt_command_generate, tt_generate_options},
    {"eval", "PATH [--dataset NAME]", "loss and perplexity of a checkpoint or another model on data", tt_command_eval,
     tt_eval_options},
    {"data", "pack|inspect|tokenizer ...", "turn text into a token file, inspect one, or make a tokenizer",
     tt_command_data, tt_data_options},
    {"doctor", "[--json] [overrides]", "what is wrong with this machine, and what to do", tt_command_doctor,
     tt_doctor_options},
    {"completion", "bash|zsh|fish", "a script that completes command lines in a shell", command_completion,
     tt_completion_options},
    {"version", "[--json]", "the version, and what it was built with", command_version, version_options},
    {"help", "[COMMAND]", "this list, or the help of a command", command_help, NULL},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const struct tt_command *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void usage(FILE *to)
{
    enum { NAME_COLUMNS = 13 };
    struct tt_text text = {0};

    tt_text_add(&text, "titan trains language models on many processes.\n\n"
                       "  titan train                                       a quick run, all built in\n"
                       "  titan launch -n 2 -- train --config my.yaml       your run, on two ranks\n"
                       "  titan train --config my.yaml --optimizer.lr=3e-4  any key as a flag\n\n"
                       "usage: titan COMMAND ...\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        tt_args_help_row(&text, NAME_COLUMNS, commands[i].name, commands[i].summary);
    tt_cli_add_usage(&text,
                     "\n`titan COMMAND --help` says more; so do the manual pages titan(1) and titan-COMMAND(1).\n\n"
                     "Exit codes: 0 ok, 1 internal, 2 usage or configuration, 3 data or checkpoint, 4 communication, "
                     "5 non-finite loss, 6 does not fit in memory, 75 stopped after saving, 130 interrupted.\n");
    (void)fputs(text.text, to);
    tt_text_release(&text);
}

/* Whether a launcher started this process, and another one reports what all of them find. */
static bool is_another_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"); // NOLINT(concurrency-mt-unsafe): one thread

    if (!rank)
        rank = getenv("SLURM_PROCID"); // NOLINT(concurrency-mt-unsafe): one thread
    return rank && strcmp(rank, "0") != 0;
}

static int fail_unknown(const char *name)
{
    /* What other programs call it. */
    static const struct tt_cli_elsewhere elsewhere[] = {
        {"-v|-V|--v|ver", "version"},
        {"-h|-?|usage|man", "help"},
        {"run|fit|pretrain|finetune|fine-tune|sft|start|resume|continue|run_train", "train"},
        {"torchrun|mpirun|srun|accelerate|spawn", "launch -n 2 -- train"},
        {"infer|inference|chat|sample|complete|predict|run-model|prompt", "generate"},
        {"evaluate|validate|benchmark|lm_eval|perplexity|ppl", "eval"},
        {"tokenize|tokenizer|pack|prepare|preprocess", "data"},
        {"convert|consolidate|merge|checkpoint|checkpoints|rollback|gc", "ckpt"},
        {"init|import|check|show|settings", "config"},
        {"ps|log|logs|monitor|watch|progress|ls|list", "status"},
        {"tensorboard|graph|draw|curve|curves|wandb", "plot"},
        {"diff|cmp", "compare"},
        {"memory|memory_estimation|cost|price|predict-memory", "estimate"},
        {"profile|profiling|profiler", "trace summary"},
        {"env|collect_env|info|sysinfo|selftest", "doctor"}};
    const char *names[N_COMMANDS];
    const char *near;

    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    near = tt_text_nearest(name, names, N_COMMANDS);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere && !near; i++)
        if (tt_text_is_listed(name, elsewhere[i].words))
            near = elsewhere[i].here;
    if (is_another_rank())
        return tt_error_exit_code(TT_EUSAGE);
    if (near)
        return tt_cli_fail(tt_fail(TT_EUSAGE, "'%s' is not a command\nhelp: did you mean `titan %s`?", name, near));
    return tt_cli_fail(tt_fail(TT_EUSAGE, "'%s' is not a command\nhelp: `titan help` lists the commands", name));
}

static int command_help(int argc, char **argv)
{
    const struct tt_command *command;
    char help[] = "--help";
    char *help_argv[] = {help, NULL};

    if (argc < 1 || strcmp(argv[0], "--help") == 0) {
        usage(stdout);
        return tt_cli_finish();
    }
    command = find(argv[0]);
    if (!command)
        return fail_unknown(argv[0]);
    return command->run == command_help ? (usage(stdout), tt_cli_finish()) : command->run(1, help_argv);
}

static const char *instruction_set(void)
{
    return tt_cpu_has_avx512() ? "AVX-512" : tt_cpu_has_avx2() ? "AVX2" : "generic";
}

/* Version, libraries and instruction sets. */
static int print_version(bool is_json)
{
    const char *revision = tt_revision();

    if (is_json)
        return tt_cli_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "version", TITAN_VERSION, "git", revision,
                                           "mpi", tt_comm_mpi_library(), "blas", tt_blas_library(), "cpu",
                                           instruction_set(), "kernels", tt_kernels()->name));
    tt_print("titan %s%s%s%s\nMPI  %s\nBLAS %s\nCPU  %s, kernels %s\n", TITAN_VERSION, revision[0] ? " (git " : "",
             revision, revision[0] ? ")" : "", tt_comm_mpi_library(), tt_blas_library(), instruction_set(),
             tt_kernels()->name);
    return tt_cli_finish();
}

static int command_version(int argc, char **argv)
{
    bool is_json = argc == 1 && strcmp(argv[0], "--json") == 0;

    if (argc && !is_json && strcmp(argv[0], "--help") != 0)
        return tt_cli_fail(tt_fail(TT_EUSAGE, "version: unknown argument '%s'\nhelp: titan version [--json]", argv[0]));
    return print_version(is_json);
}

static int command_completion(int argc, char **argv)
{
    return tt_cli_completion(argc, argv, commands, N_COMMANDS);
}

struct call {
    const struct tt_command *command;
    int argc;
    char **argv;
    int code;
};

static void *run_call(void *arg)
{
    struct call *call = arg;

    call->code = call->command->run(call->argc, call->argv);
    return NULL;
}

/* Runs a command. If `ulimit -s` gives threads little stack, it runs on a thread with enough, and so do all later
 * ones. */
static int run_with_stack(struct call *call)
{
    static const size_t enough = (size_t)8 << 20;
    struct rlimit limit;
    pthread_attr_t attr;
    pthread_t thread;
    bool runs = false;

    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < enough / 2 && pthread_attr_init(&attr) == 0) {
        runs = pthread_attr_setstacksize(&attr, enough) == 0 && pthread_setattr_default_np(&attr) == 0 &&
               pthread_create(&thread, &attr, run_call, call) == 0;
        (void)pthread_attr_destroy(&attr);
    }
    if (runs)
        (void)pthread_join(thread, NULL);
    else
        (void)run_call(call);
    return call->code;
}

int main(int argc, char **argv)
{
    const struct tt_command *command;

    tt_streams_begin();
    (void)signal(SIGXFSZ, SIG_IGN); /* at a file-size limit a write fails with a message; the process is not killed */
    if (argc < 2) {
        usage(stderr);
        return tt_error_exit_code(TT_EUSAGE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return tt_cli_finish();
    }
    if (strcmp(argv[1], "--version") == 0)
        return command_version(argc - 2, argv + 2);
    if (strncmp(argv[1], "--", 2) == 0)
        return tt_cli_fail(
            tt_fail(TT_EUSAGE, "'%s' comes before a command\nhelp: did you mean `titan train %s`?", argv[1], argv[1]));
    command = find(argv[1]);
    if (!command)
        return fail_unknown(argv[1]);
    return run_with_stack(&(struct call){.command = command, .argc = argc - 2, .argv = argv + 2});
}
