/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_SCREEN_SCREEN_H
#define TT_CLI_CLUSTER_SCREEN_SCREEN_H

#include "cluster/backtest/backtest.h"
#include "cluster/search/changes.h"
#include "cluster/search/search.h"
#include "core/base/json.h"

/* A job with everything that is printed about it. */
struct tt_cluster_view {
    const char *model; /* "llama3 8B" */
    struct tt_cluster_layout layout;
    enum tt_cluster_fit fit;
    struct tt_cluster_change change[TT_CLUSTER_CHANGES];
    int n_changes;
    struct tt_cluster_course course;
    double below, above;                  /* the 80 % interval, as shares of the predicted time */
    bool measured_family;                 /* the tables have runs of the stack on the machine */
    bool measured_size;                   /* and of at most 4 times more or fewer devices */
    const struct tt_cluster_run *near[3]; /* the nearest of them; if there are none, of their kinds */
    double near_error[3];
    int n_near;
    bool planned; /* the memory is that of titan's plan; of the changes only the difference is by formula */
};

/** Fills a view for a job; test is the score of the built-in runs, and stays as long as the view. */
void tt_cluster_view_fill(struct tt_cluster_view *view, const struct tt_cluster_job *job, double usable, double tokens,
                          const struct tt_backtest *test);

/** Replaces the memory by that of titan's plan. */
void tt_cluster_view_plan(struct tt_cluster_view *view, const struct tt_cluster_memory *memory);

/** "FSDP 64 x TP 8, 2 x 1 sequences, recompute op": a layout in words, into buf of at least 160 bytes; returns buf. */
char *tt_cluster_layout_text(char *buf, size_t size, const struct tt_cluster_job *job);

void tt_cluster_print(const struct tt_cluster_view *view);
/** The parts of a step, in seconds. */
json_t *tt_cluster_parts_json(const struct tt_cluster_time *time);
json_t *tt_cluster_json(const struct tt_cluster_view *view);

void tt_cluster_print_found(const struct tt_cluster_found *found, const struct tt_cluster_job *job, double devices);
json_t *tt_cluster_found_json(const struct tt_cluster_found *found, double devices);

#endif
