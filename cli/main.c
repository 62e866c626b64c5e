/* SPDX-License-Identifier: MIT
 *
 * titan: the command table.
 *
 * To add a command:
 *   1. A file cli/commands/<name>.c with its row: usage, options, and the function that runs it (cli/cli.h).
 *   2. Its name in cli/cli.h and in the list below.
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

static int help(int argc, char **argv);
static int print_version(int argc, char **argv);

static const struct tt_option version_options[] = {{"json", NULL, NULL, "print JSON"}, TT_OPTION_HELP, {0}};

static const struct tt_command version = {
    .name = "version",
    .arguments = "[--json]",
    .summary = "the version, and what it was built with",
    .options = version_options,
    .main = print_version,
};
static const struct tt_command help_command = {
    .name = "help",
    .arguments = "[COMMAND]",
    .summary = "this list, or the help of a command",
    .main = help,
};

const struct tt_command *const tt_commands[] = {
    &tt_command_new,        &tt_command_train,  &tt_command_plan,      &tt_command_estimate,
    &tt_command_tune,       &tt_command_launch, &tt_command_status,    &tt_command_plot,
    &tt_command_compare,    &tt_command_export, &tt_command_trace,     &tt_command_bench,
    &tt_command_config,     &tt_command_models, &tt_command_ckpt,      &tt_command_generate,
    &tt_command_eval,       &tt_command_data,   &tt_command_reference, &tt_command_doctor,
    &tt_command_completion, &version,           &help_command,         NULL,
};

enum { N_COMMANDS = sizeof tt_commands / sizeof tt_commands[0] - 1 };

static const struct tt_command *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(tt_commands[i]->name, name) == 0)
            return tt_commands[i];
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
        tt_args_help_row(&text, NAME_COLUMNS, tt_commands[i]->name, tt_commands[i]->summary);
    tt_cli_add_usage(&text,
                     "\n`titan COMMAND --help` says more; so do the manual pages titan(1) and titan-COMMAND(1).\n\n"
                     "Exit codes: 0 ok, 1 internal, 2 usage or configuration, 3 data or checkpoint, 4 communication, "
                     "5 non-finite loss, 6 does not fit in memory, 75 stopped after saving, 130 interrupted.\n");
    (void)fputs(text.text, to);
    tt_text_release(&text);
}

static int fail_unknown(const char *name)
{
    /* Names of similar commands in other programs. */
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
        {"env|collect_env|info|sysinfo|selftest", "doctor"},
        {0}};
    const char *names[N_COMMANDS], *near;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"); // NOLINT(concurrency-mt-unsafe): one thread

    if (!rank)
        rank = getenv("SLURM_PROCID");  // NOLINT(concurrency-mt-unsafe): one thread
    if (rank && strcmp(rank, "0") != 0) /* rank 0 reports the errors that all ranks find */
        return tt_error_exit_code(TT_EUSAGE);
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = tt_commands[i]->name;
    near = tt_cli_meant(name, names, N_COMMANDS, elsewhere);
    if (near)
        return tt_cli_fail(tt_fail(TT_EUSAGE, "'%s' is not a command\nhelp: did you mean `titan %s`?", name, near));
    return tt_cli_fail(tt_fail(TT_EUSAGE, "'%s' is not a command\nhelp: `titan help` lists the commands", name));
}

static int help(int argc, char **argv)
{
    const struct tt_command *command;
    char flag[] = "--help";

    if (argc < 1 || strcmp(argv[0], "--help") == 0) {
        usage(stdout);
        return tt_cli_finish();
    }
    command = find(argv[0]);
    return command ? tt_command_run(command, 1, (char *[]){flag, NULL}) : fail_unknown(argv[0]);
}

static const char *instruction_set(void)
{
    return tt_cpu_has(TT_CPU_AVX512) ? "AVX-512"
           : tt_cpu_has(TT_CPU_AVX2) ? "AVX2"
           : tt_cpu_has(TT_CPU_NEON) ? "NEON"
                                     : "generic";
}

/* Version, libraries and instruction sets. */
static int print_version(int argc, char **argv)
{
    bool is_json = argc == 1 && strcmp(argv[0], "--json") == 0;
    const char *revision = tt_revision();

    if (argc && !is_json && strcmp(argv[0], "--help") != 0)
        return tt_cli_fail(tt_fail(TT_EUSAGE, "version: unknown argument '%s'\nhelp: titan version [--json]", argv[0]));
    if (is_json)
        return tt_cli_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "version", TITAN_VERSION, "git", revision,
                                           "mpi", tt_comm_mpi_library(), "blas", tt_blas_library(), "cpu",
                                           instruction_set(), "kernels", tt_kernels()->name));
    tt_print("titan %s%s%s%s\nMPI  %s\nBLAS %s\nCPU  %s, kernels %s\n", TITAN_VERSION, revision[0] ? " (git " : "",
             revision, revision[0] ? ")" : "", tt_comm_mpi_library(), tt_blas_library(), instruction_set(),
             tt_kernels()->name);
    return tt_cli_finish();
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

    call->code = tt_command_run(call->command, call->argc, call->argv);
    return NULL;
}

int main(int argc, char **argv)
{
    static const size_t enough = (size_t)8 << 20;
    struct call call;
    struct rlimit limit;
    pthread_attr_t attr;
    pthread_t thread;
    bool runs = false;

    tt_streams_begin();
    /* at a file-size limit, a write then fails with a message instead of killing the process */
    (void)signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        usage(stderr);
        return tt_error_exit_code(TT_EUSAGE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help(0, NULL);
    if (strcmp(argv[1], "--version") == 0)
        return print_version(argc - 2, argv + 2);
    if (strncmp(argv[1], "--", 2) == 0)
        return tt_cli_fail(
            tt_fail(TT_EUSAGE, "'%s' comes before a command\nhelp: did you mean `titan train %s`?", argv[1], argv[1]));
    call = (struct call){.command = find(argv[1]), .argc = argc - 2, .argv = argv + 2};
    if (!call.command)
        return fail_unknown(argv[1]);
    /* gives the command and all its threads enough stack, even if `ulimit -s` is low */
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < enough / 2 && pthread_attr_init(&attr) == 0) {
        runs = pthread_attr_setstacksize(&attr, enough) == 0 && pthread_setattr_default_np(&attr) == 0 &&
               pthread_create(&thread, &attr, run_call, &call) == 0;
        (void)pthread_attr_destroy(&attr);
    }
    if (runs)
        (void)pthread_join(thread, NULL);
    else
        (void)run_call(&call);
    return call.code;
}
