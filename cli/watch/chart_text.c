/* SPDX-License-Identifier: MIT
 *
 * Curves on a terminal: braille, which has 2 x 4 dots in a character, or ASCII.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/watch/chart.h"
#include "core/base/mem.h"
#include "core/base/utf8.h"

enum {
    LABEL = 8, /* columns for numbers at the left of a plot */
    FRAME = 2, /* lines of a panel that are not its plot: title, steps */
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
    int columns, lines; /* in characters */
    int dots_x, dots_y; /* in a character */
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

static void draw_line(const struct canvas *c, double x0, double y0, double x1, double y1, int run)
{
    int n = (int)fmax(fabs(x1 - x0), fabs(y1 - y0)) + 1;

    for (int i = 0; i <= n; i++)
        set_dot(c, (int)lround(x0 + (x1 - x0) * i / n), (int)lround(y0 + (y1 - y0) * i / n), run);
}

static double dot_x(const struct tt_chart *chart, const struct canvas *c, double step)
{
    return tt_chart_x(chart, step) * (c->columns * c->dots_x - 1);
}

static double dot_y(const struct tt_panel *p, const struct canvas *c, double value)
{
    return (1.0 - tt_chart_y(p, value)) * (c->lines * c->dots_y - 1);
}

static void draw_curve(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c, int run)
{
    const struct tt_curve *curve = &p->curve[run];

    for (int64_t i = 0; i < curve->n; i++) {
        int64_t from = i ? i - 1 : 0;

        draw_line(c, dot_x(chart, c, curve->step[from]), dot_y(p, c, curve->value[from]),
                  dot_x(chart, c, curve->step[i]), dot_y(p, c, curve->value[i]), run);
    }
}

static void put_letter(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c, double step,
                       double value, int run, char letter)
{
    int x = (int)lround(dot_x(chart, c, step)) / c->dots_x, y = (int)lround(dot_y(p, c, value)) / c->dots_y;

    if (x >= 0 && y >= 0 && x < c->columns && y < c->lines)
        *cell_at(c, x, y) = (struct cell){.run = (unsigned char)run, .letter = letter};
}

/* Braille has no shapes: each curve has its letter once, each at another place. */
static void name_curve(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c, int run)
{
    const struct tt_curve *curve = &p->curve[run];
    int64_t at = curve->n * (run + 1) / (chart->n_runs + 1);

    if (chart->n_runs > 1 && c->screen->utf8 && curve->n)
        put_letter(chart, p, c, curve->step[at], curve->value[at], run, (char)('A' + run));
}

static void draw(const struct tt_chart *chart, const struct tt_panel *p, const struct canvas *c)
{
    for (int run = 0; run < chart->n_runs; run++)
        draw_curve(chart, p, c, run);
    for (int run = 0; run < chart->n_runs; run++) {
        for (int64_t i = 0; i < p->marks[run].n; i++)
            put_letter(chart, p, c, p->marks[run].step[i], p->marks[run].value[i], run, MARK);
        name_curve(chart, p, c, run);
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

/* The number beside a line of the plot: that of a tick that falls into it, "" if there is none. */
static void line_label(const struct tt_panel *p, const struct canvas *c, int line, char *buf, size_t size)
{
    double ticks[TT_TICKS_MOST];
    int half = (c->lines + 1) / 2, most = half < 2 ? 2 : half > TT_TICKS_MOST ? TT_TICKS_MOST : half;
    int n = tt_chart_ticks(p, most, ticks);

    buf[0] = 0;
    for (int i = 0; i < n; i++)
        if ((int)lround(dot_y(p, c, ticks[i])) / c->dots_y == line)
            (void)tt_chart_number(buf, size, ticks[i]);
}

/* One of the lines of a panel, padded to its width. */
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

/* Ends a line, without spaces before its end. */
static void end_line(struct tt_text *out)
{
    while (out->size && out->text[out->size - 1] == ' ')
        out->size--;
    tt_text_add(out, "\n");
}

static void add_legend(const struct tt_chart *chart, const struct tt_chart_screen *s, bool marks, struct tt_text *out)
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
    if (marks && used + 14 <= s->columns)
        tt_text_add(out, " %s validation", mark_text(s));
    tt_text_add(out, "\n");
}

/* How many panels fit, `across` beside each other; at least one row of them. */
static int fitting(const struct tt_chart *chart, int lines, int across)
{
    int rows = lines / (LEAST_PLOT + FRAME), most = (rows ? rows : 1) * across;

    return chart->n_panels < most ? chart->n_panels : most;
}

static void draw_rows(const struct tt_chart *chart, const struct canvas *c, int n, int across, struct tt_text *out)
{
    for (int first = 0; first < n; first += across) {
        for (int line = 0; line < c[0].lines + FRAME; line++) {
            for (int i = first; i < first + across && i < n; i++) {
                tt_text_add(out, "%*s", i > first ? GAP : 0, "");
                add_line(chart, &chart->panel[i], &c[i], line, out);
            }
            end_line(out);
        }
    }
}

void tt_chart_draw_text(const struct tt_chart *chart, const struct tt_chart_screen *s, struct tt_text *out)
{
    int across = chart->n_panels > 1 && s->columns >= 2 * (LABEL + GAP + 16) ? 2 : 1, n, lines;
    struct canvas *c = tt_calloc((size_t)chart->n_panels, sizeof *c);
    bool marks = false, legend;

    for (int i = 0; i < chart->n_panels; i++)
        marks = marks || chart->panel[i].has_marks;
    legend = marks || chart->n_runs > 1;
    lines = s->lines - 1 - legend; /* the last one is for the prompt */
    n = fitting(chart, lines, across);
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
        add_legend(chart, s, marks, out);
    for (int i = 0; i < n; i++)
        tt_free(c[i].cell);
    tt_free(c);
}
