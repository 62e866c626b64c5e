/* SPDX-License-Identifier: MIT
 *
 * Curves as a picture: plain SVG on a light background, with the names of the runs above.
 */
#include <math.h>
#include <string.h>

#include "cli/watch/chart.h"
#include "core/base/shown.h"

enum {
    WIDTH = 1000,
    ONE_HEIGHT = 460,  /* of the plot of a single panel */
    MANY_HEIGHT = 230, /* of each of several */
    TOP = 64,
    LEFT = 74, /* of a plot within its panel, for the numbers */
    RIGHT = 20,
    TITLE = 26, /* above a plot */
    UNDER = 34, /* below a plot, for the steps */
    CHAR = 7,   /* the width of a character in the legend */
};

static int across(const struct tt_chart *chart)
{
    return chart->n_panels > 1 ? 2 : 1;
}

static int plot_height(const struct tt_chart *chart)
{
    return chart->n_panels > 1 ? MANY_HEIGHT : ONE_HEIGHT;
}

/* The place of a panel's plot in the picture, in pixels. */
struct box {
    double x, y, width, height;
};

static struct box box_of(const struct tt_chart *chart, int panel)
{
    int width = WIDTH / across(chart), height = TITLE + plot_height(chart) + UNDER;
    int row = panel / across(chart), column = panel % across(chart);

    return (struct box){column * width + LEFT, TOP + row * height + TITLE, width - LEFT - RIGHT, plot_height(chart)};
}

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

/* --- axes --- */

static void draw_axes(const struct tt_chart *chart, const struct tt_panel *p, const struct box *box,
                      struct tt_text *out)
{
    double ticks[TT_TICKS_MOST];
    char label[32];
    int n = tt_chart_ticks(p, chart->n_panels > 1 ? 5 : 8, ticks);

    for (int i = 0; i < n; i++) {
        double y = box->y + box->height * (1.0 - tt_chart_y(p, ticks[i]));

        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e4e4\"/>\n", box->x,
                    box->x + box->width, y, y);
        text_at(out, box->x - 8.0, y + 4.0, "text-anchor=\"end\"", tt_chart_number(label, sizeof label, ticks[i]));
    }
    n = tt_chart_step_ticks(chart, chart->n_panels > 1 ? 6 : 10, ticks);
    for (int i = 0; i < n; i++) {
        double x = box->x + box->width * tt_chart_x(chart, ticks[i]);

        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e4e4\"/>\n", x, x, box->y,
                    box->y + box->height);
        text_at(out, x, box->y + box->height + 16.0, "text-anchor=\"middle\"",
                tt_chart_number(label, sizeof label, ticks[i]));
    }
    tt_text_add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#999999\"/>\n",
                box->x, box->y, box->width, box->height);
    text_at(out, box->x, box->y - 9.0, "font-weight=\"bold\"", p->title);
}

/* --- curves --- */

static double x_of(const struct tt_chart *chart, const struct box *box, double step)
{
    return box->x + box->width * tt_chart_x(chart, step);
}

static double y_of(const struct tt_panel *p, const struct box *box, double value)
{
    return box->y + box->height * (1.0 - tt_chart_y(p, value));
}

static void draw_curve(const struct tt_chart *chart, const struct tt_panel *p, const struct box *box, int run,
                       struct tt_text *out)
{
    const struct tt_curve *c = &p->curve[run], *m = &p->marks[run];

    if (c->n > 1) {
        tt_text_add(out,
                    "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" stroke-linejoin=\"round\" points=\"",
                    tt_chart_color(run));
        for (int64_t i = 0; i < c->n; i++)
            tt_text_add(out, "%s%.1f,%.1f", i ? " " : "", x_of(chart, box, c->step[i]), y_of(p, box, c->value[i]));
        tt_text_add(out, "\"/>\n");
    } else if (c->n == 1) {
        tt_text_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", x_of(chart, box, c->step[0]),
                    y_of(p, box, c->value[0]), tt_chart_color(run));
    }
    for (int64_t i = 0; i < m->n; i++)
        tt_text_add(out,
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#ffffff\" stroke=\"%s\" stroke-width=\"1.5\"/>\n",
                    x_of(chart, box, m->step[i]), y_of(p, box, m->value[i]), tt_chart_color(run));
}

static void draw_legend(const struct tt_chart *chart, struct tt_text *out)
{
    double x = LEFT;
    bool marks = false;

    for (int r = 0; r < chart->n_runs; r++) {
        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"28\" y2=\"28\" stroke=\"%s\" stroke-width=\"3\"/>\n", x,
                    x + 22.0, tt_chart_color(r));
        text_at(out, x + 29.0, 32.0, "font-size=\"13\"", chart->run[r]);
        x += 54.0 + CHAR * (double)strlen(chart->run[r]);
    }
    for (int i = 0; i < chart->n_panels; i++)
        marks = marks || chart->panel[i].has_marks;
    if (!marks)
        return;
    tt_text_add(out,
                "<circle cx=\"%.1f\" cy=\"28\" r=\"3.5\" fill=\"#ffffff\" stroke=\"#555555\" stroke-width=\"1.5\"/>\n",
                x + 6.0);
    text_at(out, x + 16.0, 32.0, "font-size=\"13\"", "validation");
}

void tt_chart_draw_svg(const struct tt_chart *chart, struct tt_text *out)
{
    int rows = (chart->n_panels + across(chart) - 1) / across(chart);
    int height = TOP + rows * (TITLE + plot_height(chart) + UNDER) + 6;

    tt_text_add(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                WIDTH, height, WIDTH, height, WIDTH, height);
    draw_legend(chart, out);
    for (int i = 0; i < chart->n_panels; i++) {
        struct box box = box_of(chart, i);

        draw_axes(chart, &chart->panel[i], &box, out);
        for (int r = 0; r < chart->n_runs; r++)
            draw_curve(chart, &chart->panel[i], &box, r, out);
    }
    tt_text_add(out, "</svg>\n");
}
