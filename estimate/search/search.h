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
    double tokens_per_sec; /* per device */
};

/**
 * The fault of a layout, in words that complete "it cannot run: ", or NULL: a degree that does not divide heads,
 * key/value heads, widths, sequence or experts, or fewer microbatches than stages.
 */
const char *tt_cluster_fault(const struct tt_cluster_job *job);

/** Predicts a job; usable: the memory of a device; 0: as the machine says. */
struct tt_cluster_layout tt_cluster_predict(const struct tt_cluster_job *job, double usable);

/** A layout in the words of its users, "4 x FSDP, TP 2, PP 4 ZBV"; returns buf, of 100 bytes or more. */
char *tt_cluster_layout_brief(char *buf, size_t size, const struct tt_cluster_job *job);

/** A layout in words, "shards 64 x TP 8, 2 microbatches of 1, recompute nothing"; returns buf, of 160 bytes or more. */
char *tt_cluster_layout_text(char *buf, size_t size, const struct tt_cluster_job *job);

/* The best layouts, the fastest first; layouts within TT_CLUSTER_TIE of the fastest are sorted by simplicity. */
#define TT_CLUSTER_TIE 0.03
struct tt_cluster_found {
    struct tt_cluster_layout *layout;
    int n, cap;
    int n_ties;   /* layouts at the beginning of the list that are as fast as the fastest, within the tie */
    long n_tried; /* number of layouts that can run */
    long n_fit;   /* number of these that fit with the margin */
    /* number that fit only without the margin; if no other fits, the list contains the best of these */
    long n_tight;
    double least_bytes;             /* the least memory with which any of them could run */
    struct tt_cluster_layout least; /* that layout, without times; its job's tp is 0 if none could run */
    struct {
        const char *why; /* a text of tt_cluster_fault */
        long n;
    } fault[16]; /* reasons why the other layouts cannot run; an unused one has n 0 */
};

/* What all layouts of a search have in common; 0 or false: they may differ. */
struct tt_cluster_fixed {
    double tp, pp, cp, ep, micro_batch;
    bool again; /* they recompute as the job does */
};

/**
 * Tries every layout of `devices` devices that computes the same step as job (model, sequences of a step, stack,
 * precision) and keeps the best `most` that fit. fixed: limits the layouts; may be NULL. The caller frees their list,
 * ret_found->layout (tt_free).
 */
void tt_cluster_search(const struct tt_cluster_job *job, double devices, double usable, int most,
                       const struct tt_cluster_fixed *fixed, struct tt_cluster_found *ret_found);

/* A run over many steps: failures, checkpoints, time. */
struct tt_cluster_course {
    double steps, tokens, days, device_hours, failures;
    double failure_hours;    /* mean time between failures of the job */
    double checkpoint_bytes; /* state in a checkpoint: weights and moments in float32 */
    double blocked_sec;      /* time for which a checkpoint blocks training */
    double write_sec;        /* time until the checkpoint is durable */
    double interval_sec;     /* time between checkpoints: the job's, or by Daly's formula */
    double interval_steps;
    double goodput; /* the share of the time spent on steps that are not lost */
};

/** Predicts a run of `tokens` tokens. */
struct tt_cluster_course tt_cluster_course(const struct tt_cluster_layout *layout, double tokens);

/* One change of a layout, and its effect. */
struct tt_cluster_change {
    const char *text;
    struct tt_cluster_layout layout;
    double gain; /* gain in tokens/s, as a share: 0.1 means 10 % more */
};

enum { TT_CLUSTER_CHANGES = 12 };

/**
 * Lists single changes of a layout for the same devices and batch, sorted: layouts that fit come first, then by gain.
 * Returns their number.
 */
int tt_cluster_changes(const struct tt_cluster_layout *layout, double usable,
                       struct tt_cluster_change ret_change[TT_CLUSTER_CHANGES]);

#endif
