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
 * Shared functions of the commands. Each command is a row, tt_command_NAME, in its own file; main.c lists them.
 * Commands print data on stdout and everything else on stderr. Only this layer prints and chooses exit codes.
 */

/**
 * The work of a command on each rank: returns 0, a negative code with its message, or an exit code that the command has
 * already explained.
 */
typedef int (*tt_cli_ranks_fn)(struct tt_comm *comm, void *arg);

/** A verb of a command, such as `show` of `titan config show`. */
struct tt_cli_verb {
    const char *name;
    int (*run)(const struct tt_args *args); /* as for a command; args->word[0] is the verb */
    const char *arguments, *doc;            /* the verb's line in the command's --help; doc NULL: no line */
    /* smallest and largest number of words after the verb; checked only if `takes` is not NULL */
    int low, high;
    const char *needs; /* those words, for a message: "two paths" */
    /* the verb's options except json and help, between bars; NULL: neither words nor options are checked */
    const char *takes;
};

/** Words that other programs use, with "|" between them, and titan's word for the same thing. */
struct tt_cli_elsewhere {
    const char *words, *here;
};

/** A command. titan makes help and completion from these rows. The tables in a row end with a row of zeros. */
struct tt_command {
    const char *name;
    const char *arguments; /* "show|check [--config FILE]..." */
    const char *summary;
    const char *usage;                     /* the beginning of its --help, up to an empty line */
    const struct tt_option *options;       /* if "config" is among them, the command also takes overrides */
    const char *more;                      /* the end of its --help; may be NULL */
    void (*add_more)(struct tt_text *out); /* appends further text to the end of `doc`; may be NULL */

    /* Exactly one of these members is set. Verbs and `run` return the same as tt_cli_ranks_fn; `main` returns the exit
     * code. */
    const struct tt_cli_verb *verbs;
    const struct tt_cli_elsewhere *elsewhere; /* words from other programs, with titan's; may be NULL */
    int (*run)(const struct tt_args *args);   /* on one process */
    tt_cli_ranks_fn run_ranks;                /* on all ranks; its argument is the struct tt_args */
    /* reads its command line itself; argv[0] is the word after the command's name */
    int (*main)(int argc, char **argv);
};

extern const struct tt_command tt_command_train, tt_command_plan, tt_command_estimate, tt_command_tune,
    tt_command_launch, tt_command_status, tt_command_plot, tt_command_compare, tt_command_export, tt_command_trace,
    tt_command_bench, tt_command_config, tt_command_models, tt_command_ckpt, tt_command_generate, tt_command_eval,
    tt_command_data, tt_command_new, tt_command_reference, tt_command_doctor, tt_command_completion;

/** All commands, in the order of the help; NULL ends them. In main.c. */
extern const struct tt_command *const tt_commands[];

/** Whether a command reads a configuration, and therefore takes keys as flags. */
bool tt_command_takes_keys(const struct tt_command *command);

/**
 * Runs a command, or prints its help; returns the exit code of the process. If the command takes no keys, notes and
 * warnings are shown (on ranks, always).
 */
int tt_command_run(const struct tt_command *command, int argc, char **argv);

/** Checks the words and options of the verb args->word[0], and runs the verb. TT_EUSAGE: there is no such verb. */
int tt_command_run_verb(const struct tt_command *command, const struct tt_args *args);

/** The --help of a command, on stdout; 0, or the exit code of a failed write. */
int tt_command_help(const struct tt_command *command);

/**
 * The name, among n, that the user probably meant by a word, or titan's word for it from `elsewhere` (may be NULL);
 * NULL: none.
 */
const char *tt_cli_meant(const char *word, const char *const *names, int n, const struct tt_cli_elsewhere *elsewhere);

/** Prints "titan: error: MESSAGE" with this thread's message on stderr; returns the exit code of rc. */
int tt_cli_fail(int rc);

/** Prints json to stdout on one line, and releases it; does not check the write. */
void tt_cli_print_line(json_t *json);

/** Prints json to stdout, indented, and releases it; 0, or the exit code of a failed write. */
int tt_cli_print_json(json_t *json);

/**
 * Writes json to stdout in the same form, as part of a larger value: indents all lines except the first by `depth`
 * levels.
 */
void tt_cli_put_json(const json_t *json, int depth);

/** Flushes stdout; 0, or the exit code of a failed write (a full disk), with a message on stderr. */
int tt_cli_finish(void);

/**
 * Appends the beginning of a help text in lines of at most TT_HELP_COLUMNS: fills paragraphs, and folds lines of usage
 * and examples, which begin with "usage:" or a space, between options.
 */
void tt_cli_add_usage(struct tt_text *out, const char *usage);

/** Notes, warnings and progress of library code go to stderr from now on. */
void tt_cli_install_log(void);

struct tt_model;

/** Names the keys that the user set although they have no effect in this configuration, in one note. */
void tt_cli_note_idle(const struct tt_config *cfg, const struct tt_model *model);

/**
 * tt_args_parse for a command with --config: if an option is wrong, the message also lists the configuration's faults.
 * The caller frees *ret_args even after an error.
 */
int tt_cli_parse(int argc, char **argv, const struct tt_option *options, struct tt_args **ret_args) TT_MUST_CHECK;

/** The most ranks that a command plans for. */
enum { TT_MOST_RANKS = 1 << 20 };

/**
 * Loads the files of --config, or the built-in quick run if there is none, and the overrides. `command` is for the
 * message about a word that is neither a file nor an override. The caller frees the configuration.
 */
int tt_cli_load_config(const char *command, const struct tt_args *args, struct tt_config **ret_cfg) TT_MUST_CHECK;

/* A variation of how the command line is read. */
struct tt_cli_variant {
    const char *flag[10]; /* overrides after the command line: "--parallelism.fsdp_engine=planned" */
    int n;
    struct tt_text *unbuilt; /* not NULL: see tt_config_tolerate_unbuilt */
    bool files;              /* also check the files that the configuration names (tt_job_check_files) */
    bool unchecked;          /* do not check the values (tt_job_check) */
    int first_file;          /* this word and all later ones are configuration files; 0: no words are allowed */
    const char *fallback;    /* the file to read if none is named; NULL: the built-in quick run */
};

/** The same with a variation. */
int tt_cli_load_variant(const char *command, const struct tt_args *args, const struct tt_cli_variant *variant,
                        struct tt_config **ret_cfg) TT_MUST_CHECK;

/**
 * Reads a whole number from low to high from an option of a command; leaves *value unchanged if the option was not
 * given.
 */
int tt_cli_count(const char *command, const struct tt_args *args, const char *option, int64_t low, int64_t high,
                 int64_t *value) TT_MUST_CHECK;

/**
 * Reads a number from low to high from an option of a command; leaves *value unchanged if the option was not given.
 *   wanted  the expected value, for the message: "a number of 0 or more"
 */
int tt_cli_real(const char *command, const struct tt_args *args, const char *option, double low, double high,
                const char *wanted, double *value) TT_MUST_CHECK;

/**
 * Reads comma-separated lists of words from an option, which may be repeated.
 *   word       [most] pointers into *ret_text, which the caller frees with tt_free even after an error
 */
int tt_cli_list(const char *command, const struct tt_args *args, const char *option, int most, const char **word,
                int *ret_n, char **ret_text) TT_MUST_CHECK;

/** Reads --dtype, float32 or bfloat16; leaves *dtype unchanged if it was not given. */
int tt_cli_dtype(const struct tt_args *args, enum tt_dtype *dtype) TT_MUST_CHECK;

/** Fails because the value of an option is not one of the allowed words; the message suggests the word that the user
 * probably meant. */
int tt_cli_fail_choice(const char *option, const char *found, const char *const *choices, int n);

/** The type's name in options and JSON. */
const char *tt_cli_dtype_name(enum tt_dtype dtype);

/** Members of a JSON result: an integer (0 if the member is missing), and a string ("-" if it is missing). */
int64_t tt_cli_int(const json_t *json, const char *key);
const char *tt_cli_text(const json_t *json, const char *key);

/**
 * Runs fn with a communicator of all ranks: MPI's under a launcher, otherwise one of a single rank. Rank 0 shows notes
 * and reports the error, once. Returns the process's exit code, the same on every rank.
 *   args arguments of the command line, for comm.init_timeout_seconds; may be NULL
 *   rc    the result of reading the command line: if it failed on any rank, fn does not run
 */
int tt_cli_run_ranks(int rc, const struct tt_args *args, tt_cli_ranks_fn fn, void *arg);

#endif
