/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_WATCH_CHART_H
#define TT_CLI_WATCH_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/watch/history.h"
#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Curves of runs, ready to be drawn: a panel for each field, with a curve for each run. chart.c draws for a terminal
 * and as a picture, chart_html.c as a page.
 */

struct tt_chart_options {
    const char *const *key; /* fields of the step records, or loss/NAME; norm and speed are grad_norm and tps */
    int n_keys;             /* 0: loss, grad_norm, lr, tps, and the loss on each validation set: loss/NAME */
    int64_t from, to;       /* steps */
    double smooth;          /* weight of the past in an exponential mean, below 1; 0: the numbers themselves */
    bool log_scale;         /* of the values; values that are not positive are left out */
};

/** Points in ascending order of steps, all finite; thinned so that no picture shows the difference. */
struct tt_curve {
    int64_t n, cap;
    double *step, *value;
    int64_t points; /* before it was thinned */
};

struct tt_panel {
    char *field, *title;
    double low, high; /* the range of the values, with a margin; of their logarithms with log_scale */
    bool log_scale;
    bool smooths;           /* the curves: they are measured often and vary, unlike validations and the learning rate */
    struct tt_curve *curve; /* of each run */
    struct tt_curve *means; /* of each run: if its curve was thinned, the means of equally long parts; else empty */
    struct tt_curve *marks; /* of each run: validations */
};

struct tt_chart {
    int n_runs, n_panels;
    char **run; /* names */
    struct tt_panel *panel;
    double first, last; /* steps; first < last */
    bool has_marks;     /* some panel does */
};

/**
 * Makes the curves of runs, whose names and histories these are. A usual field that no run has is left
 * out. TT_EDATA: nothing to draw. The caller releases ret_chart.
 */
int tt_chart_make(int n_runs, const char *const *runs, const struct tt_history *history,
                  const struct tt_chart_options *options, struct tt_chart *ret_chart) TT_MUST_CHECK;
void tt_chart_release(struct tt_chart *chart);

/* ---- outputs ---- */

struct tt_chart_screen {
    int columns, lines; /* the chart needs no more; the last panels are left out if they do not fit */
    bool utf8;          /* braille; otherwise ASCII */
    bool color;
};

void tt_chart_draw_text(const struct tt_chart *chart, const struct tt_chart_screen *screen, struct tt_text *out);
void tt_chart_draw_svg(const struct tt_chart *chart, struct tt_text *out);

/** The contents of a page beside its curves, which it smooths itself: they are given as measured, on a linear scale. */
struct tt_chart_page {
    const struct tt_history *history; /* of each run */
    const json_t *status;             /* of each run: an array of what tt_status_make makes */
    double smooth;                    /* at first; a user changes it */
    bool log_scale;                   /* the same */
    int follow_sec; /* the file is written again: after so many seconds the page looks for newer numbers; 0: never */
};
/** page.html, with @TITLE@ where the title belongs, and @DATA@ where the JSON does that its script draws. */
extern const char tt_chart_page_text[];
extern const size_t tt_chart_page_text_size;

void tt_chart_draw_html(const struct tt_chart *chart, const struct tt_chart_page *page, struct tt_text *out);

/** The colour of a run in pictures. */
const char *tt_chart_color(int run);

/** Makes a PNG of an SVG with rsvg-convert. TT_EUSAGE when that is not installed. */
int tt_chart_png(const struct tt_text *svg, const char *path) TT_MUST_CHECK;

#endif
