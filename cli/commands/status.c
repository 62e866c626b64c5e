/* SPDX-License-Identifier: MIT
 *
 * titan status [DIR]...: the state and progress of runs.
 */
#include "cli/watch/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "cli/watch/history.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const struct tt_option options[] = {
    {"follow", NULL, NULL,
     "keep showing it until the run ends; if the output is not a terminal, a line for every report"},
    {"json", NULL, NULL, "print JSON; with --follow one object a line"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] = "usage: titan status [DIR]... [--follow] [--json]\n\n"
                            "Shows whether a run is alive, its step, speed and last checkpoint, and what is\n"
                            "wrong. After a crash it shows why the run ended and the command that continues\n"
                            "it. DIR is the folder of a run, or a folder of runs (default: ./outputs).\n"
                            "Several runs are shown as a table.\n\n";

enum { LABEL_COLUMNS = 13, POLL_MSEC = 500 };

/* --- text --- */

static const char *string(const json_t *json, const char *key)
{
    return json_string_value(json_object_get(json, key));
}

/* NaN: null. */
static double number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* Adds a number in the given format, or another text if the number is not known or not finite. */
static void add_finite(struct tt_text *out, const char *format, double x, const char *otherwise)
{
    char text[64];

    (void)snprintf(text, sizeof text, format,
                   x); // NOLINT(clang-diagnostic-format-nonliteral): of this file
    tt_text_add(out, "%s", isfinite(x) ? text : otherwise);
}

static void add_progress(const json_t *s, struct tt_text *out)
{
    char step[32], total[32], age[32];
    double at = number(s, "step"), all = number(s, "total_steps");

    tt_text_add(out, "  step       %s", tt_text_count(step, sizeof step, tt_cli_int(s, "step")));
    if (all > 0.0)
        tt_text_add(out, " of %s (%.0f %%)", tt_text_count(total, sizeof total, (int64_t)all), floor(100.0 * at / all));
    if (isfinite(number(s, "last_record_s")))
        tt_text_add(out, ", last record %s ago", tt_text_duration(age, sizeof age, number(s, "last_record_s")));
    tt_text_add(out, "\n");
}

static void add_loss(const json_t *s, struct tt_text *out)
{
    const json_t *validation = json_object_get(s, "validation");
    const char *name;
    json_t *loss;
    char tokens[32];

    if (json_object_get(s, "loss") && tt_cli_int(s, "step") > 0) {
        tt_text_add(out, "  loss       ");
        add_finite(out, "%.5f", number(s, "loss"), "not finite");
        add_finite(out, ", grad_norm %.4f", number(s, "grad_norm"), "");
        add_finite(out, ", lr %.2e", number(s, "lr"), "");
        if (tt_cli_int(s, "ntokens_seen"))
            tt_text_add(out, ", %s tokens", tt_text_count(tokens, sizeof tokens, tt_cli_int(s, "ntokens_seen")));
        tt_text_add(out, "\n");
    }
    if (json_is_object(validation)) {
        tt_text_add(out, "  validation ");
        add_finite(out, "%.5f", number(validation, "loss"), "not finite");
        tt_text_add(out, " at step %" PRId64 "\n", tt_cli_int(validation, "step"));
    }
    json_object_foreach(json_object_get(validation, "sets"), name, loss)
        tt_text_add(out, "             %.5f on %s\n", json_number_value(loss), name);
}

static void add_speed(const json_t *s, struct tt_text *out)
{
    double one = number(s, "step_time_s"), median = number(s, "median_step_time_s"), rate = number(s, "tps");
    char a[32];

    if (!isfinite(one))
        return;
    tt_text_add(out, "  speed      ");
    if (rate >= 0.0 && rate < 1e15)
        tt_text_add(out, "%s tokens/s a rank, ", tt_text_count(a, sizeof a, (int64_t)llround(rate)));
    tt_text_add(out, "%s a step", tt_text_duration(a, sizeof a, one));
    if (isfinite(median) && median > 0.0)
        tt_text_add(out, " (median %s)", tt_text_duration(a, sizeof a, median));
    if (isfinite(number(s, "eta_s")))
        tt_text_add(out, "\n  eta        %s", tt_text_duration(a, sizeof a, number(s, "eta_s")));
    tt_text_add(out, "\n");
}

static void add_keeping(const json_t *s, struct tt_text *out)
{
    const json_t *checkpoint = json_object_get(s, "checkpoint");
    char bytes[32], age[32];

    if (json_is_object(checkpoint))
        tt_text_add(out, "  checkpoint step-%" PRId64 ", %s", tt_cli_int(checkpoint, "step"),
                    tt_text_bytes(bytes, sizeof bytes, number(checkpoint, "bytes")));
    else
        tt_text_add(out, "  checkpoint none");
    if (isfinite(number(checkpoint, "age_s")))
        tt_text_add(out, ", %s ago", tt_text_duration(age, sizeof age, number(checkpoint, "age_s")));
    tt_text_add(out, "\n");
    if (isfinite(number(s, "memory_gib"))) {
        tt_text_add(out, "  memory     %.2f GiB a rank at most", number(s, "memory_gib"));
        add_finite(out, " (predicted: %.2f GiB and libraries)", number(s, "memory_predicted_gib"), "");
        tt_text_add(out, "\n");
    }
}

static void add_end(const json_t *s, struct tt_text *out)
{
    const json_t *warnings = json_object_get(s, "warnings");
    const char *error = string(s, "error");

    for (size_t i = 0; i < json_array_size(warnings); i++)
        tt_text_add(out, "  warning    %s\n", json_string_value(json_array_get(warnings, i)));
    if (error) {
        tt_text_add(out, "  why        ");
        tt_text_add_replaced(out, error, strlen(error), "\n", "\n             ");
        tt_text_add(out, "\n");
    } else if (string(s, "last_words")) {
        tt_text_add(out, "  why        the run left no record of its end; its last output: %s\n",
                    string(s, "last_words"));
    } else if (strcmp(string(s, "state"), "killed") == 0) {
        tt_text_add(out, "  why        unknown: the run left no record of its end; the cause may be SIGKILL, a lack of "
                         "memory, or a power cut\n");
    } else if (strcmp(string(s, "state"), "unknown") == 0) {
        tt_text_add(out, "  why        metrics.jsonl has no record: the run ended before it wrote one\n");
    }
}

static void add_status(const json_t *s, struct tt_text *out)
{
    int64_t ranks = tt_cli_int(s, "ranks");
    char age[32];

    tt_text_add(out, "%s: %s", string(s, "folder"), string(s, "state"));
    if (tt_cli_int(s, "exit") > 0)
        tt_text_add(out, " (exit code %" PRId64 ")", tt_cli_int(s, "exit"));
    if (string(s, "host"))
        tt_text_add(out, ", %s process %" PRId64, string(s, "host"), tt_cli_int(s, "pid"));
    if (ranks)
        tt_text_add(out, ", %" PRId64 " rank%s", ranks, ranks == 1 ? "" : "s");
    if (isfinite(number(s, "started")))
        tt_text_add(out, ", started %s ago",
                    tt_text_duration(age, sizeof age, tt_clock_wall_sec() - number(s, "started")));
    tt_text_add(out, "\n");
    add_progress(s, out);
    add_loss(s, out);
    add_speed(s, out);
    add_keeping(s, out);
    add_end(s, out);
}

/* Prints the status. The command stays on one line of any length, because pasting broken lines would run several
 * commands. */
static void put_status(const json_t *s, FILE *to)
{
    const char *command = string(s, "command");
    struct tt_text text = {0};

    add_status(s, &text);
    tt_screen_put(to, text.text, tt_screen_columns(STDOUT_FILENO), LABEL_COLUMNS);
    tt_text_release(&text);
    if (!command)
        return;
    tt_text_add(&text, "  continue   %s\n", command);
    tt_text_make_printable(&text);
    (void)fputs(text.text, to);
    tt_text_release(&text);
}

/* --- following --- */

/* Prints the status over the previous one, which took *lines lines. */
static void redraw(const json_t *s, int *lines)
{
    char *shown = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&shown, &size);

    put_status(s, out ? out : stdout);
    if (!out || fclose(out) != 0)
        return;
    if (*lines)
        (void)printf("\033[%dA\033[J", *lines);
    (void)fputs(shown, stdout);
    *lines = 0;
    for (size_t i = 0; i < size; i++)
        *lines += shown[i] == '\n';
    free(shown); // NOLINT: the C library allocated it
}

static void print_line(const json_t *s)
{
    char eta[32];

    tt_print("%s  step: %" PRId64 "/%" PRId64, string(s, "state"), tt_cli_int(s, "step"), tt_cli_int(s, "total_steps"));
    if (isfinite(number(s, "loss")))
        tt_print("  loss: %8.5f", number(s, "loss"));
    if (isfinite(number(s, "step_time_s")))
        tt_print("  step_time: %.3g s", number(s, "step_time_s"));
    if (isfinite(number(s, "eta_s")))
        tt_print("  eta: %s", tt_text_duration(eta, sizeof eta, number(s, "eta_s")));
    tt_print("\n");
}

/* Whether a record has been added since the status `before`. */
static bool is_news(const json_t *s, const json_t *before)
{
    static const char *const keys[] = {"state", "step", "starts"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_equal(json_object_get(s, keys[i]), json_object_get(before, keys[i])))
            return true;
    return false;
}

static int follow(struct tt_history *history, bool json)
{
    static const struct timespec between = {0, POLL_MSEC * 1000000L};
    bool terminal = !json && isatty(STDOUT_FILENO) == 1, alive = true;
    json_t *before = NULL, *now = NULL;
    int lines = 0, rc = 0;

    for (;;) {
        TT_TRY(tt_status_make(history, &now));
        alive = json_is_true(json_object_get(now, "alive"));
        if (terminal)
            redraw(now, &lines);
        else if (is_news(now, before) && json)
            tt_cli_print_line(json_incref(now));
        else if (is_news(now, before) && alive)
            print_line(now);
        if (fflush(stdout) != 0 || !alive)
            break;
        json_decref(before);
        before = now;
        now = NULL;
        (void)nanosleep(&between, NULL);
    }
    if (!terminal && !json)
        put_status(now, stdout);
out:
    json_decref(before);
    json_decref(now);
    return rc;
}

/* --- several runs --- */

/* titan-status(1) lists the order in which columns are left out on a narrow terminal. */
static const struct tt_column columns[] = {{"run", 0, false, 0, 0, 0},     {"state", 9, false, 2, 0, 0},
                                           {"step", 13, true, 2, 0, 0},    {"loss", 9, true, 2, 0, 0},
                                           {"tokens/s", 9, true, 2, 2, 0}, {"age", 10, true, 2, 1, 0}};

static void add_run(const json_t *s, struct tt_columns *table)
{
    double rate = number(s, "tps") * fmax((double)tt_cli_int(s, "ranks"), 1.0);
    char a[32], b[32];

    tt_columns_cell(table, "%s", string(s, "folder"));
    tt_columns_cell(table, "%s", string(s, "state"));
    if (tt_cli_int(s, "total_steps") > 0)
        tt_columns_cell(table, "%s/%s", tt_text_count(a, sizeof a, tt_cli_int(s, "step")),
                        tt_text_count(b, sizeof b, tt_cli_int(s, "total_steps")));
    else
        tt_columns_cell(table, "%s", tt_text_count(a, sizeof a, tt_cli_int(s, "step")));
    if (isfinite(number(s, "loss")))
        tt_columns_cell(table, "%.5f", number(s, "loss"));
    else
        tt_columns_cell(table, "-");
    tt_columns_cell(table, "%s", rate >= 0.0 && rate < 1e15 ? tt_text_count(a, sizeof a, (int64_t)llround(rate)) : "-");
    tt_columns_cell(table, "%s",
                    isfinite(number(s, "last_record_s")) ? tt_text_duration(a, sizeof a, number(s, "last_record_s"))
                                                         : "-");
}

static int read_status(const char *folder, json_t **ret_status)
{
    struct tt_history history = {.path = NULL};
    int rc = 0;

    TT_TRY(tt_history_open(folder, &history));
    history.tail_bytes = TT_STATUS_TAIL_BYTES;
    rc = tt_status_make(&history, ret_status);
out:
    tt_history_release(&history);
    return rc;
}

/* A run that cannot be read gets a row that says so, and the others are shown. */
static void show_runs(const struct tt_runs *runs, bool json)
{
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    json_t *all = json_array();

    for (int i = 0; i < runs->n; i++) {
        json_t *status = NULL;

        if (read_status(runs->folder[i], &status) < 0) {
            (void)json_array_append_new(all, json_pack("{s:s, s:i, s:o, s:s, s:o}", "type", "status", "schema", 1,
                                                       "folder", tt_json_string(runs->folder[i]), "state", "unreadable",
                                                       "error", tt_json_string(tt_error_message())));
            tt_error_drop_hint();
            tt_columns_cell(&table, "%s", runs->folder[i]);
            tt_columns_cell(&table, "unreadable");
            tt_columns_rest(&table, 2, tt_error_message());
            continue;
        }
        add_run(status, &table);
        (void)json_array_append_new(all, status);
    }
    if (json) {
        (void)tt_cli_print_json(json_incref(all));
        tt_columns_release(&table);
    } else {
        tt_columns_print(&table);
    }
    json_decref(all);
}

/* --- one run --- */

/* Shows the runs below the folder of a run, as earlier versions of titan made them in ./outputs. The JSON does not
 * contain them. */
static int show_below(const char *folder, bool is_text)
{
    struct tt_runs below = {0};
    int rc = 0;

    TT_TRY(tt_runs_add_below(folder, &below));
    if (below.n && !is_text) {
        tt_note("'%s' is a run; %d more below it %s not shown: titan status %s", folder, below.n,
                below.n == 1 ? "is" : "are", below.folder[0]);
    } else if (below.n) {
        tt_print("\n");
        show_runs(&below, false);
    }
out:
    tt_runs_release(&below);
    return rc;
}

static int show_one(const char *folder, bool follows, bool json)
{
    struct tt_history history = {.path = NULL};
    json_t *status = NULL;
    int rc = 0;

    TT_TRY(tt_history_open(folder, &history));
    history.tail_bytes = TT_STATUS_TAIL_BYTES;
    if (follows || json)
        TT_TRY(show_below(folder, false));
    if (follows) {
        rc = follow(&history, json);
        goto out;
    }
    TT_TRY(tt_status_make(&history, &status));
    if (json) {
        (void)tt_cli_print_json(json_incref(status));
        goto out;
    }
    put_status(status, stdout);
    rc = show_below(folder, true);
out:
    json_decref(status);
    tt_history_release(&history);
    return rc;
}

static int show(const struct tt_args *args)
{
    struct tt_runs runs = {0};
    bool json = tt_args_has(args, "json"), follows = tt_args_has(args, "follow");
    int rc = 0;

    TT_TRY(tt_runs_find(args->n_words, args->word, &runs));
    if (runs.n == 1)
        rc = show_one(runs.folder[0], follows, json);
    else if (follows)
        rc = tt_fail(TT_EUSAGE,
                     "status: --follow takes one run, there are %d\nhelp: for instance titan status %s --follow",
                     runs.n, runs.folder[0]);
    else
        show_runs(&runs, json);
out:
    tt_runs_release(&runs);
    return rc;
}

const struct tt_command tt_command_status = {
    .name = "status",
    .arguments = "[DIR] [--follow]",
    .summary = "whether a run is alive, its progress, and how to continue it",
    .usage = usage,
    .options = options,
    .run = show,
};
