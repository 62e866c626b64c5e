/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_SEARCH_H
#define TT_CLUSTER_SEARCH_H

#include "cluster/model/job.h"
#include "core/base/error.h"

/* A layout with its predictions. */
struct tt_cluster_layout {
    struct tt_cluster_job job;
    struct tt_cluster_time time;
    struct tt_cluster_memory memory;
    double tokens_per_sec; /* of a device */
};

/**
 * What is wrong with a layout, in words that complete "it cannot run: ", or NULL: a degree that does not divide heads,
 * key/value heads, widths, sequence or experts, or fewer microbatches than stages.
 */
const char *tt_cluster_fault(const struct tt_cluster_job *job);

/** Predicts a job; usable is the memory of a device, 0: the machine's. */
struct tt_cluster_layout tt_cluster_predict(const struct tt_cluster_job *job, double usable);

/* The best layouts, the fastest first; those within TT_CLUSTER_TIE of the fastest come in the order of simplicity. */
#define TT_CLUSTER_TIE 0.03
struct tt_cluster_found {
    struct tt_cluster_layout *layout;
    int n, cap;
    int n_ties;         /* the first so many are as fast as the fastest, within the tie */
    long n_tried;       /* layouts that could run */
    long n_fit;         /* of them, that fit with the margin */
    long n_tight;       /* and that fit only within it; if none fits, the list has the best of these */
    double least_bytes; /* of all that could run: the smallest need, if none fits */
};

/**
 * Tries every layout of `devices` devices that computes the same step as job (model, sequences of a step, stack,
 * precision) and keeps the best `most` that fit. The caller releases the result.
 */
void tt_cluster_search(const struct tt_cluster_job *job, double devices, double usable, int most,
                       struct tt_cluster_found *ret_found);
void tt_cluster_found_release(struct tt_cluster_found *found);

/* A run over many steps: failures, checkpoints, time. */
struct tt_cluster_course {
    double steps, tokens, days, device_hours, failures;
    double failure_hours;    /* mean time between failures of the job */
    double checkpoint_bytes; /* weights and moments in float32 */
    double blocked_sec;      /* of a checkpoint that is written in the background */
    double write_sec;        /* until it is durable */
    double interval_sec;     /* between checkpoints: Daly's */
    double interval_steps;
    double goodput; /* share of the time in which steps are done that stay */
};

/** What training on `tokens` tokens takes. */
struct tt_cluster_course tt_cluster_course(const struct tt_cluster_layout *layout, double tokens);

#endif
