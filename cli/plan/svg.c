/* SPDX-License-Identifier: MIT
 *
 * A planned rank as a picture: memory by kind over the instructions, and below it computation and communication over
 * predicted time. It is plain SVG on a light background, and its labels make it readable without colours.
 */
#include "cli/plan/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/plan/view.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "core/program/instr/instr.h"

/* --- parts of pictures --- */

enum { DIGIT = 7 }; /* the width of a character */
void tt_svg_begin(int width, int height, struct tt_text *out)
{
    tt_text_add(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                width, height, width, height, width, height);
}

void tt_svg_text(struct tt_text *out, double x, double y, const char *anchor, const char *attributes, const char *text)
{
    tt_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, attributes);
    tt_text_add_xml(out, text);
    tt_text_add(out, "</text>\n");
}

/* Draws a colored square of a legend with its name; returns where the next one may begin. */
static double draw_swatch(double x, int y, const char *color, const char *name, struct tt_text *out)
{
    tt_text_add(out, "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10, color);
    tt_svg_text(out, x + 17.0, y, "start", "", name);
    return x + 34.0 + DIGIT * (double)strlen(name);
}

/* A round number; at most six of them fit in `range`. */
static double round_step(double range)
{
    double power = pow(10.0, floor(log10(range / 5.0)));

    static const double factors[] = {1.0, 2.0, 5.0};

    for (int i = 0; i < 3; i++)
        if (range / (factors[i] * power) <= 6.0)
            return factors[i] * power;
    return 10.0 * power;
}

void tt_svg_time_axis(int left, int width, int top, int bottom, double seconds, struct tt_text *out)
{
    double step = seconds > 0.0 ? round_step(seconds) : 1.0;
    char label[32];

    for (int i = 0; i * step <= seconds * 1.0001; i++) {
        double t = i * step, x = left + (seconds > 0.0 ? t * width / seconds : t);

        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#dddddd\"/>\n", x, x, top, bottom);
        if (seconds < 1.0)
            (void)snprintf(label, sizeof label, "%.4g ms", 1e3 * t);
        else
            (void)snprintf(label, sizeof label, "%.4g s", t);
        tt_svg_text(out, x, bottom + 16, "middle", "", t == 0.0 ? "0" : label);
    }
}

/*
 * --- the run of a pipeline ---
 *
 * The picture of a run of a pipeline. Turns of the second and later stages of a rank are paler, so that readers can
 * tell the stages apart without reading titles.
 */

enum {
    RUN_WIDTH = 1120,
    RUN_LEFT = 80, /* left edge of the lanes; labels are left of it */
    RUN_PLOT = 940,
    RUN_TOP = 74,
    RUN_LANE = 26,
    RUN_GAP = 6,
    RUN_MIDDLE = RUN_LANE / 2 + 4, /* baseline of a label, within its lane */
    RUN_FOOT = 64,                 /* space below the lanes, for times and legend */
};

#define BUBBLE "#eeeeee"

static const struct {
    char letter;
    const char *name, *color;
} kinds[] = {
    {'F', "forward", "#4477aa"},
    {'B', "backward", "#ccbb44"},
    {'I', "input part of backward", "#aa3377"},
    {'W', "weight part of backward", "#228833"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static int kind_of(char letter)
{
    int kind = 0;

    while (kinds[kind].letter != letter)
        kind++;
    return kind;
}

static int lane_top(int rank)
{
    return RUN_TOP + rank * (RUN_LANE + RUN_GAP);
}

static void draw_turn(const struct tt_pipeline *p, int rank, int t, struct tt_span span, double scale,
                      struct tt_text *out)
{
    const struct tt_turn *turn = &p->orders[rank].turns[t];
    char letter = tt_pipeline_letter(p, turn), label[16];
    double width = (span.end - span.begin) * scale, x = RUN_LEFT + span.begin * scale;
    int place = 0; /* how many of the rank's stages come before this one */

    for (int s = 0; s < turn->stage; s++)
        place += p->rank_of_stage[s] == p->rank_of_stage[turn->stage];
    (void)snprintf(label, sizeof label, "%d", turn->microbatch);
    tt_text_add(out,
                "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" fill-opacity=\"%.2g\"%s><title>"
                "%d%c%d: %.4g ms</title></rect>\n",
                x, lane_top(rank), width < 0.3 ? 0.3 : width, RUN_LANE, kinds[kind_of(letter)].color,
                place == 0 ? 1.0 : 0.5 + 0.2 / place, width > 3.0 ? " stroke=\"#ffffff\" stroke-width=\"0.8\"" : "",
                turn->stage, letter, turn->microbatch, 1e3 * (span.end - span.begin));
    if (width >= DIGIT * (double)strlen(label) + 2.0)
        tt_svg_text(out, x + width / 2.0, lane_top(rank) + RUN_MIDDLE, "middle",
                    place == 0 && letter != 'B' ? "fill=\"#ffffff\" pointer-events=\"none\""
                                                : "pointer-events=\"none\"",
                    label);
}

static void draw_turns(const struct tt_pipeline *p, const struct tt_pipeline_run *run, int rank, double scale,
                       struct tt_text *out)
{
    char label[48];

    (void)snprintf(label, sizeof label, "rank %d", rank);
    tt_svg_text(out, RUN_LEFT - 8, lane_top(rank) + RUN_MIDDLE, "end", "", label);
    for (int t = 0; t < p->orders[rank].n; t++)
        draw_turn(p, rank, t, run->spans[rank][t], scale, out);
    (void)snprintf(label, sizeof label, "%.1f %% idle",
                   run->makespan > 0.0 ? 100.0 * run->bubble[rank] / run->makespan : 0.0);
    tt_svg_text(out, RUN_LEFT + RUN_PLOT + 8, lane_top(rank) + RUN_MIDDLE, "start", "fill=\"#555555\"", label);
}

/* The legend: the kinds of turns that occur, and the bubble. */
static void legend(const struct tt_pipeline *p, int y, struct tt_text *out)
{
    bool used[KINDS] = {false};
    double x = RUN_LEFT;

    for (int rank = 0; rank < p->ranks; rank++)
        for (int t = 0; t < p->orders[rank].n; t++)
            used[kind_of(tt_pipeline_letter(p, &p->orders[rank].turns[t]))] = true;
    for (int k = 0; k <= KINDS; k++) {
        if (k == KINDS)
            x = draw_swatch(x, y, BUBBLE, "bubble", out);
        else if (used[k])
            x = draw_swatch(x, y, kinds[k].color, kinds[k].name, out);
    }
    if (p->n_stages > p->ranks)
        tt_svg_text(out, x, y, "start", "fill=\"#555555\"", "paler: later stages of a rank");
}

int tt_plan_pipeline_svg_height(const struct tt_pipeline *pipeline)
{
    return lane_top(pipeline->ranks) + RUN_FOOT;
}

void tt_plan_pipeline_svg(const struct tt_pipeline *pipeline, const struct tt_pipeline_run *run, const char *about,
                          struct tt_text *out)
{
    int bottom = lane_top(pipeline->ranks);
    double scale = run->makespan > 0.0 ? RUN_PLOT / run->makespan : 1.0;
    char title[200];

    tt_svg_begin(RUN_WIDTH, tt_plan_pipeline_svg_height(pipeline), out);
    (void)snprintf(title, sizeof title, "Pipeline %s: %d ranks, %d stages, %d microbatches, %.1f %% idle",
                   pipeline->schedule->name, pipeline->ranks, pipeline->n_stages, pipeline->microbatches,
                   100.0 * run->bubble_share);
    tt_svg_text(out, 20, 28, "start", "font-size=\"16\" font-weight=\"bold\"", title);
    tt_svg_text(out, 20, 48, "start", "fill=\"#555555\"", about);
    for (int rank = 0; rank < pipeline->ranks; rank++)
        tt_text_add(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"" BUBBLE "\"/>\n", RUN_LEFT,
                    lane_top(rank), RUN_PLOT, RUN_LANE);
    tt_svg_time_axis(RUN_LEFT, RUN_PLOT, RUN_TOP, bottom, run->makespan, out);
    for (int rank = 0; rank < pipeline->ranks; rank++)
        draw_turns(pipeline, run, rank, scale, out);
    legend(pipeline, bottom + 42, out);
    tt_text_add(out, "</svg>\n");
}

/* --- a plan --- */

enum {
    WIDTH = 1120,
    LEFT = 150, /* left edge of the plots; labels are left of it */
    PLOT = 930,
    TOP = 92, /* top of the memory plot */
    MEMORY = 300,
    LANES = TOP + MEMORY + 150, /* top of the lanes */
    LANE = 34,
    GAP = 10,
    MIDDLE = LANE / 2 + 4, /* baseline of a label, within its lane */
    MOST_COLUMNS = PLOT,   /* most columns of the memory plot: one per pixel */
};

/* --- memory --- */

static void layer_path(const struct tt_summary *s, int layer, int columns, double top, struct tt_text *out)
{
    tt_text_add(out, "<path fill=\"%s\" d=\"", tt_plan_layers[layer].color);
    for (int pass = 0; pass < 2; pass++) { /* the upper edge from left to right, then the lower edge back */
        for (int k = 0; k < columns; k++) {
            int c = pass == 0 ? k : columns - 1 - k;
            int64_t n = s->program->n_instrs;
            int most = tt_plan_largest(s, (int)(c * n / columns), (int)((c + 1) * n / columns));
            double x0 = LEFT + (double)PLOT * c / columns, x1 = LEFT + (double)PLOT * (c + 1) / columns, y;
            int64_t sum = 0;

            for (int l = 0; l < layer + (pass == 0); l++)
                sum += tt_plan_layer_bytes(s, l, most);
            y = TOP + MEMORY * (1.0 - (double)sum / top);
            tt_text_add(out, "%s%.1f %.1f L%.1f %.1f", pass == 0 && k == 0 ? "M" : "L", pass == 0 ? x0 : x1, y,
                        pass == 0 ? x1 : x0, y);
        }
    }
    tt_text_add(out, "Z\"><title>%s</title></path>\n", tt_plan_layers[layer].name);
}

/* A round interval in binary units: 50 MiB, 2 GiB. */
static double memory_step(double top)
{
    double unit = 1.0;

    while (top / unit >= 1024.0)
        unit *= 1024.0;
    return round_step(top / unit) * unit;
}

static void memory_axis(const struct tt_summary *s, double top, struct tt_text *out)
{
    char label[32];

    for (int i = 0; i * memory_step(top) <= top; i++) {
        double bytes = i * memory_step(top), y = TOP + MEMORY * (1.0 - bytes / top);

        tt_text_add(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", LEFT, LEFT + PLOT,
                    y, y);
        tt_svg_text(out, LEFT - 8, y + 4, "end", "", bytes > 0.0 ? tt_text_bytes(label, sizeof label, bytes) : "0");
    }
    for (int tick = 0; tick <= 4; tick++) {
        int i = (int)((int64_t)s->program->n_instrs * tick / 4);

        (void)snprintf(label, sizeof label, "%d", i);
        tt_svg_text(out, LEFT + PLOT * tick / 4.0, TOP + MEMORY + 16, tick == 4 ? "end" : "middle", "", label);
    }
    tt_svg_text(out, LEFT + PLOT / 2.0, TOP + MEMORY + 34, "middle", "fill=\"#555555\"", "instruction of the step");
}

static void mark_peak(const struct tt_plan_view *v, double top, struct tt_text *out)
{
    const struct tt_program *p = v->summary.program;
    double x = LEFT + (double)PLOT * (p->peak_instr + 0.5) / p->n_instrs;
    double y = TOP + MEMORY * (1.0 - (double)tt_summary_live_bytes(&v->summary, p->peak_instr) / top);
    struct tt_text what = {0};
    char bytes[32];

    tt_text_add(&what, "peak %s: ",
                tt_text_bytes(bytes, sizeof bytes, (double)tt_summary_live_bytes(&v->summary, p->peak_instr)));
    tt_instr_text(p, p->peak_instr, &what);
    tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#222222\"/>\n", x, x, y, y - 12.0);
    tt_svg_text(out, x, y - 16.0,
                x > LEFT + PLOT * 0.7   ? "end"
                : x < LEFT + PLOT * 0.3 ? "start"
                                        : "middle",
                "", what.text);
    tt_text_release(&what);
}

static void memory_legend(struct tt_text *out)
{
    double x = LEFT;
    int y = TOP + MEMORY + 58;

    for (int l = 0; l < tt_plan_n_layers; l++) {
        if (x + 34.0 + DIGIT * (double)strlen(tt_plan_layers[l].name) > LEFT + PLOT) {
            x = LEFT;
            y += 20;
        }
        x = draw_swatch(x, y, tt_plan_layers[l].color, tt_plan_layers[l].name, out);
    }
}

static void memory_plot(const struct tt_plan_view *v, struct tt_text *out)
{
    const struct tt_summary *s = &v->summary;
    int columns = s->program->n_instrs < MOST_COLUMNS ? s->program->n_instrs : MOST_COLUMNS;
    double top = 1.15 * (double)tt_summary_live_bytes(s, s->program->peak_instr);

    tt_svg_text(out, LEFT, TOP - 14, "start", "font-weight=\"bold\"", "Memory of the rank");
    memory_axis(s, top, out);
    for (int l = 0; l < tt_plan_n_layers; l++)
        layer_path(s, l, columns, top, out);
    mark_peak(v, top, out);
    memory_legend(out);
}

/* --- lanes --- */

enum block { FORWARD, BACKWARD, UPDATE, WAITING, GATHERING, TRANSFERRING, EXCHANGING, REDUCING, ALL_REDUCING, BLOCKS };
enum lane { COMPUTE, UNSHARDS, REDUCES, ALL_REDUCES, N_LANES };

static const struct {
    const char *name, *color;
    enum lane lane;
} blocks[BLOCKS] = {
    [FORWARD] = {"forward", "#4477aa", COMPUTE},
    [BACKWARD] = {"backward", "#ccbb44", COMPUTE},
    [UPDATE] = {"sums, norm, update", "#228833", COMPUTE},
    [WAITING] = {"waiting for a collective", "#ee6677", COMPUTE},
    [GATHERING] = {"unshard (all-gather)", "#66ccee", UNSHARDS},
    [TRANSFERRING] = {"between stages", "#ee9944", UNSHARDS},
    [EXCHANGING] = {"inside a layer", "#ddaa33", UNSHARDS},
    [REDUCING] = {"reduce-scatter", "#aa3377", REDUCES},
    [ALL_REDUCING] = {"all-reduce", "#777777", ALL_REDUCES},
};

static enum block block_of(const struct tt_program *program, int i)
{
    static const enum block of_phase[TT_PHASES] = {[TT_PHASE_FORWARD] = FORWARD,
                                                   [TT_PHASE_BACKWARD] = BACKWARD,
                                                   [TT_PHASE_SUMS] = UPDATE,
                                                   [TT_PHASE_UPDATE] = UPDATE,
                                                   [TT_PHASE_WAIT] = WAITING};
    static const enum block of_op[TT_COLLECTIVE_OPS] = {[TT_ALL_GATHER] = GATHERING,
                                                        [TT_REDUCE_SCATTER] = REDUCING,
                                                        [TT_ALL_SUM] = ALL_REDUCING,
                                                        [TT_SEND] = TRANSFERRING,
                                                        [TT_RECEIVE] = TRANSFERRING};
    const struct tt_instr *instr = &program->instrs[i];
    enum tt_phase phase = tt_instr_phase(program, instr);

    if (phase == TT_PHASE_EXCHANGE && tt_purpose_row(instr->purpose)->among == TT_AMONG_PEERS)
        return EXCHANGING;
    return phase == TT_PHASE_EXCHANGE ? of_op[instr->collective.op] : of_phase[phase];
}

/* A section of a lane that is drawn as one rectangle. */
struct stretch {
    enum block block;
    double begin, end;
    int first, last; /* instructions */
};

static void draw_stretch(const struct tt_plan_view *v, const struct stretch *s, double scale, struct tt_text *out)
{
    enum lane lane = blocks[s->block].lane;
    double width = (s->end - s->begin) * scale;
    struct tt_text text = {0};

    if (s->end <= s->begin)
        return;
    tt_text_add(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s><title>",
                LEFT + s->begin * scale, LANES + (int)lane * (LANE + GAP), width < 0.3 ? 0.3 : width, LANE,
                blocks[s->block].color,
                lane != COMPUTE && width > 3.0 ? " stroke=\"#ffffff\" stroke-width=\"0.8\"" : "");
    tt_instr_text(v->summary.program, s->first, &text);
    if (s->last != s->first) {
        tt_text_add(&text, " … ");
        tt_instr_text(v->summary.program, s->last, &text);
    }
    tt_text_add_xml(out, text.text);
    tt_text_release(&text);
    tt_text_add(out, ": %.3f ms</title></rect>\n", 1e3 * (s->end - s->begin));
}

/* Draws a lane. Items of the same kind without a gap between them become one rectangle; collectives are joined only if
 * they are too thin to be visible. */
static void draw_lane(const struct tt_plan_view *v, enum lane lane, double scale, struct tt_text *out)
{
    const struct tt_program *p = v->summary.program;
    struct stretch open = {.first = TT_NONE};

    for (int i = 0; i < p->n_instrs; i++) {
        enum block block = block_of(p, i);
        struct tt_span span = lane == COMPUTE ? v->time.compute[i] : v->time.transfer[i];
        /* collectives stay separate unless they overlap */
        double narrow = lane == COMPUTE ? 0.3 / scale : -1.0 / scale;

        if (lane != blocks[block].lane || span.end <= span.begin)
            continue;
        if (lane != COMPUTE && (span.end - span.begin) * scale < 1.0)
            narrow = 0.5 / scale;
        if (open.first != TT_NONE && open.block == block && span.begin - open.end <= narrow) {
            open.end = span.end;
            open.last = i;
            continue;
        }
        if (open.first != TT_NONE)
            draw_stretch(v, &open, scale, out);
        open = (struct stretch){block, span.begin, span.end, i, i};
    }
    if (open.first != TT_NONE)
        draw_stretch(v, &open, scale, out);
}

static int lanes_used(const struct tt_plan_view *v)
{
    if (tt_summary_count(&v->summary, TT_ALL_SUM))
        return N_LANES;
    if (tt_summary_count(&v->summary, TT_ALL_GATHER))
        return ALL_REDUCES;
    return v->job.pipeline ? ALL_REDUCES : tt_summary_exchanges(&v->summary) ? REDUCES : UNSHARDS;
}

static void lane_legend(const struct tt_plan_view *v, int y, struct tt_text *out)
{
    double x = LEFT;

    for (int b = 0; b < BLOCKS; b++) {
        if ((int)blocks[b].lane >= lanes_used(v) || (b == WAITING && lanes_used(v) == UNSHARDS) ||
            (b == TRANSFERRING && !v->job.pipeline) || (b == EXCHANGING && !tt_summary_exchanges(&v->summary)))
            continue;
        x = draw_swatch(x, y, blocks[b].color, blocks[b].name, out);
    }
}

static void lanes_plot(const struct tt_plan_view *v, struct tt_text *out)
{
    static const char *const names[N_LANES] = {"compute", "unshard", "reduce-scatter", "all-reduce"};
    double scale = v->time.step_sec > 0.0 ? PLOT / v->time.step_sec : 1.0;
    const char *transfers = v->job.pipeline                     ? "unshard, send"
                            : tt_summary_exchanges(&v->summary) ? "unshard, layer"
                                                                : names[UNSHARDS];
    int used = lanes_used(v), bottom = LANES + used * (LANE + GAP);
    char title[200];

    (void)snprintf(title, sizeof title, "Compute and communication, predicted for %s: step %.4g s, exposed %.4g s",
                   v->machine.name, v->time.step_sec, v->time.exposed_sec);
    tt_svg_text(out, LEFT, LANES - 14, "start", "font-weight=\"bold\"", title);
    tt_svg_time_axis(LEFT, PLOT, LANES, bottom, v->time.step_sec, out);
    for (int lane = 0; lane < used; lane++) {
        tt_svg_text(out, LEFT - 8, LANES + lane * (LANE + GAP) + MIDDLE, "end", "",
                    lane == UNSHARDS ? transfers : names[lane]);
        draw_lane(v, (enum lane)lane, scale, out);
    }
    lane_legend(v, bottom + 42, out);
}

int tt_plan_svg(const struct tt_plan_view *v, const char *path)
{
    struct tt_text out = {0}, words = {0}, title = {0}, about = {0};
    int height = LANES + lanes_used(v) * (LANE + GAP) + 64, rc;
    int below = v->job.pipeline ? tt_plan_pipeline_svg_height(v->job.pipeline) : 0;

    tt_svg_begin(WIDTH, height + below, &out);
    tt_text_add(&title, "%s, rank %d of %d: ", v->job.model->title, v->rank, v->job.mesh.n_ranks);
    tt_mesh_text(&v->job.mesh, &title);
    tt_job_policies_text(v->cfg, &words);
    tt_svg_text(&out, 20, 28, "start", "font-size=\"16\" font-weight=\"bold\"", title.text);
    tt_text_release(&title);
    tt_svg_text(&out, 20, 48, "start", "fill=\"#555555\"", words.text);
    memory_plot(v, &out);
    lanes_plot(v, &out);
    if (v->job.pipeline) { /* below the rank's own pictures */
        tt_text_add(&about, "one of %lld runs of a step, predicted for %s",
                    (long long)(v->job.microbatches / v->job.pipeline->microbatches), v->machine.name);
        tt_text_add(&out, "<g transform=\"translate(0 %d)\">\n", height);
        tt_plan_pipeline_svg(v->job.pipeline, &v->all.run, about.text, &out);
        tt_text_add(&out, "</g>\n");
        tt_text_release(&about);
    }
    tt_text_add(&out, "</svg>\n");
    rc = tt_file_replace(path, out.text, out.size);
    tt_text_release(&out);
    tt_text_release(&words);
    return rc;
}
