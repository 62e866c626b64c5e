/* SPDX-License-Identifier: MIT
 *
 * Curves as a page: what page.html draws, as JSON. The page needs no network.
 */
#include <math.h>
#include <string.h>

#include "cli/run/page.h"
#include "cli/watch/chart.h"
#include "cli/watch/compare.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

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

void tt_chart_draw_html(const struct tt_chart *chart, const struct tt_chart_page *page, struct tt_text *out)
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
