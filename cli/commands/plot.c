/* SPDX-License-Identifier: MIT
 *
 * titan plot RUN...: curves of runs, on the terminal or in files; once, or for the lifetime of a run.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <spawn.h>

#include "cli/cli.h"
#include "cli/run/page.h"
#include "cli/run/screen.h"
#include "cli/watch/chart.h"
#include "cli/watch/compare.h"
#include "cli/watch/history.h"
#include "cli/watch/status.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* Curves as a page: what page.html draws, as JSON. The page needs no network. */

/* --- curves --- */

static json_t *curve_json(const struct tt_curve *c)
{
    json_t *step = json_array(), *value = json_array();

    for (int64_t i = 0; i < c->n; i++) {
        (void)json_array_append_new(step, json_integer((json_int_t)c->step[i]));
        (void)json_array_append_new(value, json_real(c->value[i]));
    }
    return json_pack("{s:o, s:o}", "step", step, "value", value);
}

static json_t *curves_json(const struct tt_curve *curves, const struct tt_curve *means, int n)
{
    json_t *list = json_array();

    for (int r = 0; r < n; r++) {
        json_t *curve = curve_json(&curves[r]);

        if (means && means[r].n) {
            json_t *mean = curve_json(&means[r]);

            (void)json_object_set_new(mean, "every", json_real((double)curves[r].points / (double)means[r].n));
            (void)json_object_set_new(curve, "means", mean);
        }
        (void)json_array_append_new(list, curve);
    }
    return list;
}

static json_t *panels_json(const struct tt_chart *chart)
{
    json_t *panels = json_array();

    for (int i = 0; i < chart->n_panels; i++) {
        const struct tt_panel *p = &chart->panel[i];

        (void)json_array_append_new(panels,
                                    json_pack("{s:o, s:b, s:o, s:o}", "title", tt_json_string(p->title), "smooth",
                                              (int)p->smooths, "curves", curves_json(p->curve, p->means, chart->n_runs),
                                              "marks", curves_json(p->marks, NULL, chart->n_runs)));
    }
    return panels;
}

/* --- runs --- */

static json_t *config_of(const struct tt_chart_page *page, int run)
{
    return json_object_get(page->history[run].run, "config");
}

static const char *description_of(const struct tt_chart_page *page, int run)
{
    const char *text = json_string_value(json_object_get(json_object_get(config_of(page, run), "job"), "description"));

    return text ? text : "";
}

static void add_key(json_t *keys, int run, const char *key, json_t *value)
{
    (void)json_array_append_new(json_array_get(keys, (size_t)run), json_pack("[s, O]", key, value));
}

/* The number of ranks is not a key, but readers want to know it too. */
static void add_ranks(const struct tt_chart_page *page, int n, json_t *keys)
{
    json_t *first = NULL, *ranks;
    bool differ = false;

    for (int r = 0; r < n; r++) {
        ranks = json_object_get(page->history[r].run, "world");
        first = first ? first : ranks;
        differ = differ || (ranks && !json_equal(ranks, first));
    }
    for (int r = 0; r < n && differ; r++) {
        ranks = json_object_get(page->history[r].run, "world");
        if (ranks)
            add_key(keys, r, "ranks", ranks);
    }
}

/* For each run, the keys in which the runs differ, with the values of that run; nothing for runs whose configuration is
 * not known. */
static json_t *differing_keys(const struct tt_chart_page *page, int n)
{
    json_t *keys = json_array(), *found, *row;
    const json_t **config = tt_calloc((size_t)n, sizeof *config);
    int *run = tt_calloc((size_t)n, sizeof *run), known = 0;
    size_t i;

    for (int r = 0; r < n; r++) {
        (void)json_array_append_new(keys, json_array());
        if (!config_of(page, r))
            continue;
        run[known] = r;
        config[known++] = config_of(page, r);
    }
    add_ranks(page, n, keys);
    found = tt_compare_configs(known, config);
    json_array_foreach(found, i, row)
    {
        const char *key = json_string_value(json_object_get(row, "key"));

        for (int k = 0; k < known && strcmp(key, TT_KEY_NAME(job.description)) != 0; k++)
            add_key(keys, run[k], key, json_array_get(json_object_get(row, "values"), (size_t)k));
    }
    json_decref(found);
    tt_free((void *)config);
    tt_free(run);
    return keys;
}

static json_t *about_json(const struct tt_chart *chart, const struct tt_chart_page *page)
{
    static const char *const members[] = {"state", "alive", "step", "total_steps"};
    json_t *keys = differing_keys(page, chart->n_runs), *list = json_array();

    for (int r = 0; r < chart->n_runs; r++) {
        const json_t *status = json_array_get(page->status, (size_t)r);
        json_t *about = json_pack("{s:o, s:O}", "description", tt_json_string(description_of(page, r)), "keys",
                                  json_array_get(keys, (size_t)r));

        for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
            (void)json_object_set(about, members[i], json_object_get(status, members[i]));
        (void)json_array_append_new(list, about);
    }
    json_decref(keys);
    return list;
}

/* --- the page --- */

/* Adds the name of a run for a heading: its path without uninformative parts. */
static void add_name(struct tt_text *t, const char *path)
{
    size_t size = strlen(path), tail = strlen("/metrics.jsonl");

    while (tt_text_begins(path, "./") && size > 2) {
        path += 2;
        size -= 2;
    }
    if (size > tail && tt_text_ends(path, "/metrics.jsonl"))
        size -= tail;
    while (size > 1 && path[size - 1] == '/')
        size--;
    tt_text_add_bytes(t, path, size);
}

enum { NAMES_MOST = 3 }; /* most names in a heading */

static void add_heading(struct tt_text *t, const struct tt_chart *chart)
{
    if (chart->n_runs > NAMES_MOST)
        tt_text_add(t, "%d runs", chart->n_runs);
    for (int r = 0; r < chart->n_runs && chart->n_runs <= NAMES_MOST; r++) {
        tt_text_add(t, "%s", r ? ", " : "");
        add_name(t, chart->run[r]);
    }
}

static json_t *data_json(const struct tt_chart *chart, const struct tt_chart_page *page, const char *heading)
{
    json_t *runs = json_array(), *colors = json_array();

    for (int r = 0; r < chart->n_runs; r++) {
        (void)json_array_append_new(runs, tt_json_string(chart->run[r]));
        (void)json_array_append_new(colors, json_string(tt_chart_color(r)));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:f, s:f, s:o, s:f, s:b, s:i, s:f}", "name", tt_json_string(heading), "runs",
                     runs, "colors", colors, "about", about_json(chart, page), "first", chart->first, "last",
                     chart->last, "panels", panels_json(chart), "smooth", page->smooth, "log", (int)page->log_scale,
                     "follow", page->follow_sec, "written", tt_clock_wall_sec());
}

static void draw_html(const struct tt_chart *chart, const struct tt_chart_page *page, struct tt_text *out)
{
    const char *description = chart->n_runs == 1 ? description_of(page, 0) : "", *rest;
    struct tt_text heading = {0}, title = {0};
    json_t *data;
    char *text;

    add_heading(&heading, chart);
    data = data_json(chart, page, heading.text);
    text = tt_json_text(data);
    tt_text_add(&title, "%s%s%s", heading.text, *description ? ": " : "", description);
    tt_page_begin(out, title.text);
    rest = tt_page_up_to(out, tt_chart_page_text, "@DATA@");
    tt_text_add_replaced(out, text, strlen(text), "<", "\\u003c"); /* so that names cannot act as markup */
    tt_text_add(out, "%s", rest);
    tt_free(text);
    json_decref(data);
    tt_text_release(&heading);
    tt_text_release(&title);
}

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

/* Sets *value to the number in an environment variable or, without one, to the terminal's number. Does not change
 * *value if the number is too small. */
static void take_size(const char *variable, int terminal, int least, int *value)
{
    const char *text = getenv(variable); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    long told = text ? strtol(text, NULL, 10) : 0;

    if (told >= least && told <= 10000)
        *value = (int)told;
    else if (terminal >= least)
        *value = terminal;
}

/* Sets columns and lines to the size of the terminal fd; the variables COLUMNS and LINES take precedence. A size that
 * is unknown or below 20 columns or 5 lines leaves its argument unchanged. */
static void screen_size(int fd, int *columns, int *lines)
{
    enum { LEAST = 20, LEAST_LINES = 5 };
    struct winsize size = {0};

    if (isatty(fd) != 1 || ioctl(fd, TIOCGWINSZ, &size) < 0)
        size = (struct winsize){0};
    take_size("COLUMNS", size.ws_col, LEAST, columns);
    take_size("LINES", size.ws_row, LEAST_LINES, lines);
}

static void print(const struct tt_chart *chart, bool ascii)
{
    const char *no_color = getenv("NO_COLOR"); // NOLINT(concurrency-mt-unsafe): one thread
    struct tt_chart_screen screen = {.columns = COLUMNS,
                                     .lines = LINES,
                                     .utf8 = !ascii && is_utf8(),
                                     .color = isatty(STDOUT_FILENO) == 1 && !(no_color && no_color[0])};
    struct tt_text text = {0};

    screen_size(STDOUT_FILENO, &screen.columns, &screen.lines);
    tt_chart_draw_text(chart, &screen, &text);
    (void)fputs(text.text, stdout);
    tt_text_release(&text);
}

/* --- files --- */

static int convert(const char *svg, const char *png)
{
    const char *argv[] = {"rsvg-convert", "-o", png, svg, NULL};
    pid_t pid;
    int status = 0, error = posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)(uintptr_t)argv, environ);

    if (error == ENOENT)
        return tt_fail(TT_EUSAGE, "--png needs rsvg-convert, which is not in PATH\nhelp: install it (Debian: "
                                  "librsvg2-bin; Fedora: librsvg2-tools), or use --svg, which browsers show");
    if (error)
        return tt_fail(TT_EIO, "cannot run rsvg-convert: %s", strerror(error));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return tt_fail(TT_EIO, "cannot wait for rsvg-convert: %s", strerror(errno));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : tt_fail(TT_EIO, "rsvg-convert failed");
}

/* Converts an SVG picture to PNG with rsvg-convert. TT_EUSAGE if rsvg-convert is not installed. */
static int convert_to_png(const struct tt_text *svg, const char *path)
{
    char *from = NULL, *to = NULL;
    int from_fd = -1, to_fd = -1, rc = 0;

    tt_file_sweep_beside(path);
    TT_TRY(tt_file_temporary(path, &from, &from_fd));
    TT_TRY(tt_file_temporary(path, &to, &to_fd));
    TT_TRY(tt_file_pwrite(from_fd, from, svg->text, svg->size, 0, NULL));
    TT_TRY(convert(from, to));
    if (rename(to, path) < 0)
        rc = tt_path_fail("rename", to, errno);
out:
    if (from_fd >= 0)
        (void)close(from_fd);
    if (to_fd >= 0)
        (void)close(to_fd);
    if (from)
        (void)unlink(from);
    if (to && rc < 0)
        (void)unlink(to);
    tt_free(from);
    tt_free(to);
    return rc;
}

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
        rc = convert_to_png(&picture, png);
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
    draw_html(&chart, &page, &text);
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
            tt_note("%s is updated until the runs end; Ctrl-C stops it", tt_args_last(p->args, "html"));
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
