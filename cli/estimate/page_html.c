/* SPDX-License-Identifier: MIT
 *
 * An answer as a page: one file, which needs no network.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/estimate/cluster.h"
#include "cli/estimate/screen.h"
#include "cli/plan/svg.h"
#include "cli/run/page.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "estimate/model/job.h"

/* Pictures of jobs on clusters: how they scale, and what their steps consist of. */

enum {
    PICTURE_WIDTH = 1240,
    LEAST_LEFT = 200,
    LETTER = 6,
    RIGHT_MARGIN = 90,
    BAR_HEIGHT = 22,
    GAP = 10,
    PLOT = 240,
    MARGIN = 70
};

/* A picture with more turns is too dense to read. */
enum { MOST_TURNS = 6000 };

static const char *const colors[TT_CLUSTER_PARTS] = {"#4472c4", "#70ad47", "#a5a5a5", "#7f6000", "#c00000", "#ff7f7f",
                                                     "#7030a0", "#ed7d31", "#00b0b0", "#ffd966", "#404040", "#d9d9d9"};

/* The color of a part of a step. */
static const char *part_color(int part)
{
    return colors[part];
}

void tt_cluster_picture_bar(struct tt_cluster_picture *p, const char *text, const struct tt_cluster_layout *layout)
{
    TT_PUSH(p->bar, p->n_bars, p->cap_bars) =
        (struct tt_cluster_bar){tt_strdup(text), layout->time, layout->memory.total, tt_cluster_fits(&layout->memory)};
}

void tt_cluster_picture_point(struct tt_cluster_picture *p, const struct tt_cluster_layout *layout)
{
    const struct tt_cluster_job *job = &layout->job;
    double flops = tt_cluster_flops(layout);

    TT_PUSH(p->point, p->n_points, p->cap_points) =
        (struct tt_cluster_point){tt_cluster_devices(job), layout->tokens_per_sec * tt_cluster_devices(job),
                                  flops / tt_cluster_peak_flops(job), tt_cluster_fits(&layout->memory) != TT_FIT_NO};
}

/* --- how jobs scale --- */

struct plot {
    const struct tt_cluster_picture *picture;
    struct tt_text *out;
    double x, y, width; /* the box of a plot, PLOT high */
    double first, last; /* range of devices */
    double low, high;   /* range of values */
    bool log_scale;
};

static double x_of(const struct plot *p, double devices)
{
    return p->x + p->width * log(devices / p->first) / log(p->last / p->first);
}

static double y_of(const struct plot *p, double value)
{
    double at = p->log_scale ? log(value / p->low) / log(p->high / p->low) : (value - p->low) / (p->high - p->low);

    return p->y + PLOT * (1 - at);
}

static double value_of(const struct plot *p, int i)
{
    return p->log_scale ? p->picture->point[i].tokens_per_sec : p->picture->point[i].mfu;
}

/* "58.6 k", "28.8 M": a number in a picture, into buf. */
static void short_number(char *buf, size_t size, double value)
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    size_t u = 0;

    while (value >= 999.5 && u + 1 < sizeof units / sizeof *units) {
        value /= 1000;
        u++;
    }
    (void)snprintf(buf, size, "%.3g%s", value, units[u]);
}

/* A number above a point, inside the box. */
static void above(const struct plot *p, double x, double y, const char *label)
{
    enum { HALF = 28, INSET = 4 };
    bool at_begin = x - p->x < HALF, at_end = p->x + p->width - x < HALF;

    tt_svg_text(p->out,
                at_begin ? p->x + INSET
                : at_end ? p->x + p->width - INSET
                         : x,
                y - 8,
                at_begin ? "start"
                : at_end ? "end"
                         : "middle",
                "font-size=\"10\"", label);
}

static void axes(const struct plot *p, const char *title)
{
    const struct tt_cluster_picture *picture = p->picture;
    char label[40];

    tt_svg_text(p->out, p->x, p->y - 10, "start", "font-weight=\"bold\"", title);
    tt_text_add(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"none\" stroke=\"#999999\"/>\n",
                p->x, p->y, p->width, PLOT);
    for (int i = 0; i < picture->n_points; i++) {
        (void)snprintf(label, sizeof label, "%.0f", picture->point[i].devices);
        tt_svg_text(p->out, x_of(p, picture->point[i].devices), p->y + PLOT + 16, "middle", "", label);
        if (p->log_scale)
            short_number(label, sizeof label, value_of(p, i));
        else
            (void)snprintf(label, sizeof label, "%.1f %%", 100 * value_of(p, i));
        above(p, x_of(p, picture->point[i].devices), y_of(p, value_of(p, i)), label);
    }
    tt_svg_text(p->out, p->x + p->width / 2, p->y + PLOT + 34, "middle", "fill=\"#555555\"", "ranks");
}

static void curve(const struct plot *p)
{
    const struct tt_cluster_picture *picture = p->picture;

    tt_text_add(p->out, "<polyline fill=\"none\" stroke=\"#4472c4\" stroke-width=\"2\" points=\"");
    for (int i = 0; i < picture->n_points; i++)
        tt_text_add(p->out, "%s%.1f,%.1f", i ? " " : "", x_of(p, picture->point[i].devices), y_of(p, value_of(p, i)));
    tt_text_add(p->out, "\"/>\n");
    for (int i = 0; i < picture->n_points; i++) /* hollow if it does not fit */
        tt_text_add(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" stroke=\"#4472c4\" fill=\"%s\"/>\n",
                    x_of(p, picture->point[i].devices), y_of(p, value_of(p, i)),
                    picture->point[i].fits ? "#4472c4" : "#ffffff");
}

static void scaling(const struct tt_cluster_picture *picture, double top, struct tt_text *out)
{
    const struct tt_cluster_point *first = &picture->point[0];
    double most = first->tokens_per_sec, least = most, last = first->devices, begin = last, mfu = 0, ideal;
    struct plot p = {.picture = picture, .out = out, .y = top, .width = (PICTURE_WIDTH - 3.0 * MARGIN) / 2};

    for (int i = 0; i < picture->n_points; i++) {
        most = fmax(most, picture->point[i].tokens_per_sec);
        least = fmin(least, picture->point[i].tokens_per_sec);
        last = fmax(last, picture->point[i].devices);
        begin = fmin(begin, picture->point[i].devices);
        mfu = fmax(mfu, picture->point[i].mfu);
    }
    p.first = begin / 1.2;
    p.last = last * 1.2;
    p.x = MARGIN;
    p.log_scale = true;
    ideal = first->tokens_per_sec / first->devices;
    p.low = fmin(least, ideal * begin) / 1.5;
    p.high = fmax(most, ideal * last) * 1.5;
    axes(&p, "tokens/s of all ranks; dashed: as at the first number of ranks");
    tt_text_add(out,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#999999\" stroke-dasharray=\"5,4\"/>\n",
                x_of(&p, begin), y_of(&p, ideal * begin), x_of(&p, last), y_of(&p, ideal * last));
    curve(&p);
    p.x = 2 * MARGIN + p.width;
    p.log_scale = false;
    p.low = 0;
    p.high = fmax(1.15 * mfu, 0.01);
    axes(&p, "MFU; a hollow point does not fit");
    curve(&p);
}

/* --- steps --- */

static void bar(const struct tt_cluster_bar *b, int left, double y, double seconds, struct tt_text *out)
{
    static const char *const words[] = {[TT_FIT_YES] = "", [TT_FIT_TIGHT] = ", tight", [TT_FIT_NO] = ", does not fit"};
    double x = left, scale = (PICTURE_WIDTH - left - RIGHT_MARGIN) / seconds;
    char label[80];

    tt_svg_text(out, left - 8, y + BAR_HEIGHT - 7, "end", "font-size=\"11\"", b->text);
    for (int i = 0; i < TT_CLUSTER_PARTS; i++) {
        double sec = tt_cluster_part_sec(&b->time, &tt_cluster_parts[i]);

        if (sec * scale < 0.05)
            continue;
        tt_text_add(out,
                    "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s><title>%s %.4g s</title>"
                    "</rect>\n",
                    x, y, sec * scale, BAR_HEIGHT, colors[i], b->fit == TT_FIT_NO ? " opacity=\"0.4\"" : "",
                    tt_cluster_parts[i].title, sec);
        x += sec * scale;
    }
    (void)snprintf(label, sizeof label, "%.3g s, %.0f GiB%s", b->time.total, b->bytes / 1073741824.0, words[b->fit]);
    tt_svg_text(out, x + 6, y + BAR_HEIGHT - 7, "start", "font-size=\"11\"", label);
}

static void bars(const struct tt_cluster_picture *p, double top, struct tt_text *out)
{
    double most = 0;
    int left = LEAST_LEFT, bottom = (int)(top + 50 + p->n_bars * (BAR_HEIGHT + GAP));

    for (int i = 0; i < p->n_bars; i++) {
        most = fmax(most, p->bar[i].time.total);
        left = (int)fmax(left, LETTER * (double)strlen(p->bar[i].text));
    }
    most *= 1.25;                                /* leaves room for the words behind a bar */
    for (int i = 0; i < TT_CLUSTER_PARTS; i++) { /* draws the legend */
        int column = i % 6, row = i / 6;
        double x = 20 + column * 180.0, y = top + 10 + row * 18.0;

        tt_text_add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10,
                    colors[i]);
        tt_svg_text(out, x + 18, y, "start", "", tt_cluster_parts[i].title);
    }
    tt_svg_time_axis(left, PICTURE_WIDTH - left - RIGHT_MARGIN, (int)top + 44, bottom, most, out);
    for (int i = 0; i < p->n_bars; i++)
        bar(&p->bar[i], left, top + 50 + i * (BAR_HEIGHT + GAP), most, out);
}

/* --- lanes --- */

int tt_cluster_picture_lanes(struct tt_cluster_picture *p, const struct tt_cluster_layout *layout)
{
    const struct tt_cluster_job *job = &layout->job;
    struct tt_cluster_lanes lanes = {0};
    char about[300], part[80] = "";
    int rc = 0;

    tt_text_release(&p->lanes);
    if (job->pp <= 1)
        return 0;
    TT_TRY(tt_cluster_lanes_make(job, MOST_TURNS, &lanes));
    if (lanes.microbatches < job->n_micro)
        (void)snprintf(part, sizeof part, "; drawn with %d of %.0f microbatches", lanes.microbatches, job->n_micro);
    (void)snprintf(about, sizeof about,
                   "simulated; a microbatch on a rank: forward %.4g ms, backward %.4g ms, of it gradients of weights "
                   "%.4g ms; a rank stands for %.0f devices%s",
                   1e3 * lanes.pass.forward, 1e3 * (lanes.pass.input + lanes.pass.weight), 1e3 * lanes.pass.weight,
                   tt_cluster_devices(job) / job->pp, part);
    tt_plan_pipeline_svg(lanes.pipeline, &lanes.run, about, &p->lanes);
    p->lanes_height = tt_plan_pipeline_svg_height(lanes.pipeline);
out:
    tt_cluster_lanes_release(&lanes);
    return rc;
}

int tt_cluster_picture_save(const struct tt_cluster_picture *p, const char *title, const char *path)
{
    bool scales = p->n_points > 1;
    int plots = scales ? PLOT + 90 : 0;
    int height = 60 + plots + (p->n_bars ? 90 + p->n_bars * (BAR_HEIGHT + GAP) : 0) + p->lanes_height;
    struct tt_text out = {0};
    int rc;

    tt_svg_begin(PICTURE_WIDTH, height, &out);
    tt_svg_text(&out, 20, 28, "start", "font-size=\"16\" font-weight=\"bold\"", title);
    if (scales)
        scaling(p, 70, &out);
    if (p->n_bars)
        bars(p, 50 + plots, &out);
    if (p->lanes.size)
        tt_text_add(&out, "<g transform=\"translate(0,%d)\">\n%s</g>\n", height - p->lanes_height, p->lanes.text);
    tt_text_add(&out, "</svg>\n");
    rc = tt_file_replace(path, out.text, out.size);
    tt_text_release(&out);
    return rc;
}

void tt_cluster_picture_release(struct tt_cluster_picture *p)
{
    for (int i = 0; i < p->n_bars; i++)
        tt_free(p->bar[i].text);
    tt_free(p->bar);
    tt_free(p->point);
    tt_text_release(&p->lanes);
    *p = (struct tt_cluster_picture){0};
}

static const double gib = 1024.0 * 1024.0 * 1024.0;

/* The units of the pictures, which scale with the page. */
enum { WIDE = 1220, HALF = 590 };

static void begin_svg(int width, int height, struct tt_text *out)
{
    tt_text_add(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", width, height);
}

static void rect(double x, double y, double width, double height, const char *color, const char *title,
                 struct tt_text *out)
{
    tt_text_add(out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>%s</title></rect>\n", x,
                y, fmax(width, 0.5), height, color, title);
}

/* --- memory --- */

static void add_memory(const struct tt_cluster_memory *m, struct tt_text *out)
{
    static const char *const color[TT_CLUSTER_MEMORY_PARTS] = {"#4472c4", "#ed7d31", "#70ad47", "#ffd966",
                                                               "#7030a0", "#a5a5a5", "#d9a5c5"};
    enum { TOP = 6, BAR = 34, BELOW = 6 };
    double most = fmax(m->total, m->usable), scale = WIDE / (1.02 * most), x = 0;
    struct tt_text legend = {0};
    char text[120];

    tt_text_add(out, "<section class=\"wide\"><h2>Memory of the device that needs most</h2>\n");
    begin_svg(WIDE, TOP + BAR + BELOW, out);
    for (int i = 0; i < TT_CLUSTER_MEMORY_PARTS; i++) {
        double bytes = tt_cluster_memory_part_bytes(m, &tt_cluster_memory_parts[i]);

        (void)snprintf(text, sizeof text, "%s %.1f GiB", tt_cluster_memory_parts[i].name, bytes / gib);
        rect(x, TOP, bytes * scale, BAR, color[i], text, out);
        x += bytes * scale;
        if (bytes >= 0.05 * gib)
            tt_text_add(&legend, "<li><i style=\"background:%s\"></i>%s</li>\n", color[i], text);
    }
    tt_text_add(out, "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%d\"/>\n", m->usable * scale,
                m->usable * scale, TOP + BAR + BELOW);
    tt_text_add(out, "</svg><ul>%s<li>dashed: usable %.1f GiB</li></ul></section>\n", legend.text, m->usable / gib);
    tt_text_release(&legend);
}

/* --- the step --- */

static void add_step(const struct tt_cluster_time *t, struct tt_text *out)
{
    enum { LANE = 20, LEFT = 130, RIGHT = 84 };
    double at = 0, scale = (HALF - LEFT - RIGHT) / t->total;
    char count[24];
    int n = 0;

    for (int i = 0; i < TT_CLUSTER_PARTS; i++)
        n += tt_cluster_part_sec(t, &tt_cluster_parts[i]) > 0.002 * t->total;
    tt_text_add(out, "<section><h2>A step of %s s</h2>\n", tt_cluster_sec_text(count, sizeof count, t->total));
    begin_svg(HALF, n * LANE + 4, out);
    for (int i = 0, lane = 0; i < TT_CLUSTER_PARTS; i++) {
        double sec = tt_cluster_part_sec(t, &tt_cluster_parts[i]), y = lane * LANE;
        char text[80];

        if (sec <= 0.002 * t->total) {
            at += sec;
            continue;
        }
        tt_svg_text(out, LEFT - 8, y + 14, "end", "class=\"strong\"", tt_cluster_parts[i].title);
        tt_text_add(out, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.0f\" y2=\"%.0f\"/>\n", LEFT, HALF, y + LANE,
                    y + LANE);
        (void)snprintf(text, sizeof text, "%s s, %.1f %%", tt_cluster_sec_text(count, sizeof count, sec),
                       100 * sec / t->total);
        rect(LEFT + at * scale, y + 3, sec * scale, LANE - 6, part_color(i), text, out);
        tt_svg_text(out, LEFT + (at + sec) * scale + 6, y + 14, "start", "", text);
        at += sec;
        lane++;
    }
    tt_text_add(out, "</svg></section>\n");
}

/* --- the number of devices --- */

struct curve {
    const char *title;
    double x[TT_CLUSTER_SCALES], y[TT_CLUSTER_SCALES];
    int n;
    double here; /* the number of devices of the answer */
};

static void add_curve(const struct curve *c, double left, struct tt_text *out)
{
    enum { WIDTH = 270, HEIGHT = 150, TOP = 34, EDGE = 18 };
    double low = INFINITY, high = 0;
    char text[40];

    for (int i = 0; i < c->n; i++) {
        low = fmin(low, c->y[i]);
        high = fmax(high, c->y[i]);
    }
    low /= 1.3;
    high *= 1.3;
    tt_svg_text(out, left, 12, "start", "class=\"strong\"", c->title);
    tt_text_add(out, "<rect class=\"grid\" x=\"%.0f\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", left, TOP, WIDTH,
                HEIGHT);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0)
            tt_text_add(out, "<polyline class=\"curve\" points=\"");
        for (int i = 0; i < c->n; i++) {
            double x = left + EDGE +
                       (WIDTH - 2 * EDGE) * (c->n > 1 ? log(c->x[i] / c->x[0]) / log(c->x[c->n - 1] / c->x[0]) : 0.5);
            double y = TOP + HEIGHT * (1 - log(c->y[i] / low) / log(high / low));

            if (pass == 0) {
                tt_text_add(out, "%.1f,%.1f ", x, y);
                continue;
            }
            tt_text_add(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n",
                        c->x[i] == c->here ? "here" : "point", x, y);
            short_number(text, sizeof text, c->y[i]);
            tt_svg_text(out, x, y - 8, "middle", "", text);
            (void)snprintf(text, sizeof text, "%.0f", c->x[i]);
            tt_svg_text(out, x, TOP + HEIGHT + 14, "middle", "", text);
        }
        if (pass == 0)
            tt_text_add(out, "\"/>\n");
    }
}

static void add_scale(const struct tt_cluster_question *q, const struct tt_cluster_answer *a, struct tt_text *out)
{
    const double price = q->in->typed.price, devices = tt_cluster_devices(&a->view.layout.job);
    struct tt_cluster_layout layout[TT_CLUSTER_SCALES];
    struct curve rate = {.title = "tokens/s of all devices", .here = devices}, cost = rate;
    int n = tt_cluster_answer_scale(q, (int)devices, layout);

    cost.title = price > 0 ? "dollars of the run" : "device-hours of the run";
    for (int i = 0; i < n; i++) {
        struct tt_cluster_course c = tt_cluster_course(&layout[i], a->view.course.tokens);

        rate.x[i] = cost.x[i] = tt_cluster_devices(&layout[i].job);
        rate.y[i] = layout[i].tokens_per_sec * rate.x[i];
        cost.y[i] = c.device_hours * (price > 0 ? price : 1);
    }
    rate.n = cost.n = n;
    tt_text_add(out, "<section><h2>By the number of devices%s</h2>\n",
                n > 0 ? ", each with its best layout" : ": nothing fits");
    if (n > 0) {
        begin_svg(HALF, 204, out);
        add_curve(&rate, 4, out);
        add_curve(&cost, 310, out);
        tt_text_add(out, "</svg>");
    }
    tt_text_add(out, "</section>\n");
}

/* --- alternatives --- */

static void add_cell(struct tt_text *out, double value, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void add_cell(struct tt_text *out, double value, const char *format, ...)
{
    char text[64];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    tt_text_add(out, "<td data-v=\"%.9g\">%s</td>", value, text);
}

/* "1,255" */
static void add_count(struct tt_text *out, double value)
{
    char text[32];

    add_cell(out, value, "%s", tt_text_count(text, sizeof text, llround(value)));
}

static void add_row(const struct tt_cluster_answer *a, const char *what, const struct tt_cluster_layout *l,
                    struct tt_text *out)
{
    const double price = a->in->typed.price;
    struct tt_cluster_course c = tt_cluster_course(l, a->view.course.tokens);
    double mfu = tt_cluster_flops(l) / tt_cluster_peak_flops(&l->job);
    enum tt_cluster_fit fit = tt_cluster_fits(&l->memory);
    char text[100];

    tt_text_add(out, "<tr%s><td>", fit == TT_FIT_NO ? " class=\"no\"" : "");
    tt_text_add_xml(out, what);
    tt_text_add(out, "</td><td>");
    tt_text_add_xml(out, tt_cluster_layout_brief(text, sizeof text, &l->job));
    tt_text_add(out, "; %.0f x %.0f, recompute %s%s</td>", l->job.n_micro, l->job.micro_batch,
                tt_cluster_again_words[l->job.again], l->job.float8 ? ", float8" : "");
    add_count(out, tt_cluster_devices(&l->job));
    add_count(out, l->tokens_per_sec);
    add_cell(out, mfu, "%.1f %%", 100 * mfu);
    add_cell(out, c.days, "%.3g", c.days);
    add_count(out, c.device_hours * (price > 0 ? price : 1));
    add_cell(out, l->memory.total, "%.1f", l->memory.total / gib);
    tt_text_add(out, "<td>%s</td></tr>\n", tt_cluster_fit_words[fit]);
}

static void add_alternatives(const struct tt_cluster_question *q, const struct tt_cluster_answer *a,
                             struct tt_text *out)
{
    enum { MOST = 10 };
    const struct tt_cluster_view *v = &a->view;
    struct tt_cluster_found found;
    char text[40];

    tt_cluster_answer_search(q, &v->layout.job, tt_cluster_devices(&v->layout.job), MOST, &found);
    tt_text_add(out,
                "<section class=\"wide\"><h2>Alternatives (click a title to sort)</h2>\n<table><thead><tr><th>what"
                "</th><th>layout</th><th>devices</th><th>tokens/s each</th><th>MFU</th><th>days</th><th>%s</th>"
                "<th>GiB</th><th>fits</th></tr></thead><tbody>\n",
                q->in->typed.price > 0 ? "dollars" : "device-hours");
    add_row(a, "this answer", &v->layout, out);
    for (int i = 0; i < a->n_remedies; i++)
        add_row(a, a->remedy[i].text, &a->remedy[i].layout, out);
    for (int i = 0; i < v->n_changes; i++)
        add_row(a, v->change[i].text, &v->change[i].layout, out);
    for (int i = 0; i < found.n; i++) {
        (void)snprintf(text, sizeof text, "search, place %d", i + 1);
        add_row(a, text, &found.layout[i], out);
    }
    tt_text_add(out, "</tbody></table></section>\n");
    tt_free(found.layout);
}

/* --- the page --- */

static void add_head(const struct tt_cluster_answer *a, struct tt_text *out)
{
    const struct tt_cluster_view *v = &a->view;
    const struct tt_cluster_job *job = &v->layout.job;
    struct tt_text verdict = {0}, about = {0};
    char count[24], sec[24];

    tt_cluster_answer_verdict(a, &verdict);
    tt_text_add(out, "<header><h1 class=\"%s\">", v->fit == TT_FIT_NO ? "no" : "yes");
    tt_text_add_xml(out, verdict.text);
    tt_text_add(&about, "%s, %s parameters, on %.0f x %s, %s; ", v->model,
                tt_cluster_params_text(count, sizeof count, &job->shape), tt_cluster_devices(job), job->machine->name,
                job->stack->name);
    tt_cluster_answer_layout(a, &about);
    tt_text_add(out, "</h1><p>");
    tt_text_add_xml(out, about.text);
    tt_text_add(out, "</p><p>Step %s s, in 8 of 10 cases ", tt_cluster_sec_text(sec, sizeof sec, v->layout.time.total));
    tt_text_add(out, "%s to ", tt_cluster_sec_text(sec, sizeof sec, v->layout.time.total * (1 - v->below)));
    tt_text_add(out, "%s s. ", tt_cluster_sec_text(sec, sizeof sec, v->layout.time.total * (1 + v->above)));
    for (int i = 0; i < v->n_near; i++) {
        tt_text_add(out, "%s", i == 0 ? "Measured runs near it: " : ", ");
        tt_text_add_xml(out, v->near[i]->id);
        tt_text_add(out, " (predicted %+.0f %%)", 100 * v->near_error[i]);
    }
    tt_text_add(out, "</p></header>\n<main>\n");
    tt_text_release(&verdict);
    tt_text_release(&about);
}

int tt_cluster_page_save(const struct tt_cluster_question *q, const struct tt_cluster_answer *a, const char *path)
{
    struct tt_cluster_picture picture = {0};
    struct tt_text out = {0}, title = {0};
    const char *rest;
    int rc = 0;

    tt_text_add(&title, "%s on %.0f x %s", a->view.model, tt_cluster_devices(&a->view.layout.job),
                a->view.layout.job.machine->name);
    tt_page_begin(&out, title.text);
    rest = tt_page_up_to(&out, tt_cluster_page_text, "@BODY@");
    add_head(a, &out);
    add_memory(&a->view.layout.memory, &out);
    add_step(&a->view.layout.time, &out);
    add_scale(q, a, &out);
    TT_TRY(tt_cluster_picture_lanes(&picture, &a->view.layout));
    if (picture.lanes.size)
        tt_text_add(&out, "<section class=\"wide\"><h2>The pipeline</h2><div class=\"white\">%s</div></section>\n",
                    picture.lanes.text);
    add_alternatives(q, a, &out);
    tt_text_add(&out, "</main>%s", rest);
    rc = tt_file_replace(path, out.text, out.size);
out:
    tt_cluster_picture_release(&picture);
    tt_text_release(&out);
    tt_text_release(&title);
    return rc;
}
