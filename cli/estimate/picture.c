/* SPDX-License-Identifier: MIT
 *
 * Pictures of jobs on clusters: how they scale, and what their steps consist of.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/estimate/screen.h"
#include "cli/plan/svg.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "estimate/model/job.h"

enum { WIDTH = 1240, LEAST_LEFT = 200, LETTER = 6, RIGHT = 90, BAR = 22, GAP = 10, PLOT = 240, MARGIN = 70 };

/* A picture with more turns is too dense to read. */
enum { MOST_TURNS = 6000 };

static const char *const colors[TT_CLUSTER_PARTS] = {"#4472c4", "#70ad47", "#a5a5a5", "#7f6000", "#c00000", "#ff7f7f",
                                                     "#7030a0", "#ed7d31", "#00b0b0", "#ffd966", "#404040", "#d9d9d9"};

const char *tt_cluster_picture_color(int part)
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

void tt_cluster_picture_number(char *buf, size_t size, double value)
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
            tt_cluster_picture_number(label, sizeof label, value_of(p, i));
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
    struct plot p = {.picture = picture, .out = out, .y = top, .width = (WIDTH - 3.0 * MARGIN) / 2};

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
    double x = left, scale = (WIDTH - left - RIGHT) / seconds;
    char label[80];

    tt_svg_text(out, left - 8, y + BAR - 7, "end", "font-size=\"11\"", b->text);
    for (int i = 0; i < TT_CLUSTER_PARTS; i++) {
        double sec = tt_cluster_part_sec(&b->time, &tt_cluster_parts[i]);

        if (sec * scale < 0.05)
            continue;
        tt_text_add(out,
                    "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s><title>%s %.4g s</title>"
                    "</rect>\n",
                    x, y, sec * scale, BAR, colors[i], b->fit == TT_FIT_NO ? " opacity=\"0.4\"" : "",
                    tt_cluster_parts[i].title, sec);
        x += sec * scale;
    }
    (void)snprintf(label, sizeof label, "%.3g s, %.0f GiB%s", b->time.total, b->bytes / 1073741824.0, words[b->fit]);
    tt_svg_text(out, x + 6, y + BAR - 7, "start", "font-size=\"11\"", label);
}

static void bars(const struct tt_cluster_picture *p, double top, struct tt_text *out)
{
    double most = 0;
    int left = LEAST_LEFT, bottom = (int)(top + 50 + p->n_bars * (BAR + GAP));

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
    tt_svg_time_axis(left, WIDTH - left - RIGHT, (int)top + 44, bottom, most, out);
    for (int i = 0; i < p->n_bars; i++)
        bar(&p->bar[i], left, top + 50 + i * (BAR + GAP), most, out);
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
    int height = 60 + plots + (p->n_bars ? 90 + p->n_bars * (BAR + GAP) : 0) + p->lanes_height;
    struct tt_text out = {0};
    int rc;

    tt_svg_begin(WIDTH, height, &out);
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
