/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ESTIMATE_SCREEN_H
#define TT_CLI_ESTIMATE_SCREEN_H

#include "core/base/json.h"
#include "estimate/backtest/backtest.h"
#include "estimate/search/search.h"

/* A job and everything that is printed about it. */
struct tt_cluster_view {
    const char *model; /* "llama3 8B" */
    struct tt_cluster_layout layout;
    enum tt_cluster_fit fit;
    struct tt_cluster_change change[TT_CLUSTER_CHANGES];
    int n_changes;
    struct tt_cluster_course course;
    struct tt_cluster_interval interval;
    double below, above;  /* the same, as shares of the predicted time */
    bool measured_family; /* the built-in tables contain runs of this stack on this machine */
    bool measured_size;   /* and among them runs with a number of devices within a factor of 4 */
    /* the nearest of these runs, or else of stacks and machines of the same kinds */
    const struct tt_cluster_run *near[3];
    double near_error[3];
    int n_near;
    bool planned; /* titan planned the memory; the formulas only give differences from the plan */
};

/** Fills a view of a job. `test` is the score of the built-in runs, and must outlive the view. */
void tt_cluster_view_fill(struct tt_cluster_view *view, const struct tt_cluster_job *job, double usable, double tokens,
                          const struct tt_backtest *test);

/** Model flop/s of a device. A frozen weight, whose gradient is not computed, counts 4 flops a token instead of 6. */
double tt_cluster_flops(const struct tt_cluster_layout *layout);

void tt_cluster_print(const struct tt_cluster_view *view);

/** Prints text in lines of at most 116 columns, or the terminal's, which break behind commas and before double spaces;
 * lines after the first are indented. Empties the text. */
void tt_cluster_print_wrapped(struct tt_text *text, int indent);
/** The parts of a step, in seconds. */
json_t *tt_cluster_parts_json(const struct tt_cluster_time *time);
json_t *tt_cluster_json(const struct tt_cluster_view *view);

/**
 * The layouts of a search, and why others were ruled out; `first` is the view of the first one, unused if there is
 * none. is_brief: in columns for a terminal.
 */
void tt_cluster_print_found(const struct tt_cluster_found *found, const struct tt_cluster_job *job, double devices,
                            const struct tt_cluster_view *first, bool is_brief);
json_t *tt_cluster_found_json(const struct tt_cluster_found *found, double devices);

/* A bar of the parts of a step. */
struct tt_cluster_bar {
    char *text;
    struct tt_cluster_time time;
    double bytes;
    enum tt_cluster_fit fit;
};

/* A point of the curves over the number of ranks. */
struct tt_cluster_point {
    double devices, tokens_per_sec, mfu; /* tokens/s of all devices together */
    bool fits;
};

/* The contents of a picture. Zero-initialise it; release it with tt_cluster_picture_release. */
struct tt_cluster_picture {
    struct tt_cluster_bar *bar;
    int n_bars, cap_bars;
    struct tt_cluster_point *point;
    int n_points, cap_points;
    struct tt_text lanes; /* a complete picture; empty: none */
    int lanes_height;
};

/** Adds a bar and, for a job, a point. */
void tt_cluster_picture_bar(struct tt_cluster_picture *picture, const char *text,
                            const struct tt_cluster_layout *layout);
void tt_cluster_picture_point(struct tt_cluster_picture *picture, const struct tt_cluster_layout *layout);

/**
 * Sets the lanes to the simulated pipeline of a layout; does nothing without a pipeline. TT_EUSAGE: the schedule does
 * not work with these numbers.
 */
int tt_cluster_picture_lanes(struct tt_cluster_picture *picture, const struct tt_cluster_layout *layout) TT_MUST_CHECK;

/**
 * Writes the picture as SVG: with two or more points, tokens/s and MFU over the number of ranks; below them the bars,
 * and the lanes. TT_EIO.
 */
int tt_cluster_picture_save(const struct tt_cluster_picture *picture, const char *title,
                            const char *path) TT_MUST_CHECK;
void tt_cluster_picture_release(struct tt_cluster_picture *picture);

/** "0.763" or "2,003": seconds of a step; returns buf, of 24 bytes or more. */
const char *tt_cluster_sec_text(char *buf, size_t size, double sec);

/** The type of which tt_cluster_peak_flops is the peak. */
const char *tt_cluster_type_text(const struct tt_cluster_job *job);

/** "8.03B" or "1.03T": the parameters of a model; returns buf. */
const char *tt_cluster_params_text(char *buf, size_t size, const struct tt_cluster_shape *shape);

#endif
