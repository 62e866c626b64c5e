/* SPDX-License-Identifier: MIT
 *
 * Shared code of the commands: how errors end a command, how notes and progress are shown, and on which ranks a command
 * runs.
 */
#include "cli/cli.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <ctype.h>

#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/comm/comm.h"
#include "core/kernels/kernels.h"
#include "core/os/file.h"
#include "parallel/comm/mpi.h"
#include "trainer/job/job.h"
#include "trainer/run/console.h"

int tt_cli_fail(int rc)
{
    (void)fflush(stdout);
    tt_screen_say("titan: error: %s\n", tt_error_message());
    return tt_error_exit_code(rc);
}

int tt_cli_finish(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    if (errno == EPIPE)
        return 0; /* as in `titan ... | head`: the reader has read enough */
    return tt_cli_fail(tt_fail(TT_EIO, "cannot write to standard output: %s", strerror(errno)));
}

enum { JSON_INDENT_COLUMNS = 2 };

void tt_cli_put_json(const json_t *json, int depth)
{
    char *text = tt_json_indented(json, JSON_INDENT_COLUMNS);
    struct tt_text shown = {0};

    tt_text_add_shown(&shown, text, strlen(text));
    for (size_t i = 0; i < shown.size; i++) {
        (void)fputc(shown.text[i], stdout);
        if (shown.text[i] == '\n')
            (void)printf("%*s", JSON_INDENT_COLUMNS * depth, "");
    }
    tt_text_release(&shown);
    tt_free(text);
}

int tt_cli_print_json(json_t *json)
{
    tt_cli_put_json(json, 0);
    (void)fputc('\n', stdout);
    json_decref(json);
    return tt_cli_finish();
}

void tt_cli_print_line(json_t *json)
{
    char *text = tt_json_text(json);

    tt_print("%s\n", text);
    tt_free(text);
    json_decref(json);
}

/* Where a usage line may be broken: before an option or a bracket, but not inside brackets. 0: nowhere. */
static size_t fold_at(const char *line, size_t n, size_t room)
{
    size_t best = 0;
    int depth = 0;

    for (size_t i = 1; i < n && i <= room; i++) {
        depth += (line[i - 1] == '[') - (line[i - 1] == ']');
        if (depth == 0 && line[i] == ' ' && i + 1 < n && (line[i + 1] == '[' || line[i + 1] == '-') &&
            line[i - 1] != ' ')
            best = i + 1;
    }
    return best;
}

/* Adds a line of a usage or an example; continuation lines begin below the word after the command and its verb. */
static void add_literal(struct tt_text *out, const char *line, size_t n)
{
    const char *titan = strstr(line, "titan "), *from = titan && titan < line + n ? titan : line;
    size_t at = n > TT_HELP_COLUMNS ? fold_at(line, n, TT_HELP_COLUMNS) : 0;
    int indent;

    from += strspn(from, " ");
    while (from < line + n && islower((unsigned char)*from)) {
        from += strcspn(from, " \n");
        from += strspn(from, " ");
    }
    indent = (int)(from - line);
    while (at) {
        tt_text_add(out, "%.*s\n%*s", (int)at - 1, line, indent, "");
        line += at;
        n -= at;
        at = n > TT_HELP_COLUMNS - (size_t)indent ? fold_at(line, n, TT_HELP_COLUMNS - (size_t)indent) : 0;
    }
    tt_text_add(out, "%.*s\n", (int)n, line);
}

void tt_cli_add_usage(struct tt_text *out, const char *usage)
{
    while (*usage) {
        size_t n = strcspn(usage, "\n");

        if (n == 0) {
            tt_text_add(out, "\n");
        } else if (*usage == ' ' || tt_text_begins(usage, "usage:")) {
            add_literal(out, usage, n);
        } else { /* a paragraph, which extends to the next blank line */
            const char *end = strstr(usage, "\n\n");
            char *text;

            n = end ? (size_t)(end - usage) : strlen(usage);
            n -= usage[n - 1] == '\n';
            text = tt_strndup(usage, n);
            for (char *c = text; *c; c++)
                *c = *c == '\n' ? ' ' : *c;
            tt_args_help_row(out, 0, "", text);
            tt_free(text);
        }
        usage += n + (usage[n] == '\n');
    }
}

int tt_command_help(const struct tt_command *command)
{
    struct tt_text text = {0};
    bool any = false;

    tt_cli_add_usage(&text, command->usage);
    for (const struct tt_cli_verb *verb = command->verbs; verb && verb->doc; verb++) {
        enum { LEFT_COLUMNS = 27 };
        char *left = tt_format("%-12s %s", verb->name, verb->arguments);

        tt_args_help_row(&text, LEFT_COLUMNS, left, verb->doc);
        tt_free(left);
        any = true;
    }
    tt_text_add(&text, any ? "\n" : "");
    tt_args_help(command->options, &text);
    tt_cli_add_usage(&text, command->more ? command->more : "");
    if (command->add_more)
        command->add_more(&text);
    tt_print("%s", text.text);
    tt_text_release(&text);
    return tt_cli_finish();
}

int tt_cli_load_config(const char *command, const struct tt_args *args, struct tt_config **ret_cfg)
{
    return tt_cli_load_variant(command, args, &(struct tt_cli_variant){0}, ret_cfg);
}

/* Reads the configuration that the command line names, in the given variation; reports its errors. */
static int read_config(const struct tt_args *args, const struct tt_cli_variant *variant, struct tt_config *cfg)
{
    int n = 0, rc;
    const char **files = tt_calloc((size_t)(args->n_options + args->n_words) + 1, sizeof *files);
    const char **flags = tt_calloc((size_t)(args->n_overrides + variant->n) + 1, sizeof *flags), *file;
    struct tt_config_input input = {.files = files,
                                    .args = flags,
                                    .n_errors = args->n_errors,
                                    .errors = args->errors,
                                    .check = variant->unchecked ? NULL
                                             : variant->files   ? tt_job_check_files
                                                                : tt_job_check};

    while ((file = tt_args_value(args, "config", n)))
        files[n++] = file;
    for (int i = variant->first_file; variant->first_file && i < args->n_words; i++)
        files[n++] = args->word[i];
    if (n == 0)
        files[n++] = variant->fallback ? variant->fallback : "builtin:quick";
    input.n_files = n;
    for (int i = 0; i < args->n_overrides; i++)
        flags[input.n_args++] = args->override[i];
    for (int i = 0; i < variant->n; i++)
        flags[input.n_args++] = variant->flag[i];
    rc = tt_config_read(cfg, &input);
    tt_free((void *)files);
    tt_free((void *)flags);
    return rc;
}

int tt_cli_parse(int argc, char **argv, const struct tt_option *options, struct tt_args **ret_args)
{
    struct tt_args *args = NULL;
    struct tt_config *cfg = NULL;
    int rc = tt_args_parse(argc, argv, options, &args);

    *ret_args = args;
    if (rc == 0 || !args)
        return rc;
    rc = tt_config_new(&cfg);
    if (rc == 0) /* reports all errors of the command line and the configuration at once */
        rc = read_config(args, &(struct tt_cli_variant){0}, cfg);
    tt_config_free(cfg);
    return rc;
}

int tt_cli_load_variant(const char *command, const struct tt_args *args, const struct tt_cli_variant *variant,
                        struct tt_config **ret_cfg)
{
    const char *word = args->n_words && !variant->first_file ? args->word[0] : NULL;
    struct tt_config *cfg = NULL;
    int rc = 0;

    if (word && (tt_text_ends(word, ".yaml") || tt_text_ends(word, ".yml") || tt_text_ends(word, ".toml")))
        return tt_fail(TT_EUSAGE, "%s: unexpected argument '%s'\nhelp: did you mean `titan %s --config %s`?", command,
                       word, command, word);
    if (word)
        return tt_fail(TT_EUSAGE, "%s: unexpected argument '%s'\nhelp: titan %s [--config FILE] [--section.key=value]",
                       command, word, command);
    TT_TRY(tt_config_new(&cfg));
    if (variant->unbuilt)
        tt_config_tolerate_unbuilt(cfg, variant->unbuilt);
    TT_TRY(read_config(args, variant, cfg));
    *ret_cfg = cfg;
    cfg = NULL;
out:
    tt_config_free(cfg);
    return rc;
}

int tt_cli_count(const char *command, const struct tt_args *args, const char *option, int64_t low, int64_t high,
                 int64_t *value)
{
    const char *text = tt_args_last(args, option);
    char *end = NULL;
    long long read;

    if (!text)
        return 0;
    errno = 0;
    read = strtoll(text, &end, 10);
    if (errno || end == text || *end || read < low || read > high)
        return tt_fail(TT_EUSAGE, "%s: --%s '%s' is not a whole number from %lld to %lld", command, option, text,
                       (long long)low, (long long)high);
    *value = read;
    return 0;
}

int tt_cli_real(const char *command, const struct tt_args *args, const char *option, double low, double high,
                const char *wanted, double *value)
{
    const char *text = tt_args_last(args, option);
    char *end = NULL;
    double read;

    if (!text)
        return 0;
    read = strtod(text, &end);
    if (end == text || *end || !(read >= low) || !(read <= high))
        return tt_fail(TT_EUSAGE, "%s: --%s '%s' is not %s", command, option, text, wanted);
    *value = read;
    return 0;
}

int tt_cli_list(const char *command, const struct tt_args *args, const char *option, int most, const char **word,
                int *ret_n, char **ret_text)
{
    struct tt_text all = {0};
    char *rest = NULL;
    int n = 0;

    for (int i = 0; tt_args_value(args, option, i); i++)
        tt_text_add(&all, "%s,", tt_args_value(args, option, i));
    *ret_text = all.text;
    for (char *at = all.text ? strtok_r(all.text, ",", &rest) : NULL; at; at = strtok_r(NULL, ",", &rest)) {
        if (n == most)
            return tt_fail(TT_EUSAGE, "%s: --%s takes at most %d fields", command, option, most);
        word[n++] = at;
    }
    *ret_n = n;
    return 0;
}

int tt_cli_fail_choice(const char *option, const char *found, const char *const *choices, int n)
{
    const char *near = tt_config_meant(found, choices, n);
    struct tt_text all = {0};
    int rc;

    for (int i = 0; i < n; i++)
        tt_text_add(&all, "%s%s", i == 0 ? "" : i == n - 1 ? " or " : ", ", choices[i]);
    rc = tt_fail(TT_EUSAGE, "--%s '%s' is not %s", option, found, all.text);
    if (near)
        (void)tt_error_add_hint(rc, "did you mean --%s %s?", option, near);
    tt_text_release(&all);
    return rc;
}

const char *tt_cli_dtype_name(enum tt_dtype dtype)
{
    return dtype == TT_BF16 ? "bfloat16" : "float32";
}

int tt_cli_dtype(const struct tt_args *args, enum tt_dtype *dtype)
{
    const char *text = tt_args_last(args, "dtype");

    if (!text)
        return 0;
    for (enum tt_dtype known = TT_F32; known <= TT_BF16; known++) {
        if (strcmp(text, tt_cli_dtype_name(known)) == 0) {
            *dtype = known;
            return 0;
        }
    }
    return tt_cli_fail_choice("dtype", text, (const char *const[]){"float32", "bfloat16"}, 2);
}

int64_t tt_cli_int(const json_t *json, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(json, key));
}

const char *tt_cli_text(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "-";
}

/* The progress of long work: on a terminal a line that is rewritten in place, in a file one plain line every ten
 * seconds. */
struct progress {
    bool moves;
    double last_sec;
};

static struct progress progress_state;

/* a file may be read twice, but a repeated message is shown once */
static void show_log(void *arg, enum tt_log_level level, const char *text)
{
    static char last[512];

    (void)arg;
    if (level == TT_LOG_NOTE && strcmp(text, last) == 0)
        return;
    (void)snprintf(last, sizeof last, "%s", text);
    tt_screen_say("titan: %s%s\n", level == TT_LOG_WARNING ? "warning: " : "", text);
}

static void show_progress(void *arg, const char *what, double done, double total)
{
    struct progress *p = arg;
    double now = tt_clock_sec();
    char text[160];

    if (p->last_sec == 0.0) /* short work shows no progress */
        p->last_sec = now;
    if (total > 0.0 && done >= total) {
        tt_streams_erase_live();
        p->last_sec = 0.0;
        return;
    }
    if (now - p->last_sec < (p->moves ? 0.2 : 10.0))
        return;
    p->last_sec = now;
    if (total > 0.0)
        (void)snprintf(text, sizeof text, "titan: %s %3.0f%%", what, 100.0 * done / total);
    else
        (void)snprintf(text, sizeof text, "titan: %s %.0f", what, done);
    if (p->moves)
        tt_screen_live(text);
    else
        (void)fprintf(stderr, "%s\n", text);
}

static void add_idle(void *arg, const struct tt_config_row *key, const char *value, const char *why)
{
    struct tt_text *text = arg;

    tt_text_add(text, "%s%s %s (%s)", text->size ? ", " : "", key->path, value, why);
}

void tt_cli_note_idle(const struct tt_config *cfg, const struct tt_model *model)
{
    struct tt_text text = {0};

    tt_job_idle_each(cfg, model->dims.moe.experts > 0, add_idle, &text);
    if (text.size)
        tt_note("keys without effect here: %s", text.text);
    tt_text_release(&text);
}

void tt_cli_install_log(void)
{
    progress_state.moves = tt_screen_live_begin();
    tt_log_set_sink(show_log, NULL);
    tt_log_set_progress(show_progress, &progress_state);
}

const char *tt_cli_meant(const char *word, const char *const *names, int n, const struct tt_cli_elsewhere *elsewhere)
{
    const char *near = tt_text_nearest(word, names, n);

    for (; !near && elsewhere && elsewhere->words; elsewhere++)
        if (tt_text_is_listed(word, elsewhere->words))
            near = elsewhere->here;
    return near;
}

static int check_verb(const char *command, const struct tt_cli_verb *verb, const struct tt_args *args)
{
    int n = args->n_words - 1;

    for (int i = 0; i < args->n_options; i++) {
        const char *name = args->option[i].option->name;
        char word[64];

        (void)snprintf(word, sizeof word, "|%s|", name);
        if (strcmp(name, "json") != 0 && !strstr(verb->takes, word))
            return tt_fail(TT_EUSAGE, "'titan %s %s' takes no --%s\nhelp: titan %s --help lists the options of each",
                           command, verb->name, name, command);
    }
    if (n < verb->low || n > verb->high)
        return tt_fail(TT_EUSAGE, "'titan %s %s' needs %s\nhelp: titan %s %s %s", command, verb->name, verb->needs,
                       command, verb->name, verb->arguments);
    return 0;
}

int tt_command_run_verb(const struct tt_command *command, const struct tt_args *args)
{
    enum { MOST = 16 };
    const char *word = args->n_words ? args->word[0] : NULL, *name = command->name, *near, *names[MOST];
    struct tt_text all = {0};
    int n = 0, rc;

    for (const struct tt_cli_verb *verb = command->verbs; verb->name; verb++) {
        if (word && strcmp(word, verb->name) == 0) {
            tt_text_release(&all);
            rc = verb->takes ? check_verb(name, verb, args) : 0;
            return rc < 0 ? rc : verb->run(args);
        }
        tt_text_add(&all, "%s%s", n ? ", " : "", verb->name);
        names[n++] = verb->name;
    }
    near = word ? tt_cli_meant(word, names, n, command->elsewhere) : NULL;
    if (near)
        rc = tt_fail(TT_EUSAGE, "unknown command '%s %s'\nhelp: did you mean '%s %s'?", name, word, name, near);
    else if (word)
        rc = tt_fail(TT_EUSAGE, "unknown command '%s %s'\nhelp: use one of %s %s", name, word, name, all.text);
    else
        rc = tt_fail(TT_EUSAGE, "'titan %s' needs to know what to do\nhelp: use one of %s %s", name, name, all.text);
    tt_text_release(&all);
    return rc;
}

bool tt_command_takes_keys(const struct tt_command *command)
{
    return command->options && strcmp(command->options[0].name, "config") == 0;
}

/* --- commands that run on ranks --- */

/* While a rank waits, the user gets a message every so many seconds. */
enum { REPORT_SEC = 30, START_TIMEOUT_SEC = 300 };

/* Any rank may print this, so it does not use the log, which only rank 0 shows. */
static void say(const char *text)
{
    tt_screen_say("titan: %s\n", text);
}

/*
 * The time that MPI may take to start; the default if `args` is NULL. Errors in the configuration do not matter here:
 * the ranks read it again, and agree on its errors. If it cannot be read, the default applies.
 */
static double start_timeout(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    double timeout_sec = START_TIMEOUT_SEC;

    if (args && tt_cli_load_config("", args, &cfg) == 0)
        timeout_sec = (double)cfg->comm.init_timeout_seconds;
    tt_config_free(cfg);
    return timeout_sec;
}

/* Whether a signal asked the ranks to end, which is not an error. */
static bool was_stopped(int rc)
{
    return rc == TT_ESTOPPED || rc == TT_EINTERRUPTED;
}

int tt_cli_run_ranks(int rc, const struct tt_args *args, tt_cli_ranks_fn fn, void *arg)
{
    const char *checks = getenv("TITAN_CHECK_MESSAGES"); // NOLINT(concurrency-mt-unsafe): titan never calls setenv
    struct tt_comm *comm = NULL;
    int code;

    if (rc == 0)
        rc = tt_kernels_check();
    if (tt_comm_mpi_launched()) {
        /* after an error, do not read the configuration, or its messages would replace the error's */
        double timeout_sec = start_timeout(rc == 0 ? args : NULL);
        int before = rc;

        if ((rc = tt_comm_mpi_new(timeout_sec, &comm)) < 0)
            return tt_cli_fail(rc);
        rc = tt_comm_agree(comm, before);
    } else {
        comm = tt_comm_self_new();
    }
    comm->say = say;
    comm->report_sec = REPORT_SEC;
    if (comm->rank == 0)
        tt_cli_install_log();
    if (rc == 0)
        rc = fn(comm, arg);
    if (checks && (rc == 0 || was_stopped(rc))) { /* for tests: even an abandoned step must receive all messages */
        int checked = tt_comm_check_messages(comm);

        rc = checked < 0 ? checked : rc;
    }
    code = rc > 0 ? rc : tt_error_exit_code(rc);
    if (rc == TT_ECOMM) { /* a rank has ended or does not respond, so ranks can no longer agree */
        char *message = tt_format("titan: error: %s", tt_error_message());

        tt_console_add(message);
        tt_console_add("\n");
        tt_comm_abort(comm, code, message);
        tt_free(message);
    }
    if (comm->rank == 0 && was_stopped(rc))
        say(tt_error_message());
    else if (rc < 0 && comm->rank == 0)
        (void)tt_cli_fail(rc);
    tt_comm_free(comm);
    return code;
}

int tt_command_run(const struct tt_command *command, int argc, char **argv)
{
    bool takes_keys = tt_command_takes_keys(command);
    struct tt_args *args = NULL;
    int rc, code;

    if (command->main)
        return command->main(argc, argv);
    rc = takes_keys ? tt_cli_parse(argc, argv, command->options, &args)
                    : tt_args_parse(argc, argv, command->options, &args);
    if (rc == 0 && tt_args_has(args, "help")) {
        code = tt_command_help(command);
        goto out;
    }
    if (rc == 0 && args->n_overrides && !takes_keys)
        rc = tt_fail(TT_EUSAGE, "%s: '%s' is not an option\nhelp: titan %s --help lists them", command->name,
                     args->override[0], command->name);
    if (command->run_ranks) {
        code = tt_cli_run_ranks(rc, args, command->run_ranks, args);
        goto out;
    }
    if (rc == 0 && !takes_keys)
        tt_cli_install_log();
    if (rc == 0)
        rc = command->run ? command->run(args) : tt_command_run_verb(command, args);
    code = rc < 0 ? tt_cli_fail(rc) : rc > 0 ? rc : tt_cli_finish();
out:
    tt_args_free(args);
    return code;
}
