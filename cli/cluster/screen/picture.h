/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_SCREEN_PICTURE_H
#define TT_CLI_CLUSTER_SCREEN_PICTURE_H

#include "cli/cluster/screen/screen.h"

/* A bar: a step by its parts. */
struct tt_cluster_bar {
    char *text;
    struct tt_cluster_time time;
    double bytes;
    enum tt_cluster_fit fit;
};

/* A point of a curve: a number of ranks. */
struct tt_cluster_point {
    double devices, tokens_per_sec, mfu; /* tokens/s of all devices together */
    bool fits;
};

/* What a picture shows. Zero-initialise; tt_cluster_picture_release. */
struct tt_cluster_picture {
    struct tt_cluster_bar *bar;
    int n_bars, cap_bars;
    struct tt_cluster_point *point;
    int n_points, cap_points;
    struct tt_text lanes; /* a picture of its own; empty: none */
    int lanes_height;
};

/** Adds a bar; and a point for a job. */
void tt_cluster_picture_bar(struct tt_cluster_picture *picture, const char *text,
                            const struct tt_cluster_layout *layout);
void tt_cluster_picture_point(struct tt_cluster_picture *picture, const struct tt_cluster_layout *layout);

/**
 * Sets the lanes: of a layout with a pipeline, the simulated turns of its ranks; of others, nothing. TT_EUSAGE: the
 * schedule cannot have these numbers.
 */
int tt_cluster_picture_lanes(struct tt_cluster_picture *picture, const struct tt_cluster_layout *layout) TT_MUST_CHECK;

/**
 * Writes the picture as SVG: with two or more points, tokens/s and MFU against the number of ranks; below, the bars,
 * and the lanes. TT_EIO.
 */
int tt_cluster_picture_save(const struct tt_cluster_picture *picture, const char *title,
                            const char *path) TT_MUST_CHECK;
void tt_cluster_picture_release(struct tt_cluster_picture *picture);

/* The parts of a step, in the order of the screen. */
enum { TT_CLUSTER_PARTS = 12 };
struct tt_cluster_part {
    const char *name;
    double sec;
};
void tt_cluster_parts(const struct tt_cluster_time *time, struct tt_cluster_part ret_part[TT_CLUSTER_PARTS]);

#endif
