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
 * and as a picture, plot.c as a page.
 */

struct tt_chart_options {
    const char *const *key; /* fields of the step records, or loss/NAME; norm and speed are grad_norm and tps */
    int n_keys;             /* 0: loss, grad_norm, lr, tps, and the loss on each validation set: loss/NAME */
    int64_t from, to;       /* steps */
    double smooth;          /* weight of the past in an exponential mean, below 1; 0: no smoothing */
    bool log_scale;         /* logarithm of the values; values that are not positive are left out */
};

/** Points in ascending order of steps, all finite; thinned, but not so much that a picture would show it. */
struct tt_curve {
    int64_t n, cap;
    double *step, *value;
    int64_t points; /* number of points before thinning */
};

struct tt_panel {
    char *field, *title;
    double low, high; /* the range of the values (with log_scale, of their logarithms), with a margin */
    bool log_scale;
    /* smoothing makes sense: values are frequent and vary, unlike validations and the learning rate */
    bool smooths;
    struct tt_curve *curve; /* one per run */
    struct tt_curve *means; /* one per run: if the curve was thinned, the means of equal sections; otherwise empty */
    struct tt_curve *marks; /* one per run: validations */
};

struct tt_chart {
    int n_runs, n_panels;
    char **run; /* names */
    struct tt_panel *panel;
    double first, last; /* range of steps; first < last */
    bool has_marks;     /* whether some panel has marks */
};

/**
 * Makes the curves of runs from their names and histories. A default field that no run has recorded is left out.
 * TT_EDATA: there is nothing to draw. The caller releases ret_chart.
 */
int tt_chart_make(int n_runs, const char *const *runs, const struct tt_history *history,
                  const struct tt_chart_options *options, struct tt_chart *ret_chart) TT_MUST_CHECK;
void tt_chart_release(struct tt_chart *chart);

/* ---- outputs ---- */

struct tt_chart_screen {
    int columns, lines; /* space for the chart; the last panels are left out if they do not fit */
    bool utf8;          /* braille; otherwise ASCII */
    bool color;
};

void tt_chart_draw_text(const struct tt_chart *chart, const struct tt_chart_screen *screen, struct tt_text *out);
void tt_chart_draw_svg(const struct tt_chart *chart, struct tt_text *out);

/** The contents of a page besides its curves. The page smooths the curves itself, so it gets them as measured and with
 * a linear scale. */
struct tt_chart_page {
    const struct tt_history *history; /* one per run */
    const json_t *status;             /* one per run: an array of results of tt_status_make */
    double smooth;                    /* the initial value, which the user of the page can change */
    bool log_scale;                   /* also initial */
    /* seconds after which the page looks for newer numbers, since the file will be rewritten; 0: never */
    int follow_sec;
};
/** page.html, the rest of the page after its head, with @DATA@ in the place of the JSON that its script draws. */
extern const char tt_chart_page_text[];
extern const size_t tt_chart_page_text_size;

/** The colour of a run in pictures. */
const char *tt_chart_color(int run);

#endif
