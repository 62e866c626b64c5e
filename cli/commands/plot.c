/* SPDX-License-Identifier: MIT
 *
 * titan plot RUN...: curves of runs, on the terminal or in files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "cli/watch/chart.h"
#include "cli/watch/runs.h"
#include "core/base/mem.h"
#include "core/os/file.h"

const struct tt_option tt_plot_options[] = {
    {"key", NULL, "FIELD,...", "what to draw (default: loss, norm, lr, speed): numeric fields of metrics.jsonl"},
    {"from", NULL, "STEP", "draw from this step on"},
    {"to", NULL, "STEP", "draw up to this step"},
    {"smooth", NULL, "W", "exponential mean; the past has weight W, at least 0 and less than 1, such as 0.9"},
    {"log", NULL, NULL, "logarithmic scale of the values"},
    {"ascii", NULL, NULL, "draw with ASCII characters, as if the locale were not UTF-8"},
    {"svg", NULL, "FILE", "write a picture"},
    {"png", NULL, "FILE", "write a picture; needs rsvg-convert"},
    {"html", NULL, "FILE", "write a page that shows the numbers at the mouse pointer; it needs no network"},
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

/* --- what to draw --- */

static int read_smooth(const struct tt_args *args, double *weight)
{
    const char *text = tt_args_last(args, "smooth");
    char *end = NULL;

    if (!text)
        return 0;
    *weight = strtod(text, &end);
    if (end == text || *end || !(*weight >= 0.0 && *weight < 1.0))
        return tt_fail(TT_EUSAGE, "plot: --smooth '%s' is not a number of at least 0 and less than 1", text);
    return 0;
}

/* The runs that the words mean; a folder of runs is all of them. */
static int find_runs(const struct tt_args *args, struct tt_runs *runs)
{
    int rc = 0;

    for (int i = 0; i < args->n_words; i++)
        TT_TRY(tt_runs_add(args->word[i], runs));
    if (!args->n_words)
        TT_TRY(tt_runs_add("outputs", runs));
    if (runs->n > RUNS_MOST)
        rc = tt_fail(TT_EUSAGE, "plot: at most %d runs, there are %d\nhelp: name some of them, such as %s %s",
                     RUNS_MOST, runs->n, runs->folder[0], runs->folder[1]);
out:
    return rc;
}

/* Cuts the lists of --key, which may repeat, into words of ret_text. */
static int read_keys(const struct tt_args *args, char **ret_text, const char **key, int *ret_n)
{
    struct tt_text all = {0};
    char *rest = NULL;
    int n = 0;

    for (int i = 0; tt_args_value(args, "key", i); i++)
        tt_text_add(&all, "%s,", tt_args_value(args, "key", i));
    *ret_text = all.text;
    for (char *word = all.text ? strtok_r(all.text, ",", &rest) : NULL; word; word = strtok_r(NULL, ",", &rest)) {
        if (n == KEYS_MOST)
            return tt_fail(TT_EUSAGE, "plot: --key takes at most %d fields", KEYS_MOST);
        key[n++] = word;
    }
    *ret_n = n;
    return 0;
}

/* --- the terminal --- */

/* Whether the locale that a user asks for is UTF-8. It need not be installed. */
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

static int write_files(const struct tt_args *args, const struct tt_chart *chart)
{
    const char *svg = tt_args_last(args, "svg"), *png = tt_args_last(args, "png"), *html = tt_args_last(args, "html");
    struct tt_text picture = {0}, page = {0};
    int rc = 0;

    tt_chart_draw_svg(chart, &picture);
    tt_chart_draw_html(chart, &page);
    if (svg)
        TT_TRY(tt_file_replace(svg, picture.text, picture.size));
    if (html)
        TT_TRY(tt_file_replace(html, page.text, page.size));
    if (png)
        rc = tt_chart_png(&picture, png);
out:
    tt_text_release(&picture);
    tt_text_release(&page);
    return rc;
}

static int plot(const struct tt_args *args)
{
    struct tt_runs runs = {0};
    struct tt_chart_options o = {.from = 0, .to = INT64_MAX - 1, .log_scale = tt_args_has(args, "log")};
    struct tt_chart chart = {.n_runs = 0};
    const char *key[KEYS_MOST];
    char *text = NULL;
    int rc = 0;

    TT_TRY(find_runs(args, &runs));
    TT_TRY(read_smooth(args, &o.smooth));
    TT_TRY(tt_cli_count("plot", args, "from", 0, INT64_MAX - 1, &o.from));
    TT_TRY(tt_cli_count("plot", args, "to", 0, INT64_MAX - 1, &o.to));
    TT_TRY(read_keys(args, &text, key, &o.n_keys));
    o.key = key;
    TT_TRY(tt_chart_make(runs.n, (const char *const *)runs.folder, &o, &chart));
    if (tt_args_has(args, "svg") || tt_args_has(args, "png") || tt_args_has(args, "html"))
        rc = write_files(args, &chart);
    else
        print(&chart, tt_args_has(args, "ascii"));
out:
    tt_chart_release(&chart);
    tt_runs_release(&runs);
    tt_free(text);
    return rc;
}

int tt_command_plot(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = tt_args_parse(argc, argv, tt_plot_options, &args), code;

    if (rc == 0 && args->n_overrides)
        rc = tt_fail(TT_EUSAGE, "plot: '%s' is not an option\nhelp: titan plot --help lists them", args->override[0]);
    if (rc < 0) {
        code = tt_cli_fail(rc);
    } else if (tt_args_has(args, "help")) {
        code = tt_cli_print_help(usage, tt_plot_options);
    } else {
        tt_cli_install_log();
        rc = plot(args);
        code = rc < 0 ? tt_cli_fail(rc) : tt_cli_finish();
    }
    tt_args_free(args);
    return code;
}
