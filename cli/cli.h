/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLI_H
#define TT_CLI_CLI_H

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/config/args.h"
#include "core/config/config.h"
#include "core/graph/dtype.h"

/**
 * What the commands share. A command is a function of its arguments; argv[0] is the first word after its name. It
 * prints data on stdout and everything else on stderr, and returns the process's exit code. Only this layer prints and
 * chooses exit codes.
 */

/** One command. The table of all is in main.c; help and completion are made of it. */
struct tt_command {
    const char *name;
    const char *arguments; /* "show|check [--config FILE]..." */
    const char *summary;
    int (*run)(int argc, char **argv);
    const struct tt_option *options; /* ends with a row of zeros; NULL: none */
};

/** Prints "titan: error: MESSAGE" with this thread's message on stderr; returns the exit code of rc. */
int tt_cli_fail(int rc);

/** Prints json to stdout, indented, and releases it; 0, or the exit code of a failed write. */
int tt_cli_print_json(json_t *json);

/** Writes json to stdout in the same form, as a part of a larger value: its further lines are `depth` levels in. */
void tt_cli_put_json(const json_t *json, int depth);

/** Flushes stdout; 0, or the exit code of a failed write (a full disk), with a message on stderr. */
int tt_cli_finish(void);

/**
 * Appends the beginning of a help text in lines of at most TT_HELP_COLUMNS: paragraphs are filled, and lines of usage
 * and of examples, which begin with "usage:" or a space, are folded between options.
 */
void tt_cli_add_usage(struct tt_text *out, const char *usage);

/**
 * The --help of a command, on stdout: usage, which ends with an empty line, then a line for each of options; 0, or the
 * exit code of a failed write.
 */
int tt_cli_print_help(const char *usage, const struct tt_option *options);

/** Notes, warnings and progress of library code go to stderr from now on. */
void tt_cli_install_log(void);

/**
 * tt_args_parse for a command with --config: when an option is wrong, the message also has the configuration's faults.
 * The caller frees *ret_args even after an error.
 */
int tt_cli_parse(int argc, char **argv, const struct tt_option *options, struct tt_args **ret_args) TT_MUST_CHECK;

/** The most ranks that a command plans for. */
enum { TT_MOST_RANKS = 1 << 20 };

/**
 * Loads the files of --config, or the built-in quick run if there is none, and the overrides. `command` is for the
 * message about a word that is neither. The caller frees the configuration.
 */
int tt_cli_load_config(const char *command, const struct tt_args *args, struct tt_config **ret_cfg) TT_MUST_CHECK;

/* A variation of the configuration of a command line. */
struct tt_cli_variant {
    const char *flag[10]; /* overrides after those of the command line: "--parallelism.fsdp_engine=planned" */
    int n;
    struct tt_text *unbuilt; /* not NULL: see tt_config_tolerate_unbuilt */
    bool files;              /* also check the files that the configuration names (tt_job_check_files) */
};

/** The same with a variation. */
int tt_cli_load_variant(const char *command, const struct tt_args *args, const struct tt_cli_variant *variant,
                        struct tt_config **ret_cfg) TT_MUST_CHECK;

/** Reads a whole number, low to high, from an option of a command; leaves *value alone when it was not given. */
int tt_cli_count(const char *command, const struct tt_args *args, const char *option, int64_t low, int64_t high,
                 int64_t *value) TT_MUST_CHECK;

/** Reads --dtype, float32 or bfloat16; leaves *dtype alone when it was not given. */
int tt_cli_dtype(const struct tt_args *args, enum tt_dtype *dtype) TT_MUST_CHECK;

/** Fails because the value of an option is none of some words; the message has the one that was meant. */
int tt_cli_fail_choice(const char *option, const char *found, const char *const *choices, int n);

/** The type's name in options and JSON. */
const char *tt_cli_dtype_name(enum tt_dtype dtype);

/** `titan train`: see titan-train(1). */
int tt_command_train(int argc, char **argv);
extern const struct tt_option tt_train_options[];

/** `titan plan`: see titan-plan(1). */
int tt_command_plan(int argc, char **argv);
extern const struct tt_option tt_plan_options[];

/** `titan estimate`: see titan-estimate(1). */
int tt_command_estimate(int argc, char **argv);
extern const struct tt_option tt_estimate_options[];

/** `titan launch`: see titan-launch(1). */
int tt_command_launch(int argc, char **argv);
extern const struct tt_option tt_launch_options[];

/** `titan tune`: see titan-tune(1). */
int tt_command_tune(int argc, char **argv);
extern const struct tt_option tt_tune_options[];

/** `titan trace summary DIR`: see titan-trace(1). */
int tt_command_trace(int argc, char **argv);
extern const struct tt_option tt_trace_options[];

/** `titan bench`: see titan-bench(1). */
int tt_command_bench(int argc, char **argv);
extern const struct tt_option tt_bench_options[];

/** `titan config show|check|diff|init|import`: see titan-config(1). */
int tt_command_config(int argc, char **argv);
extern const struct tt_option tt_config_options[];

/** `titan models [--json] [--seq-len N]`: the registry. */
int tt_command_models(int argc, char **argv);
extern const struct tt_option tt_models_options[];

/** `titan ckpt list|inspect|verify|diff|consolidate|convert|average|gc|rollback`: see titan-ckpt(1). */
int tt_command_ckpt(int argc, char **argv);
extern const struct tt_option tt_ckpt_options[];

/** `titan generate`: see titan-generate(1). */
int tt_command_generate(int argc, char **argv);
extern const struct tt_option tt_generate_options[];

/** `titan eval`: see titan-eval(1). */
int tt_command_eval(int argc, char **argv);
extern const struct tt_option tt_eval_options[];

/** `titan status [DIR]`: see titan-status(1). */
int tt_command_status(int argc, char **argv);
extern const struct tt_option tt_status_options[];

/** `titan plot RUN...`: see titan-plot(1). */
int tt_command_plot(int argc, char **argv);
extern const struct tt_option tt_plot_options[];

/** `titan export --csv RUN`: see titan-export(1). */
int tt_command_export(int argc, char **argv);
extern const struct tt_option tt_export_options[];

/** `titan compare A B`: see titan-compare(1). */
int tt_command_compare(int argc, char **argv);
extern const struct tt_option tt_compare_options[];

/** `titan data pack|inspect`: see titan-data(1). */
int tt_command_data(int argc, char **argv);
extern const struct tt_option tt_data_options[];

/** `titan doctor`: see titan-doctor(1). */
int tt_command_doctor(int argc, char **argv);
extern const struct tt_option tt_doctor_options[];

/** `titan completion bash|zsh|fish`, with the n commands of the table: see titan-completion(1). */
int tt_cli_completion(int argc, char **argv, const struct tt_command *commands, int n);
extern const struct tt_option tt_completion_options[];

/* --- how a command runs --- */

/** Words, with "|" between them, that other programs have for one of titan's. */
struct tt_cli_elsewhere {
    const char *words, *here;
};

/**
 * TT_EUSAGE: a command has no such verb, or needs one (word NULL). Names the verb that was probably meant, or all n.
 *   elsewhere  what people expect under other names
 */
int tt_cli_fail_verb(const char *command, const char *word, const char *const *verb, int n,
                     const struct tt_cli_elsewhere *elsewhere, int n_elsewhere);

/**
 * A command on one process that takes no configuration: prints its help, or calls `run` with notes and warnings shown.
 * run returns 0, a negative code with its message, or an exit code already explained. Returns the exit code.
 *   name  for the message about an option that there is not
 */
int tt_cli_run(int argc, char **argv, const char *name, const char *usage, const struct tt_option *options,
               int (*run)(const struct tt_args *args));

/**
 * The work of a command on each rank: returns 0, a negative code with its message, or an exit code already explained.
 */
typedef int (*tt_cli_ranks_fn)(struct tt_comm *comm, void *arg);

/**
 * Runs fn with a communicator of all ranks: MPI's under a launcher, else of one rank. Rank 0 shows notes and reports
 * the error, once. Returns the process's exit code, the same on every rank.
 *   args of the command line, for comm.init_timeout_seconds; may be NULL
 *   rc   the result of reading the command line: if it failed on any rank, fn does not run
 */
int tt_cli_run_ranks(int rc, const struct tt_args *args, tt_cli_ranks_fn fn, void *arg);

/** A command on ranks that takes a configuration: prints its help, or calls fn with struct tt_args as its argument. */
int tt_cli_run_job(int argc, char **argv, const char *usage, const struct tt_option *options, tt_cli_ranks_fn fn);

#endif
