/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_CLUSTER_H
#define TT_CLI_CLUSTER_CLUSTER_H

#include "cli/cluster/megatron.h"
#include "cluster/backtest/backtest.h"
#include "cluster/search/changes.h"
#include "cluster/search/search.h"
#include "core/config/args.h"
#include "core/config/config.h"

/**
 * `titan estimate --machine`: one training job on a cluster, predicted.
 *
 * tt_print_cluster prints the job of the configuration on each of the n numbers of ranks, or with --search the best
 * layouts of them; as text or JSON. Returns 0, the exit code of TT_EFIT if nothing
 * that was asked about fits, or a negative error.
 *   memory  bytes that a device may use; 0: what the machine has
 */
int tt_print_cluster(const struct tt_args *args, const int *ranks, int n, int64_t memory) TT_MUST_CHECK;

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
    const struct tt_cluster_run *near[3]; /* the nearest of them */
    double near_error[3];
    int n_near;
    bool planned; /* the memory is that of titan's plan; of the changes only the difference is by formula */
};

/* What a job needs beyond a configuration of titan. */
struct tt_cluster_beyond {
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;
    const struct tt_cluster_shape *shape; /* of --model; NULL: the configuration's */
    double ep;                            /* with a shape: ranks that share its experts */
    bool float8, async_tp, whole_logits;
    double loss_chunks;
    bool whole_rows;                            /* no sequence parallelism beside tensor parallelism */
    double stages_of_a_rank;                    /* of a pipeline; 0: the configuration's */
    const struct tt_cluster_megatron *megatron; /* its flags are the job; NULL: they are not */
};

/**
 * The job of a configuration on so many ranks. A degree that does not divide the ranks, or a batch that the ranks do
 * not divide: TT_EUSAGE.
 */
int tt_cluster_job_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                      struct tt_cluster_job *ret_job) TT_MUST_CHECK;

/** The same, but only what every layout of it has: model, sequence length, sequences of a step. */
int tt_cluster_batch_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                        struct tt_cluster_job *ret_job) TT_MUST_CHECK;

/* What the log of a run says about a prediction. */
struct tt_cluster_calibration {
    int steps;
    double tokens_per_sec;  /* of a device: the median, without the first quarter of the steps */
    double bytes;           /* of the last step; 0: the log has none */
    double predicted_bytes; /* of the framework's allocator, as those */
    double error;           /* of the prediction before, and with the fitted share */
    double error_after;
    double old_share, share;
};

/**
 * Fits the share of products of a stack to the log of a run of torchtitan; where names the log. TT_EDATA: it has too
 * few steps, the host takes too large a part, or it is the log of another job.
 */
int tt_cluster_calibrate(const char *log, const char *where, const struct tt_cluster_job *job,
                         struct tt_cluster_stack *stack, struct tt_cluster_calibration *ret) TT_MUST_CHECK;
void tt_cluster_print_calibration(const struct tt_cluster_calibration *calibration);

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
