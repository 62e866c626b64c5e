/* SPDX-License-Identifier: MIT
 *
 * Curves of runs: chooses the numbers, smooths and thins them, and finds their ranges.
 */
#include "cli/watch/chart.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "trainer/step/metrics.h"

/* --- the numbers --- */

enum { BUCKETS = 1200 }; /* number of buckets; a curve keeps the smallest and the largest value of each */

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

/* Replaces a curve by its exponential mean, whose first values are not biased towards 0, as in TensorBoard. */
static void smooth(struct tt_curve *c, double weight)
{
    double mean = 0.0, past = 1.0;

    for (int64_t i = 0; i < c->n && weight > 0.0; i++) {
        mean = weight * mean + (1.0 - weight) * c->value[i];
        past *= weight;
        c->value[i] = mean / (1.0 - past);
    }
}

/* Keeps the smallest and the largest of points [i, end), in their order, as points `kept` and later; returns the number
 * of points kept. */
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

/* means may be NULL. */
static void thin(struct tt_curve *c, struct tt_curve *means)
{
    double first = c->n ? c->step[0] : 0.0, width = c->n ? (c->step[c->n - 1] - first) / BUCKETS : 0.0;
    int64_t kept = 0, end;

    c->points = c->n;
    if (c->n / 2 <= BUCKETS)
        return;
    for (int64_t i = 0; i < c->n; i = end) {
        double bucket = floor((c->step[i] - first) / width), sum = 0.0;
        for (end = i + 1; end < c->n && floor((c->step[end] - first) / width) == bucket;)
            end++;
        for (int64_t k = i; k < end; k++)
            sum += c->value[k];
        if (means) /* value at the last step */
            add_point(means, c->step[end - 1], sum / (double)(end - i));
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

/* The place of a step and of a value in a panel: from 0 (left, bottom) to 1 (right, top). */
static double x_of(const struct tt_chart *chart, double step)
{
    return (step - chart->first) / (chart->last - chart->first);
}

static double y_of(const struct tt_panel *p, double value)
{
    return (scaled(p, value) - p->low) / (p->high - p->low);
}

/* --- ticks --- */

enum { TICKS_MOST = 12 };

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

/* Makes at most `most` round numbers in the range of a panel; returns their number. */
static int value_ticks(const struct tt_panel *p, int most, double *ticks)
{
    double low = ceil(p->low), high = floor(p->high), every;
    int n = 0;

    if (!p->log_scale)
        return linear_ticks(p->low, p->high, most, ticks);
    if (high - low < 1.0) /* the range is less than two powers of ten: uses round numbers between them */
        return linear_ticks(pow(10.0, p->low), pow(10.0, p->high), most, ticks);
    every = ceil((high - low + 1.0) / most);
    for (; n < most && low + n * every <= high; n++)
        ticks[n] = pow(10.0, low + n * every);
    return n;
}

/* The same for steps. */
static int step_ticks(const struct tt_chart *chart, int most, double *ticks)
{
    double low = chart->first, high = chart->last;
    int all = linear_ticks(low, high, most, ticks), n = 0;

    for (int i = 0; i < all; i++) /* steps are whole numbers */
        if (ticks[i] == floor(ticks[i]))
            ticks[n++] = ticks[i];
    return n;
}

/* "2.5", "3e-04": a short number, into buf of at least 24 bytes; returns buf. */
static char *short_number(char *buf, size_t buf_size, double x)
{
    double size = fabs(x);

    if (size < 1e-12)
        x = 0.0; /* a tick close to 0 */
    (void)snprintf(buf, buf_size, size >= 1e6 || (size < 1e-3 && x != 0.0) ? "%.3g" : size >= 1e4 ? "%.0f" : "%.4g", x);
    return buf;
}

/* --- making --- */

/* A copy of a name that is safe to print, since it may be another user's folder. */
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

static void take_panel(struct tt_chart *c, struct tt_panel *p, int run, const struct tt_history *h,
                       const struct tt_chart_options *o)
{
    take_curve(tt_table_set_name(p->field) ? &h->validations : &h->steps, p->field, o, &p->curve[run]);
    if (p->smooths)
        smooth(&p->curve[run], o->smooth);
    thin(&p->curve[run], &p->means[run]);
    if (strcmp(p->field, "loss") == 0) {
        take_curve(&h->validations, "loss", o, &p->marks[run]);
        thin(&p->marks[run], NULL);
        c->has_marks = c->has_marks || p->marks[run].n;
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

/* A panel that the user named must not be empty; an empty default panel is left out. */
static int check_panels(struct tt_chart *chart, bool asked)
{
    int kept = 0;

    for (int i = 0; i < chart->n_panels; i++) {
        struct tt_panel panel = chart->panel[i];
        bool is_empty = true;

        for (int r = 0; r < chart->n_runs; r++)
            is_empty = is_empty && !panel.curve[r].n && !panel.marks[r].n;
        if (!is_empty) {
            chart->panel[i] = chart->panel[kept];
            chart->panel[kept++] = panel;
        } else if (asked || (i == chart->n_panels - 1 && kept == 0)) {
            return tt_fail(TT_EDATA,
                           "there are no values of '%s' to draw in %s%s\n"
                           "help: titan-train(1) lists the fields of metrics.jsonl; --from, --to and --log leave "
                           "points out",
                           chart->panel[asked ? i : 0].field, chart->run[0],
                           chart->n_runs > 1 ? " and the others" : "");
        }
    }
    for (int i = kept; i < chart->n_panels; i++)
        release_panel(chart, &chart->panel[i]);
    chart->n_panels = kept;
    return 0;
}

/* Adds an empty panel for a field. */
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

/* The default panels, and one for each validation set. */
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
        add_panel(&c,
                  strcmp(o->key[i], "norm") == 0    ? "grad_norm"
                  : strcmp(o->key[i], "speed") == 0 ? "tps"
                                                    : o->key[i],
                  o);
    for (int i = 0; i < c.n_panels; i++)
        for (int r = 0; r < n_runs; r++)
            take_panel(&c, &c.panel[i], r, &history[r], o);
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

/* --- a picture --- */

enum {
    WIDTH = 1000,
    ONE_HEIGHT = 460,  /* height of the plot if there is one panel */
    MANY_HEIGHT = 230, /* height of each plot if there are several */
    TOP = 64,
    LEFT = 74, /* room left of a plot, for the numbers */
    RIGHT = 20,
    TITLE = 26, /* room above a plot */
    UNDER = 34, /* room below a plot, for the steps */
    CHAR = 7,   /* the width of a character in the legend */
};

/* The place of a panel's plot in the picture, in pixels. */
struct box {
    double x, y, width, height;
};

const char *tt_chart_color(int run)
{
    static const char *const colors[] = {"#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#777777"};

    return colors[run % (int)(sizeof colors / sizeof colors[0])];
}

static void text_at(struct tt_text *out, double x, double y, const char *attributes, const char *text)
{
    tt_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    tt_text_add_xml(out, text);
    tt_text_add(out, "</text>\n");
}

static double left_of(const struct tt_chart *chart, const struct box *box, double step)
{
    return box->x + box->width * x_of(chart, step);
}

static double top_of(const struct tt_panel *p, const struct box *box, double value)
{
    return box->y + box->height * (1.0 - y_of(p, value));
}

/* --- axes --- */
static void draw_axes(const struct tt_chart *chart, const struct tt_panel *p, const struct box *box,
                      struct tt_text *out)
{
    double ticks[TICKS_MOST];
    char label[32];
    int n = value_ticks(p, chart->n_panels > 1 ? 5 : 8, ticks);

    for (int i = 0; i < n; i++) {
        double y = top_of(p, box, ticks[i]);
        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e4e4\"/>\n", box->x,
                    box->x + box->width, y, y);
        text_at(out, box->x - 8.0, y + 4.0, "text-anchor=\"end\"", short_number(label, sizeof label, ticks[i]));
    }
    n = step_ticks(chart, chart->n_panels > 1 ? 6 : 10, ticks);
    for (int i = 0; i < n; i++) {
        double x = left_of(chart, box, ticks[i]);
        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e4e4\"/>\n", x, x, box->y,
                    box->y + box->height);
        text_at(out, x, box->y + box->height + 16.0, "text-anchor=\"middle\"",
                short_number(label, sizeof label, ticks[i]));
    }
    tt_text_add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#999999\"/>\n",
                box->x, box->y, box->width, box->height);
    text_at(out, box->x, box->y - 9.0, "font-weight=\"bold\"", p->title);
}

/* --- curves --- */

static void draw_svg_curve(const struct tt_chart *chart, const struct tt_panel *p, const struct box *box, int run,
                           struct tt_text *out)
{
    const struct tt_curve *c = &p->curve[run], *m = &p->marks[run];

    if (c->n > 1) {
        tt_text_add(out,
                    "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" stroke-linejoin=\"round\" points=\"",
                    tt_chart_color(run));
        for (int64_t i = 0; i < c->n; i++)
            tt_text_add(out, "%s%.1f,%.1f", i ? " " : "", left_of(chart, box, c->step[i]), top_of(p, box, c->value[i]));
        tt_text_add(out, "\"/>\n");
    } else if (c->n == 1) {
        tt_text_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", left_of(chart, box, c->step[0]),
                    top_of(p, box, c->value[0]), tt_chart_color(run));
    }
    for (int64_t i = 0; i < m->n; i++)
        tt_text_add(out,
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#ffffff\" stroke=\"%s\" stroke-width=\"1.5\"/>\n",
                    left_of(chart, box, m->step[i]), top_of(p, box, m->value[i]), tt_chart_color(run));
}

static void draw_legend(const struct tt_chart *chart, struct tt_text *out)
{
    double x = LEFT;
    for (int r = 0; r < chart->n_runs; r++) {
        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"28\" y2=\"28\" stroke=\"%s\" stroke-width=\"3\"/>\n", x,
                    x + 22.0, tt_chart_color(r));
        text_at(out, x + 29.0, 32.0, "font-size=\"13\"", chart->run[r]);
        x += 54.0 + CHAR * (double)strlen(chart->run[r]);
    }
    if (!chart->has_marks)
        return;
    tt_text_add(out,
                "<circle cx=\"%.1f\" cy=\"28\" r=\"3.5\" fill=\"#ffffff\" stroke=\"#555555\" stroke-width=\"1.5\"/>\n",
                x + 6.0);
    text_at(out, x + 16.0, 32.0, "font-size=\"13\"", "validation");
}

void tt_chart_draw_svg(const struct tt_chart *chart, struct tt_text *out)
{
    int columns = chart->n_panels > 1 ? 2 : 1, rows = (chart->n_panels + columns - 1) / columns;
    int plot = chart->n_panels > 1 ? MANY_HEIGHT : ONE_HEIGHT, width = WIDTH / columns;
    int height = TOP + rows * (TITLE + plot + UNDER) + 6;

    tt_text_add(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                WIDTH, height, WIDTH, height, WIDTH, height);
    draw_legend(chart, out);
    for (int i = 0; i < chart->n_panels; i++) {
        int column = i % columns, row = i / columns;
        struct box box = {column * width + LEFT, TOP + row * (TITLE + plot + UNDER) + TITLE, width - LEFT - RIGHT,
                          plot};

        draw_axes(chart, &chart->panel[i], &box, out);
        for (int r = 0; r < chart->n_runs; r++)
            draw_svg_curve(chart, &chart->panel[i], &box, r, out);
    }
    tt_text_add(out, "</svg>\n");
}

/* --- PNG --- */

/*
 * --- text for a terminal ---
 *
 * Curves on a terminal: braille, which has 2 x 4 dots in a character, or ASCII.
 */

enum {
    LABEL = 8, /* columns for numbers at the left of a plot */
    FRAME = 2, /* lines of a panel besides its plot: title, steps */
    GAP = 2,   /* columns between panels */
    LEAST_PLOT = 3,
};

/* A character of the picture: dots, or a letter, in the colour of a run. */
struct cell {
    unsigned char dots, run;
    char letter; /* 0: none; MARK: a validation */
};

enum { MARK = 1 };

struct canvas {
    const struct tt_chart_screen *screen;
    int columns, lines; /* size in characters */
    int dots_x, dots_y; /* dots in a character */
    struct cell *cell;
};

static const char ascii_runs[] = "*+ox#@%&";

static struct cell *cell_at(const struct canvas *c, int column, int line)
{
    return &c->cell[line * c->columns + column];
}

/* --- dots --- */

static void set_dot(const struct canvas *c, int x, int y, int run)
{
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    struct cell *cell;

    if (x < 0 || y < 0 || x >= c->columns * c->dots_x || y >= c->lines * c->dots_y)
        return;
    cell = cell_at(c, x / c->dots_x, y / c->dots_y);
    cell->dots |= bits[y % c->dots_y][x % c->dots_x];
    cell->run = (unsigned char)run;
}

static double dot_x(const struct tt_chart *chart, const struct canvas *c, double step)
{
    return x_of(chart, step) * (c->columns * c->dots_x - 1);
}

static double dot_y(const struct tt_panel *p, const struct canvas *c, double value)
{
    return (1.0 - y_of(p, value)) * (c->lines * c->dots_y - 1);
}

static void draw_curve(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c, int run)
{
    const struct tt_curve *curve = &p->curve[run];

    for (int64_t i = 0; i < curve->n; i++) {
        int64_t from = i ? i - 1 : 0;
        double x0 = dot_x(chart, c, curve->step[from]), y0 = dot_y(p, c, curve->value[from]);
        double dx = dot_x(chart, c, curve->step[i]) - x0, dy = dot_y(p, c, curve->value[i]) - y0;
        int n = (int)fmax(fabs(dx), fabs(dy)) + 1;

        for (int k = 0; k <= n; k++)
            set_dot(c, (int)lround(x0 + dx * k / n), (int)lround(y0 + dy * k / n), run);
    }
}

static void put_letter(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c, double step,
                       double value, int run, char letter)
{
    int x = (int)lround(dot_x(chart, c, step)) / c->dots_x, y = (int)lround(dot_y(p, c, value)) / c->dots_y;

    if (x >= 0 && y >= 0 && x < c->columns && y < c->lines)
        *cell_at(c, x, y) = (struct cell){.run = (unsigned char)run, .letter = letter};
}

static void draw(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c)
{
    for (int run = 0; run < chart->n_runs; run++)
        draw_curve(chart, p, c, run);
    for (int run = 0; run < chart->n_runs; run++) {
        const struct tt_curve *curve = &p->curve[run];
        int64_t at = curve->n * (run + 1) / (chart->n_runs + 1);

        for (int64_t i = 0; i < p->marks[run].n; i++)
            put_letter(chart, p, c, p->marks[run].step[i], p->marks[run].value[i], run, MARK);
        /* braille has no shapes, so each curve shows its letter once, at a place of its own */
        if (chart->n_runs > 1 && c->screen->utf8 && curve->n)
            put_letter(chart, p, c, curve->step[at], curve->value[at], run, (char)('A' + run));
    }
}

/* --- characters --- */

static void add_color(const struct tt_chart_screen *s, int run, struct tt_text *out)
{
    static const int codes[] = {36, 33, 35, 32, 34, 31};

    if (s->color)
        tt_text_add(out, "\033[%dm", codes[run % (int)(sizeof codes / sizeof codes[0])]);
}

static void end_color(const struct tt_chart_screen *s, struct tt_text *out)
{
    if (s->color)
        tt_text_add(out, "\033[39m");
}

static const char *mark_text(const struct tt_chart_screen *s)
{
    return s->utf8 ? "◆" : "V";
}

static void add_cell(const struct canvas *c, const struct cell *cell, struct tt_text *out)
{
    int code = 0x2800 + cell->dots;

    if (!cell->dots && !cell->letter) {
        tt_text_add(out, " ");
        return;
    }
    add_color(c->screen, cell->run, out);
    if (cell->letter == MARK)
        tt_text_add(out, "%s", mark_text(c->screen));
    else if (cell->letter)
        tt_text_add(out, "%c", cell->letter);
    else if (c->screen->utf8)
        tt_text_add(out, "%c%c%c", 0xe0 | code >> 12, 0x80 | (code >> 6 & 0x3f), 0x80 | (code & 0x3f));
    else
        tt_text_add(out, "%c", ascii_runs[cell->run % (sizeof ascii_runs - 1)]);
    end_color(c->screen, out);
}

/* The number beside a line of the plot: the tick that falls on the line; "" if none does. */
static void line_label(const struct tt_panel *p, const struct canvas *c, int line, char *buf, size_t size)
{
    double ticks[TICKS_MOST];
    int half = (c->lines + 1) / 2, most = half < 2 ? 2 : half > TICKS_MOST ? TICKS_MOST : half;
    int n = value_ticks(p, most, ticks);

    buf[0] = 0;
    for (int i = 0; i < n; i++)
        if ((int)lround(dot_y(p, c, ticks[i])) / c->dots_y == line)
            (void)short_number(buf, size, ticks[i]);
}

/* Adds one line of a panel, padded to the panel's width. */
static void add_line(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c, int line,
                     struct tt_text *out)
{
    int width = LABEL + 1 + c->columns;
    char label[32], first[32], last[32];

    if (line == 0) {
        tt_text_add(out, "%*s %-*.*s", LABEL, "", c->columns, c->columns, p->title);
    } else if (line <= c->lines) {
        line_label(p, c, line - 1, label, sizeof label);
        tt_text_add(out, "%*s%s", LABEL, label, c->screen->utf8 ? label[0] ? "┤" : "│" : label[0] ? "+" : "|");
        for (int column = 0; column < c->columns; column++)
            add_cell(c, cell_at(c, column, line - 1), out);
    } else {
        (void)snprintf(first, sizeof first, "%.0f", ceil(chart->first));
        (void)snprintf(last, sizeof last, "step %.0f", floor(chart->last));
        tt_text_add(out, "%*s %s%*s", LABEL, "", first, width - LABEL - 1 - (int)strlen(first), last);
    }
}

static void add_legend(const struct tt_chart *chart, const struct tt_chart_screen *s, struct tt_text *out)
{
    int used = LABEL;

    tt_text_add(out, "%*s", LABEL, "");
    for (int r = 0; r < chart->n_runs && chart->n_runs > 1; r++) {
        int room = s->columns - used - 4, size = (int)strlen(chart->run[r]);

        if (room < 4)
            break;
        size = size < room ? size : room;
        add_color(s, r, out);
        tt_text_add(out, " %c", s->utf8 ? 'A' + r : ascii_runs[r % (int)(sizeof ascii_runs - 1)]);
        end_color(s, out);
        tt_text_add(out, " %.*s", size - (int)tt_utf8_unfinished(chart->run[r], (size_t)size), chart->run[r]);
        used += 3 + size;
    }
    if (chart->has_marks && used + 14 <= s->columns)
        tt_text_add(out, " %s validation", mark_text(s));
    tt_text_add(out, "\n");
}

static void draw_rows(const struct tt_chart *chart, const struct canvas *c, int n, int across, struct tt_text *out)
{
    for (int first = 0; first < n; first += across) {
        for (int line = 0; line < c[0].lines + FRAME; line++) {
            for (int i = first; i < first + across && i < n; i++) {
                tt_text_add(out, "%*s", i > first ? GAP : 0, "");
                add_line(chart, &chart->panel[i], &c[i], line, out);
            }
            while (out->size && out->text[out->size - 1] == ' ')
                out->size--;
            tt_text_add(out, "\n");
        }
    }
}

void tt_chart_draw_text(const struct tt_chart *chart, const struct tt_chart_screen *s, struct tt_text *out)
{
    int across = chart->n_panels > 1 && s->columns >= 2 * (LABEL + GAP + 16) ? 2 : 1, n, lines;
    struct canvas *c = tt_calloc((size_t)chart->n_panels, sizeof *c);
    bool legend = chart->has_marks || chart->n_runs > 1;

    lines = s->lines - 1 - legend;    /* the last line is for the prompt */
    n = lines / (LEAST_PLOT + FRAME); /* rows of panels that fit, at least one */
    n = (n > 1 ? n : 1) * across;
    n = n < chart->n_panels ? n : chart->n_panels;
    lines = lines / ((n + across - 1) / across) - FRAME;
    for (int i = 0; i < n; i++) {
        c[i] = (struct canvas){.screen = s,
                               .columns = (s->columns - (across - 1) * GAP) / across - LABEL - 1,
                               .lines = lines < LEAST_PLOT ? LEAST_PLOT : lines,
                               .dots_x = s->utf8 ? 2 : 1,
                               .dots_y = s->utf8 ? 4 : 1};
        c[i].cell = tt_calloc((size_t)(c[i].columns * c[i].lines), sizeof *c[i].cell);
        draw(chart, &chart->panel[i], &c[i]);
    }
    draw_rows(chart, c, n, across, out);
    if (legend)
        add_legend(chart, s, out);
    for (int i = 0; i < n; i++)
        tt_free(c[i].cell);
    tt_free(c);
}
