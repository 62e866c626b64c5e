/* SPDX-License-Identifier: MIT
 *
 * `titan launch`: the mpirun or srun line with the right binding for this host, printed or run. By default, launchers
 * bind each rank to one core, which leaves the other cores idle, or to none.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "cli/run/supervise.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "core/os/machine.h"
#include "core/os/team.h"
#include "trainer/run/folder.h"

static const struct tt_option options[] = {
    {"ranks", NULL, "N", "ranks of the job; -n N is the same"},
    {"hostfile", NULL, "FILE", "hosts to run on, one `NAME slots=N` a line (mpirun)"},
    {"print", NULL, NULL, "print the command line and do not run it"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan launch -n N [--hostfile FILE] [--print] [--] COMMAND [ARGUMENT]...\n"
    "\n"
    "Runs a titan command on N ranks: with srun inside a Slurm job, else with mpirun on this host or on\n"
    "the hosts of a hostfile. Each rank is bound to its share of the cores.\n"
    "\n";

/* --- the command line --- */

struct line {
    char **word;
    int n, cap;
};

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds a word. */
static void add(struct line *line, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    TT_PUSH(line->word, line->n, line->cap) = tt_vformat(format, args);
    va_end(args);
}
static int slurm_number(const char *name, int fallback)
{
    const char *text = getenv(name); // NOLINT(concurrency-mt-unsafe): one thread
    int value = text ? (int)strtol(text, NULL, 10) : 0;

    return value > 0 ? value : fallback;
}

static void add_srun(struct line *line, int ranks)
{
    int nodes = slurm_number("SLURM_JOB_NUM_NODES", 1), cores = slurm_number("SLURM_CPUS_ON_NODE", tt_team_cores());
    int local = (ranks + nodes - 1) / nodes;

    add(line, "srun");
    add(line, "--mpi=pmix");
    add(line, "--ntasks=%d", ranks);
    if (local <= cores) {
        add(line, "--cpus-per-task=%d", cores / local);
        add(line, "--cpu-bind=cores");
    } else {
        add(line, "--overcommit");
        add(line, "--cpu-bind=none");
    }
}

/*
 * The number of ranks on the fullest host of a hostfile: mpirun fills a host's slots before it takes the next host.
 * Without a file, all ranks are on this host. If a line gives no slots, mpirun uses the host's cores.
 */
static int ranks_of_a_host(const char *hostfile, int ranks, int cores, int *ret_local)
{
    char *text = NULL, *rest = NULL;
    size_t size = 0;
    int most = 0, hosts = 0, rc = 0;

    if (!hostfile) {
        *ret_local = ranks;
        return 0;
    }
    TT_TRY(tt_file_read(hostfile, &text, &size));
    for (char *row = strtok_r(text, "\n", &rest); row; row = strtok_r(NULL, "\n", &rest)) {
        const char *slots = strstr(row, "slots=");
        int n;

        row += strspn(row, " \t\r");
        if (!*row || *row == '#')
            continue;
        n = slots ? (int)strtol(slots + strlen("slots="), NULL, 10) : cores;
        most = n > most ? n : most;
        hosts++;
    }
    if (hosts == 0 || most < 1)
        rc = tt_fail(TT_EUSAGE, "launch: '%s' names no hosts\nhelp: write a line for each: NAME slots=N", hostfile);
    *ret_local = most < ranks ? most : ranks;
out:
    tt_free(text);
    return rc;
}

/* Adds a parameter of Open MPI, unless the user has set it. */
static void add_setting(struct line *line, const char *name, const char *value)
{
    char *variable = tt_format("OMPI_MCA_%s", name);

    if (!getenv(variable)) { // NOLINT(concurrency-mt-unsafe): one thread
        add(line, "--mca");
        add(line, "%s", name);
        add(line, "%s", value);
    }
    tt_free(variable);
}

static int add_mpirun(struct line *line, int ranks, const char *hostfile)
{
    int cores = tt_team_cores(), local = 0, rc = 0;

    TT_TRY(ranks_of_a_host(hostfile, ranks, cores, &local));
    add(line, "mpirun");
    if (geteuid() == 0) /* otherwise mpirun refuses to run as root */
        add(line, "--allow-run-as-root");
    add(line, "-n");
    add(line, "%d", ranks);
    if (hostfile) {
        add(line, "--hostfile");
        add(line, "%s", hostfile);
    } else {
        /* the settings of tools/mpi-env for one machine, which gives the reasons */
        add_setting(line, "pml", "ob1");
        add_setting(line, "btl", "self,vader,tcp");
        add_setting(line, "btl_base_warn_component_unused", "0");
        add_setting(line, "reachable", "weighted");
        if (!tt_peers_are_readable("", NULL))
            add_setting(line, "btl_vader_single_copy_mechanism", "none");
    }
    if (local <= cores) {
        add(line, "--map-by");
        add(line, "slot:PE=%d", cores / local);
        add(line, "--bind-to");
        add(line, "core");
    } else {
        add(line, "--oversubscribe");
        add(line, "--bind-to");
        add(line, "none");
    }
out:
    return rc;
}

/* Runs the command line. If the ranks of a training run could not record how it ended, adds that to its records. argv:
 * the command that the ranks run. */
static int run_line(struct line *line, int argc, char **argv)
{
    double started_sec = tt_clock_wall_sec();
    int first = strcmp(argv[0], "titan") == 0, rc, recorded = 0;
    struct tt_text why = {0};
    struct tt_args *args = NULL;
    struct tt_config *cfg = NULL;
    bool told;

    TT_PUSH(line->word, line->n, line->cap) = NULL;
    line->n--;
    rc = tt_supervise(line->word, &why);
    told = why.size > 0;
    if (rc > 128 && !told)
        tt_text_add(&why, "a rank was ended by signal %d (from the launcher's exit code; it did not name the rank)",
                    rc - 128);
    else if (rc > 0 && !told)
        tt_text_add(&why, "the launcher ended with exit code %d and did not say why", rc);
    if (why.size && strstr(why.text, " signal 9 "))
        tt_text_add(&why,
                    "\nhelp: if nobody sent it, the kernel probably did because memory ran out; dmesg shows that");
    if (rc > 0 && first < argc && strcmp(argv[first], "train") == 0) {
        recorded = tt_cli_parse(argc - first - 1, argv + first + 1, tt_command_train.options, &args);
        if (recorded == 0)
            recorded = tt_cli_load_config("train", args, &cfg);
        if (recorded == 0)
            recorded = tt_run_folder_end(cfg, started_sec, rc, why.text);
        else if (!told)
            recorded = 0; /* the ranks have reported the errors in the configuration */
    }
    if (recorded < 0)
        tt_screen_say("titan: launch: the end of the run could not be recorded: %s\n", tt_error_message());
    tt_config_free(cfg);
    tt_args_free(args);
    tt_text_release(&why);
    return rc;
}

/* --- the command --- */

/* Flags of torchrun, accelerate and mpirun, each with its replacement in `titan launch`. */
static const struct {
    const char *words, *help;
} others[] = {
    {"nproc_per_node|nproc|np|n|ntasks|num_processes|nprocs|world_size|gpus|ngpus|num_gpus|devices",
     "-n N is the number of ranks of the whole job"},
    {"nnodes|num_nodes|num_machines|nodes|hosts|host|hosts_file|machinefile",
     "--hostfile FILE names the hosts, `NAME slots=N` a line; -n N is the number of ranks on all of them; inside a "
     "Slurm job srun knows them"},
    {"node_rank|machine_rank|rank", "titan launch runs once, on one host, and starts the ranks of all of them"},
    {"master_addr|master_port|main_process_ip|main_process_port|rdzv_endpoint|rdzv_backend|rdzv_id|rdzv_conf|"
     "standalone|max_restarts|monitor_interval",
     "leave it out: MPI connects the ranks; a job that was stopped resumes when it is started again"},
    {"bind_to|map_by|cpu_bind|cpus_per_task", "leave it out: titan launch binds each rank to its share of the cores; "
                                              "`titan launch -n N --print -- train` prints a line to change"},
    {"x|env|export",
     "leave it out: mpirun passes on its environment to the ranks on this host; --print prints a line to "
     "change for others"},
    {"module|m|no_python", "name a command of titan: titan launch -n N -- train --config FILE"},
    {"oversubscribe|allow_run_as_root", "leave it out: titan launch adds it where it is needed"},
};

/* Fails if a word is a flag of another launcher; `next` is the following word or NULL. */
static int check_other(const char *word, const char *next)
{
    size_t dashes = strspn(word, "-"), length = strcspn(word + dashes, "=");
    bool is_glued = tt_text_begins(word, "-n") && word[2] && !word[2 + strspn(word + 2, "0123456789")];
    const char *value = word[dashes + length] ? word + dashes + length + 1 : next;
    char *name = tt_strndup(word + dashes, length);
    int rc = 0;

    if (is_glued)
        rc = tt_fail(TT_EUSAGE, "launch: there is no option '%s'\nhelp: did you mean -n %s?", word, word + 2);
    for (char *c = name; *c; c++)
        *c = *c == '-' ? '_' : *c;
    for (size_t k = 0; k < sizeof others / sizeof *others && dashes && length && rc == 0; k++) {
        bool has_count = k == 0 && value && *value && !value[strspn(value, "0123456789")];

        if (tt_text_is_listed(name, others[k].words))
            rc = tt_fail(TT_EUSAGE, "launch: there is no option '%.*s'\nhelp: %s%s%s%s", (int)(dashes + length), word,
                         has_count ? "did you mean -n " : "", has_count ? value : "", has_count ? "? " : "",
                         others[k].help);
    }
    tt_free(name);
    return rc;
}

static int launch(const struct tt_args *args, int argc, char **argv)
{
    struct line line = {0};
    struct tt_text shown = {0};
    int64_t ranks = 0;
    char *path;
    int rc = 0;

    TT_TRY(tt_cli_count("launch", args, "ranks", 1, TT_MOST_RANKS, &ranks));
    if (ranks == 0 || argc == 0 || args->n_words || args->n_overrides)
        TT_TRY(tt_fail(TT_EUSAGE, "launch: %s\nhelp: titan launch -n N [--print] -- train [--config FILE] ...",
                       ranks == 0  ? "how many ranks? -n N is missing"
                       : argc == 0 ? "the command to run is missing"
                                   : "the command to run comes after '--'"));
    if (tt_text_ends(argv[0], ".py") ||
        tt_text_is_listed(argv[0], "python|python3|torchrun|accelerate|mpirun|srun|bash"))
        TT_TRY(tt_fail(TT_EUSAGE,
                       "launch: '%s' is not a titan command, and titan launch runs no other programs\n"
                       "help: titan launch -n %lld -- train --config FILE",
                       argv[0], (long long)ranks));
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], ":") == 0)
            TT_TRY(tt_fail(TT_EUSAGE,
                           "launch: mpirun and srun take ':' for the end of a command and begin another one\n"
                           "help: leave it out; a job runs one command"));
    if (getenv("SLURM_JOB_ID")) // NOLINT(concurrency-mt-unsafe): one thread
        add_srun(&line, (int)ranks);
    else
        TT_TRY(add_mpirun(&line, (int)ranks, tt_args_value(args, "hostfile", 0)));
    path = tt_path_of_program();
    add(&line, "%s", path ? path : "titan");
    tt_free(path);
    for (int i = strcmp(argv[0], "titan") == 0; i < argc; i++)
        add(&line, "%s", argv[i]);
    if (!tt_args_has(args, "print")) {
        rc = run_line(&line, argc, argv);
        goto out;
    }
    for (int i = 0; i < line.n; i++) {
        tt_text_add(&shown, "%s", i ? " " : "");
        tt_text_add_word(&shown, line.word[i]);
    }
    tt_print("%s\n", shown.text);
    tt_text_release(&shown);
out:
    for (int i = 0; i < line.n; i++)
        tt_free(line.word[i]);
    tt_free(line.word);
    return rc;
}

static bool is_n(const char *word)
{
    return strcmp(word, "-n") == 0 || strcmp(word, "-np") == 0;
}

/*
 * The options end at "--", or at the first word that is neither an option nor its value; that word is the command to
 * run. -n, which users know from mpirun, means --ranks.
 */
static int run(int argc, char **argv)
{
    static char long_name[] = "--ranks";
    char **own = tt_calloc((size_t)argc + 1, sizeof *own);
    struct tt_args *args = NULL;
    int n_own = 0, first, rc = 0;

    while (n_own < argc && argv[n_own][0] == '-' && strcmp(argv[n_own], "--") != 0) {
        bool takes_value = is_n(argv[n_own]);

        for (const struct tt_option *o = options; o->name; o++)
            takes_value =
                takes_value || (o->value && tt_text_begins(argv[n_own], "--") && strcmp(argv[n_own] + 2, o->name) == 0);
        n_own += takes_value && n_own + 1 < argc ? 2 : 1;
    }
    first = n_own + (n_own < argc && strcmp(argv[n_own], "--") == 0);
    for (int i = 0; i < n_own; i++) {
        own[i] = is_n(argv[i]) ? long_name : argv[i];
        if (!is_n(argv[i])) /* before it mistakes the value of -n for the command */
            TT_TRY(check_other(argv[i], argv[i + 1]));
    }
    TT_TRY(tt_args_parse(n_own, own, options, &args));
    rc = tt_args_has(args, "help") ? tt_command_help(&tt_command_launch) : launch(args, argc - first, argv + first);
out:
    tt_args_free(args);
    tt_free(own);
    return rc < 0 ? tt_cli_fail(rc) : rc > 0 ? rc : tt_cli_finish();
}

const struct tt_command tt_command_launch = {
    .name = "launch",
    .arguments = "-n N [--print] -- train ...",
    .summary = "run on N ranks, each bound to its cores",
    .usage = usage,
    .options = options,
    .main = run,
};
