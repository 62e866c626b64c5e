/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_PLAN_ESTIMATE_H
#define TT_CLI_PLAN_ESTIMATE_H

#include "core/config/args.h"
#include "core/config/config.h"
#include "trainer/job/predict.h"
#include "trainer/job/summary.h"

/**
 * Estimates: one row per number of ranks and policy. The code that plans a training run also plans each row.
 *
 *     struct tt_estimate e = {.args = args, .memory = limit or 0};
 *     TT_TRY(tt_estimate_begin(&e));
 *     TT_TRY(tt_estimate_ranks(&e, 8));   may be repeated
 *     tt_estimate_release(&e);
 */
struct tt_estimate_row {
    int ranks;
    char *policy;  /* such as "default", or "never, last_microbatch" */
    char *problem; /* why there are no numbers (the ranks do not divide, a feature is not modelled); or NULL */
    char *reshard, *sync, *engine;
    int64_t microbatches;
    char *largest;              /* in a pipeline, "rank 3 (stage 1)"; or NULL */
    char *sync_why;             /* why gradient_sync auto became this value; NULL: it is configured */
    struct tt_job_prediction p; /* only makespan and bubble_share of its `run` */
    int64_t libraries;          /* bytes of the process that are not the arena */
    int64_t staging;            /* memory into which async checkpoints are copied */
    int64_t resident;           /* the sum of arena, libraries and staging */
    int64_t limit;              /* bytes that a rank may use */
    bool fits;                  /* enough for both the step and the initialisation by training.init */
    bool least_memory, fastest; /* among the rows of this number of ranks; fastest: among those that fit */
};

struct tt_estimate {
    const struct tt_args *args; /* the command line: files and overrides */
    int64_t memory;             /* bytes that a rank may use; 0: parallelism.memory_limit or this machine's */
    char *head;                 /* a line about the model; NULL until a number of ranks could be planned */
    struct tt_text policies;    /* the policies of the configuration, in words */
    char machine[64];           /* the machine for which times are predicted */
    char *configured;           /* the configured reshard policy, if it is not one of the usual rows */
    char *sync;                 /* the configured gradient_sync */
    char *not_modelled;         /* "parallelism.tensor_parallel_degree=2", or NULL */
    struct tt_estimate_row *rows;
    int n, cap;
};

/** Reads the configuration; TT_EUSAGE when it is wrong. */
int tt_estimate_begin(struct tt_estimate *estimate) TT_MUST_CHECK;

/** Appends the rows of a number of ranks. */
int tt_estimate_ranks(struct tt_estimate *estimate, int n_ranks) TT_MUST_CHECK;

void tt_estimate_release(struct tt_estimate *estimate);

#endif
