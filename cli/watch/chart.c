/* SPDX-License-Identifier: MIT
 *
 * Curves of runs: which numbers, smoothed, thinned, with their ranges.
 */
#include "cli/watch/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/utf8.h"
#include "trainer/step/metrics.h"

enum { BUCKETS = 1200 }; /* a curve keeps the smallest and the largest value of each */

/* --- curves --- */

static void add_point(struct tt_curve *c, double step, double value)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->step = tt_realloc(c->step, (size_t)c->cap, sizeof *c->step);
        c->value = tt_realloc(c->value, (size_t)c->cap, sizeof *c->value);
    }
    c->step[c->n] = step;
    c->value[c->n++] = value;
}

/* An exponential mean whose first values are not drawn towards 0, as TensorBoard's. */
static void smooth(struct tt_curve *c, double weight)
{
    double mean = 0.0, past = 1.0;

    for (int64_t i = 0; i < c->n && weight > 0.0; i++) {
        mean = weight * mean + (1.0 - weight) * c->value[i];
        past *= weight;
        c->value[i] = mean / (1.0 - past);
    }
}

/* The smallest and the largest of points [i, end), in their order, become points `kept` and later; returns how many. */
static int64_t keep_extremes(struct tt_curve *c, int64_t kept, int64_t i, int64_t end)
{
    int64_t least = i, most = i, a, b;

    for (int64_t k = i; k < end; k++) {
        least = c->value[k] < c->value[least] ? k : least;
        most = c->value[k] > c->value[most] ? k : most;
    }
    a = least < most ? least : most;
    b = least < most ? most : least;
    c->step[kept] = c->step[a];
    c->value[kept] = c->value[a];
    if (a == b)
        return 1;
    c->step[kept + 1] = c->step[b];
    c->value[kept + 1] = c->value[b];
    return 2;
}

/* Adds the mean of points [i, end), at the last of their steps. */
static void add_mean(const struct tt_curve *c, int64_t i, int64_t end, struct tt_curve *means)
{
    double sum = 0.0;

    for (int64_t k = i; k < end; k++)
        sum += c->value[k];
    add_point(means, c->step[end - 1], sum / (double)(end - i));
}

/* means may be NULL. */
static void thin(struct tt_curve *c, struct tt_curve *means)
{
    double first = c->n ? c->step[0] : 0.0, width = c->n ? (c->step[c->n - 1] - first) / BUCKETS : 0.0;
    int64_t kept = 0, end;

    c->points = c->n;
    if (c->n / 2 <= BUCKETS)
        return;
    for (int64_t i = 0; i < c->n; i = end) {
        double bucket = floor((c->step[i] - first) / width);

        for (end = i + 1; end < c->n && floor((c->step[end] - first) / width) == bucket;)
            end++;
        if (means)
            add_mean(c, i, end, means);
        kept += keep_extremes(c, kept, i, end);
    }
    c->n = kept;
}

static void take_curve(const struct tt_table *t, const char *column, const struct tt_chart_options *o,
                       struct tt_curve *curve)
{
    const double *value = tt_table_column(t, column);

    for (int64_t row = tt_table_find(t, o->from); value && row < t->n && t->step[row] <= o->to; row++)
        if (isfinite(value[row]) && (!o->log_scale || value[row] > 0.0))
            add_point(curve, (double)t->step[row], value[row]);
}

/* --- ranges --- */

static double scaled(const struct tt_panel *p, double value)
{
    return p->log_scale ? log10(value) : value;
}

static void widen(struct tt_chart *chart, struct tt_panel *p, const struct tt_curve *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        p->low = fmin(p->low, scaled(p, c->value[i]));
        p->high = fmax(p->high, scaled(p, c->value[i]));
    }
    if (c->n) {
        chart->first = fmin(chart->first, c->step[0]);
        chart->last = fmax(chart->last, c->step[c->n - 1]);
    }
}

static void set_range(struct tt_chart *chart, struct tt_panel *p)
{
    double margin;

    p->low = (double)INFINITY;
    p->high = -(double)INFINITY;
    for (int r = 0; r < chart->n_runs; r++) {
        widen(chart, p, &p->curve[r]);
        widen(chart, p, &p->marks[r]);
    }
    if (p->low > p->high)
        p->low = p->high = 0.0;
    margin = p->high > p->low ? 0.03 * (p->high - p->low) : p->high != 0.0 ? 0.1 * fabs(p->high) : 1.0;
    p->low -= margin;
    p->high += margin;
}

double tt_chart_x(const struct tt_chart *chart, double step)
{
    return (step - chart->first) / (chart->last - chart->first);
}

double tt_chart_y(const struct tt_panel *p, double value)
{
    return (scaled(p, value) - p->low) / (p->high - p->low);
}

/* --- ticks --- */

static int linear_ticks(double low, double high, int most, double *ticks)
{
    double unit = pow(10.0, floor(log10((high - low) / most))), step = unit;
    int n = 0;

    for (int i = 0; floor(high / step) - ceil(low / step) + 1 > most && i < 6; i++)
        step = unit * (double[]){2, 5, 10, 20, 50, 100}[i];
    for (; n < most && (ceil(low / step) + n) * step <= high; n++)
        ticks[n] = (ceil(low / step) + n) * step;
    return n;
}

int tt_chart_ticks(const struct tt_panel *p, int most, double *ticks)
{
    double low = ceil(p->low), high = floor(p->high), every;
    int n = 0;

    if (!p->log_scale)
        return linear_ticks(p->low, p->high, most, ticks);
    if (high - low < 1.0) /* less than two powers of ten: round numbers between */
        return linear_ticks(pow(10.0, p->low), pow(10.0, p->high), most, ticks);
    every = ceil((high - low + 1.0) / most);
    for (; n < most && low + n * every <= high; n++)
        ticks[n] = pow(10.0, low + n * every);
    return n;
}

int tt_chart_step_ticks(const struct tt_chart *chart, int most, double *ticks)
{
    double low = chart->first, high = chart->last;
    int all = linear_ticks(low, high, most, ticks), n = 0;

    for (int i = 0; i < all; i++) /* there is no half of a step */
        if (ticks[i] == floor(ticks[i]))
            ticks[n++] = ticks[i];
    return n;
}

char *tt_chart_number(char *buf, size_t buf_size, double x)
{
    double size = fabs(x);

    if (size < 1e-12)
        x = 0.0; /* a tick beside 0 */
    (void)snprintf(buf, buf_size, size >= 1e6 || (size < 1e-3 && x != 0.0) ? "%.3g" : size >= 1e4 ? "%.0f" : "%.4g", x);
    return buf;
}

/* --- making --- */

static const char *field_of(const char *key)
{
    return strcmp(key, "norm") == 0 ? "grad_norm" : strcmp(key, "speed") == 0 ? "tps" : key;
}

/* A name as it can be printed: it may be the folder of another user. */
static char *printable(const char *name)
{
    struct tt_text text = {0};

    tt_utf8_repair(name, strlen(name), &text);
    tt_text_make_printable(&text);
    return text.text ? text.text : tt_strdup("");
}

static char *title_of(const char *field, const struct tt_chart_options *o)
{
    const char *unit = strcmp(field, "tps") == 0 ? ", tokens/s a rank" : "", *set = tt_table_set_name(field);
    char *name = set ? printable(set) : NULL, *title;

    title =
        tt_format("%s%s%s%s", set ? "validation loss on " : "", set ? name : field, unit, o->log_scale ? ", log" : "");
    tt_free(name);
    return title;
}

static void take_panel(struct tt_panel *p, int run, const struct tt_history *h, const struct tt_chart_options *o)
{
    take_curve(tt_table_set_name(p->field) ? &h->validations : &h->steps, p->field, o, &p->curve[run]);
    if (p->smooths)
        smooth(&p->curve[run], o->smooth);
    thin(&p->curve[run], &p->means[run]);
    if (strcmp(p->field, "loss") == 0) {
        take_curve(&h->validations, "loss", o, &p->marks[run]);
        thin(&p->marks[run], NULL);
        p->has_marks = p->has_marks || p->marks[run].n;
    }
}

static void release_curve(struct tt_curve *c)
{
    tt_free(c->step);
    tt_free(c->value);
}

static void release_panel(const struct tt_chart *c, struct tt_panel *p)
{
    for (int r = 0; r < c->n_runs; r++) {
        release_curve(&p->curve[r]);
        release_curve(&p->means[r]);
        release_curve(&p->marks[r]);
    }
    tt_free(p->field);
    tt_free(p->title);
    tt_free(p->curve);
    tt_free(p->means);
    tt_free(p->marks);
}

static bool is_empty(const struct tt_chart *chart, const struct tt_panel *p)
{
    for (int r = 0; r < chart->n_runs; r++)
        if (p->curve[r].n || p->marks[r].n)
            return false;
    return true;
}

/* A panel that the user asked for must have something; of the usual ones those that have nothing are left out. */
static int check_panels(struct tt_chart *chart, bool asked)
{
    int kept = 0;

    for (int i = 0; i < chart->n_panels; i++) {
        if (!is_empty(chart, &chart->panel[i])) {
            struct tt_panel panel = chart->panel[i];

            chart->panel[i] = chart->panel[kept];
            chart->panel[kept++] = panel;
        } else if (asked || (i == chart->n_panels - 1 && kept == 0)) {
            return tt_fail(TT_EDATA,
                           "there is nothing to draw of '%s' in %s%s\nhelp: titan-train(1) lists the fields of "
                           "metrics.jsonl; --from, --to and --log leave points out",
                           chart->panel[asked ? i : 0].field, chart->run[0],
                           chart->n_runs > 1 ? " and the others" : "");
        }
    }
    for (int i = kept; i < chart->n_panels; i++)
        release_panel(chart, &chart->panel[i]);
    chart->n_panels = kept;
    return 0;
}

/* Adds the panel of a field, empty. */
static void add_panel(struct tt_chart *c, const char *field, const struct tt_chart_options *o)
{
    struct tt_panel p = {.field = tt_strdup(field),
                         .title = title_of(field, o),
                         .log_scale = o->log_scale,
                         .smooths = !tt_table_set_name(field) && strcmp(field, "lr") != 0};

    p.curve = tt_calloc((size_t)c->n_runs, sizeof *p.curve);
    p.means = tt_calloc((size_t)c->n_runs, sizeof *p.means);
    p.marks = tt_calloc((size_t)c->n_runs, sizeof *p.marks);
    c->panel = tt_realloc(c->panel, (size_t)c->n_panels + 1, sizeof *c->panel);
    c->panel[c->n_panels++] = p;
}

/* The usual panels, and one for each validation set. */
static void add_usual_panels(struct tt_chart *c, const struct tt_history *history, const struct tt_chart_options *o)
{
    for (enum tt_metric k = 0; k < TT_METRICS; k++)
        if (tt_metric_rows[k].watch & TT_WATCH_CHART)
            add_panel(c, tt_metric_rows[k].name, o);
    for (int r = 0; r < c->n_runs; r++) {
        const struct tt_table *v = &history[r].validations;

        for (int k = 0; k < v->n_columns; k++) {
            bool is_new = tt_table_set_name(v->name[k]);

            for (int i = 0; i < c->n_panels; i++)
                is_new = is_new && strcmp(c->panel[i].field, v->name[k]) != 0;
            if (is_new)
                add_panel(c, v->name[k], o);
        }
    }
}

int tt_chart_make(int n_runs, const char *const *runs, const struct tt_history *history,
                  const struct tt_chart_options *o, struct tt_chart *ret_chart)
{
    struct tt_chart c = {.n_runs = n_runs, .first = (double)INFINITY, .last = -(double)INFINITY};
    int rc = 0;

    c.run = tt_calloc((size_t)n_runs, sizeof *c.run);
    for (int r = 0; r < n_runs; r++)
        c.run[r] = printable(runs[r]);
    if (!o->n_keys)
        add_usual_panels(&c, history, o);
    for (int i = 0; i < o->n_keys; i++)
        add_panel(&c, field_of(o->key[i]), o);
    for (int i = 0; i < c.n_panels; i++)
        for (int r = 0; r < n_runs; r++)
            take_panel(&c.panel[i], r, &history[r], o);
    TT_TRY(check_panels(&c, o->n_keys > 0));
    for (int i = 0; i < c.n_panels; i++)
        set_range(&c, &c.panel[i]);
    if (c.first == c.last) {
        c.first -= 0.5;
        c.last += 0.5;
    }
    *ret_chart = c;
    c = (struct tt_chart){.n_runs = 0};
out:
    tt_chart_release(&c);
    return rc;
}

void tt_chart_release(struct tt_chart *c)
{
    for (int i = 0; c->panel && i < c->n_panels; i++)
        release_panel(c, &c->panel[i]);
    for (int r = 0; c->run && r < c->n_runs; r++)
        tt_free(c->run[r]);
    tt_free((void *)c->run);
    tt_free(c->panel);
    *c = (struct tt_chart){.n_runs = 0};
}
