/* SPDX-License-Identifier: MIT
 *
 * titan plot RUN...: curves of runs, on the terminal or in files; once, or for the lifetime of a run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "cli/watch/chart.h"
#include "cli/watch/history.h"
#include "cli/watch/status.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const struct tt_option options[] = {
    {"key", NULL, "FIELD,...", "what to draw (default: loss, norm, lr, speed): numeric fields of metrics.jsonl"},
    {"from", NULL, "STEP", "draw from this step on"},
    {"to", NULL, "STEP", "draw up to this step"},
    {"smooth", NULL, "W", "exponential mean; the past has weight W, at least 0 and less than 1, such as 0.9"},
    {"log", NULL, NULL, "logarithmic scale of the values"},
    {"ascii", NULL, NULL, "draw with ASCII characters, as if the locale were not UTF-8"},
    {"svg", NULL, "FILE", "write a picture"},
    {"png", NULL, "FILE", "write a picture; needs rsvg-convert"},
    {"html", NULL, "FILE",
     "write a page for a browser, with numbers at the pointer, smoothing and zoom; it needs no network"},
    {"follow", NULL, NULL,
     "with --html: write the page again until the runs have ended; a browser shows it as it grows"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan plot [RUN]... [--key FIELD,...] [--smooth W] [--log] [--svg FILE] [options]\n\n"
    "Draws the curves of runs: loss with validation, gradient norm, learning rate,\n"
    "speed. RUN is the folder of a run, its metrics.jsonl, or a folder of runs\n"
    "(default: ./outputs); several runs are drawn over each other. Without --svg,\n"
    "--png or --html the picture is made of characters and fits the terminal.\n\n";

enum { KEYS_MOST = 16, RUNS_MOST = 26, COLUMNS = 80, LINES = 24 };

/* Seconds after which --follow looks for new records, and the browser for a new page. Without new records, the page
 * is rewritten after WRITE_SEC, so that the browser sees that the command is still running. */
enum { POLL_SEC = 1, PAGE_SEC = 3, WRITE_SEC = 30 };

struct plot {
    const struct tt_args *args;
    struct tt_chart_options options;
    int n_runs;
    const char *const *run;
    struct tt_history *history; /* one per run */
};

/* --- the terminal --- */

/* Whether the user's locale, which need not be installed, is a UTF-8 locale. */
static bool is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]); // NOLINT(concurrency-mt-unsafe): one thread

        if (value && value[0])
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

static void print(const struct tt_chart *chart, bool ascii)
{
    const char *no_color = getenv("NO_COLOR"); // NOLINT(concurrency-mt-unsafe): one thread
    struct tt_chart_screen screen = {.columns = COLUMNS,
                                     .lines = LINES,
                                     .utf8 = !ascii && is_utf8(),
                                     .color = isatty(STDOUT_FILENO) == 1 && !(no_color && no_color[0])};
    struct tt_text text = {0};

    tt_screen_size(STDOUT_FILENO, &screen.columns, &screen.lines);
    tt_chart_draw_text(chart, &screen, &text);
    (void)fputs(text.text, stdout);
    tt_text_release(&text);
}

/* --- files --- */

static int write_pictures(const struct plot *p, const struct tt_chart *chart)
{
    const char *svg = tt_args_last(p->args, "svg"), *png = tt_args_last(p->args, "png");
    struct tt_text picture = {0};
    int rc = 0;

    if (!svg && !png)
        return 0;
    tt_chart_draw_svg(chart, &picture);
    if (svg)
        TT_TRY(tt_file_replace(svg, picture.text, picture.size));
    if (png)
        rc = tt_chart_png(&picture, png);
out:
    tt_text_release(&picture);
    return rc;
}

/* Writes the page, which itself smooths the numbers and chooses their scale. A page that will be written again may have
 * no numbers at first; waits: whether the user has been told so. */
static int write_page(const struct plot *p, const json_t *status, bool again, bool *waits)
{
    struct tt_chart_options plain = p->options;
    struct tt_chart_page page = {.history = p->history,
                                 .status = status,
                                 .smooth = p->options.smooth,
                                 .log_scale = p->options.log_scale,
                                 .follow_sec = again ? PAGE_SEC : 0};
    struct tt_chart chart = {.n_runs = 0};
    struct tt_text text = {0};
    int rc = 0;

    plain.smooth = 0.0;
    plain.log_scale = false;
    rc = tt_chart_make(p->n_runs, p->run, p->history, &plain, &chart);
    if (rc == TT_EDATA && again) {
        if (!*waits)
            tt_note("%s is not written yet: %s", tt_args_last(p->args, "html"), tt_error_message());
        *waits = true;
        return 0;
    }
    TT_TRY(rc);
    tt_chart_draw_html(&chart, &page, &text);
    rc = tt_file_replace(tt_args_last(p->args, "html"), text.text, text.size);
out:
    tt_text_release(&text);
    tt_chart_release(&chart);
    return rc;
}

/* The number of records; unlike the ages in a status, it changes only with new records. */
static int64_t records(const struct plot *p)
{
    int64_t n = 0;

    for (int r = 0; r < p->n_runs; r++)
        n += p->history[r].lines;
    return n;
}

/* Writes the page; with --follow, rewrites it until no run is alive. */
static int write_pages(const struct plot *p)
{
    static const struct timespec between = {.tv_sec = POLL_SEC};
    bool follows = tt_args_has(p->args, "follow"), alive = true, waits = false;
    json_t *status = json_array();
    double written_sec = 0.0;
    int64_t written = -1;
    int rc = 0;

    while (alive) {
        alive = false;
        (void)json_array_clear(status);
        for (int r = 0; r < p->n_runs; r++) {
            json_t *found = NULL;

            TT_TRY(tt_status_make(&p->history[r], &found)); /* reads the records that were appended */
            alive = alive || json_is_true(json_object_get(found, "alive"));
            (void)json_array_append_new(status, found);
        }
        if (follows && written < 0 && alive)
            tt_note("%s is written again until the runs have ended; Ctrl-C ends it", tt_args_last(p->args, "html"));
        alive = alive && follows;
        if (!alive || records(p) != written || tt_clock_sec() - written_sec > WRITE_SEC) {
            TT_TRY(write_page(p, status, alive, &waits));
            written = records(p);
            written_sec = tt_clock_sec();
        }
        if (alive)
            (void)nanosleep(&between, NULL);
    }
out:
    json_decref(status);
    return rc;
}

static int draw(const struct plot *p)
{
    bool page = tt_args_has(p->args, "html"), pictures = tt_args_has(p->args, "svg") || tt_args_has(p->args, "png");
    struct tt_chart chart = {.n_runs = 0};
    int rc = 0;

    if (pictures || !page) {
        TT_TRY(tt_chart_make(p->n_runs, p->run, p->history, &p->options, &chart));
        TT_TRY(write_pictures(p, &chart));
    }
    if (page)
        rc = write_pages(p);
    else if (!pictures)
        print(&chart, tt_args_has(p->args, "ascii"));
out:
    tt_chart_release(&chart);
    return rc;
}

static int plot(const struct tt_args *args)
{
    struct plot p = {.args = args, .options = {.from = 0, .to = INT64_MAX - 1, .log_scale = tt_args_has(args, "log")}};
    struct tt_runs runs = {0};
    const char *key[KEYS_MOST];
    char *text = NULL;
    int rc = 0;

    if (tt_args_has(args, "follow") && !tt_args_has(args, "html"))
        return tt_fail(TT_EUSAGE, "plot: --follow needs --html FILE, the page that is written again\n"
                                  "help: titan status --follow shows a run on the terminal");
    TT_TRY(tt_runs_find(args->n_words, args->word, &runs));
    if (runs.n > RUNS_MOST)
        TT_TRY(tt_fail(TT_EUSAGE, "plot: at most %d runs, there are %d\nhelp: name some of them, such as %s %s",
                       RUNS_MOST, runs.n, runs.folder[0], runs.folder[1]));
    TT_TRY(tt_cli_real("plot", args, "smooth", 0.0, 1.0 - 0x1p-53, "a number of at least 0 and less than 1",
                       &p.options.smooth));
    TT_TRY(tt_cli_count("plot", args, "from", 0, INT64_MAX - 1, &p.options.from));
    TT_TRY(tt_cli_count("plot", args, "to", 0, INT64_MAX - 1, &p.options.to));
    TT_TRY(tt_cli_list("plot", args, "key", KEYS_MOST, key, &p.options.n_keys, &text));
    p.options.key = key;
    p.run = (const char *const *)runs.folder;
    p.history = tt_calloc((size_t)runs.n, sizeof *p.history);
    for (; p.n_runs < runs.n; p.n_runs++)
        TT_TRY(tt_history_load(p.run[p.n_runs], false, &p.history[p.n_runs]));
    rc = draw(&p);
out:
    for (int r = 0; r < p.n_runs; r++)
        tt_history_release(&p.history[r]);
    tt_free(p.history);
    tt_runs_release(&runs);
    tt_free(text);
    return rc;
}

const struct tt_command tt_command_plot = {
    .name = "plot",
    .arguments = "[RUN]... [--key FIELD,...]",
    .summary = "draw loss, norm, learning rate and speed, as text or in files",
    .usage = usage,
    .options = options,
    .run = plot,
};
