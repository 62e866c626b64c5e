/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_SEARCH_SEARCH_H
#define TT_ESTIMATE_SEARCH_SEARCH_H

#include "core/base/error.h"
#include "estimate/model/job.h"

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

/** A layout in words, "shards 64 x TP 8, 2 microbatches of 1, recompute nothing"; returns buf, of 160 bytes or more. */
char *tt_cluster_layout_text(char *buf, size_t size, const struct tt_cluster_job *job);

/* The best layouts, the fastest first; layouts within TT_CLUSTER_TIE of the fastest are sorted by simplicity. */
#define TT_CLUSTER_TIE 0.03
struct tt_cluster_found {
    struct tt_cluster_layout *layout;
    int n, cap;
    int n_ties;         /* layouts at the beginning that are as fast as the fastest, within the tie */
    long n_tried;       /* layouts that could run */
    long n_fit;         /* of these, with the margin */
    long n_tight;       /* without it; the list has the best of these if none fits */
    double least_bytes; /* the smallest need of all that could run */
};

/**
 * Tries every layout of `devices` devices that computes the same step as job (model, sequences of a step, stack,
 * precision) and keeps the best `most` that fit. The caller frees their list, ret_found->layout (tt_free).
 */
void tt_cluster_search(const struct tt_cluster_job *job, double devices, double usable, int most,
                       struct tt_cluster_found *ret_found);

/* A run over many steps: failures, checkpoints, time. */
struct tt_cluster_course {
    double steps, tokens, days, device_hours, failures;
    double failure_hours;    /* mean time between failures of the job */
    double checkpoint_bytes; /* weights and moments in float32 */
    double blocked_sec;      /* of a checkpoint that is written in the background */
    double write_sec;        /* until it is durable */
    double interval_sec;     /* between checkpoints: Daly's */
    double interval_steps;
    double goodput; /* share of the time spent on steps that are not lost */
};

/** A run of `tokens` tokens. */
struct tt_cluster_course tt_cluster_course(const struct tt_cluster_layout *layout, double tokens);

/* One change of a layout, and its effect. */
struct tt_cluster_change {
    const char *text;
    struct tt_cluster_layout layout;
    double gain; /* of tokens/s, as a share: 0.1 is 10 % more */
};

enum { TT_CLUSTER_CHANGES = 12 };

/**
 * Single changes of a layout that run on the same devices with the same batch, sorted: layouts that fit first, then by
 * gain. Returns their number.
 */
int tt_cluster_changes(const struct tt_cluster_layout *layout, double usable,
                       struct tt_cluster_change ret_change[TT_CLUSTER_CHANGES]);

#endif
