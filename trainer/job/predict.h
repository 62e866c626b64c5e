/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_PREDICT_H
#define TT_TRAINER_JOB_PREDICT_H

#include "parallel/pipeline/schedule.h"
#include "trainer/job/job.h"

/**
 * What a job needs on all of its ranks. The ranks at one place of a pipeline (without one: all ranks) have equal
 * programs, but for one case: if the ranks that share layers do not divide the vocabulary, the last has fewer rows.
 */
struct tt_job_prediction {
    int rank;                          /* the lowest of the ranks that need most memory */
    struct tt_engine_memory memory;    /* of that rank */
    int64_t init_bytes[TT_INIT_MODES]; /* most of any rank while the weights are made, by training.init */
    int sender;                        /* the lowest of the ranks that send most in a step */
    int64_t payload_bytes;             /* that it sends */
    int64_t payload_sum;               /* what all ranks together send */
    /* rows of experts that ranks share, which the payload leaves out: the most that a rank sends in a step, if all
     * experts get equally many rows, and whatever they get. 0: ranks share none */
    int64_t routed_bytes, routed_most;
    double step_sec, exposed_sec; /* of a step; exposed: of the place that waits longest for gathers and sums */
    double step_most_sec;         /* of a step whose tokens all choose the experts of one rank */
    struct tt_pipeline_run run;   /* one run through the pipeline, with the cost table's times; else 0 */
};

/**
 * Predicts a step; unless stated otherwise, experts get equally many rows. With a pipeline a step takes the time of its
 * runs plus the other work of the slowest place: gathers, reductions, norm and update.
 *   machine   the cost table
 *   engine    of `rank`, which is not planned again; NULL: all places are planned
 * The prediction is the caller's (tt_job_prediction_release). Not collective. Errors: as tt_engine_new.
 */
int tt_job_predict(const struct tt_job *job, const struct tt_machine *machine, const struct tt_engine *engine, int rank,
                   struct tt_job_prediction *ret_prediction) TT_MUST_CHECK;

/**
 * The same, computed once on rank 0 and sent to all ranks (collective): if each rank of a host planned all places, it
 * would take that many times as long. Of the run it has only makespan and bubble_share.
 *   engine  of this rank
 */
int tt_job_predict_once(const struct tt_job *job, struct tt_comm *comm, const struct tt_machine *machine,
                        const struct tt_engine *engine, struct tt_job_prediction *ret_prediction) TT_MUST_CHECK;
void tt_job_prediction_release(struct tt_job_prediction *prediction);

/** Appends "rank 3 (stage 1)", or "rank 3" if there is no pipeline. */
void tt_job_rank_text(const struct tt_job *job, int rank, struct tt_text *out);

/* --- gradient_sync --- */

/**
 * Sets job->engine.reduce from a configured gradient_sync. For `auto` a new run chooses. With reduction_order fast that
 * is one reduction at the end of the step, if it fits and backward takes the microbatches in order. Otherwise it is one
 * reduction for each run, if that fits into the memory limit, is predicted to be faster, and gives the bits of
 * every_microbatch; with reduction_order fast the bits do not matter. *ret_why, the caller's, says in words
 * what was chosen and why; NULL: it is configured. Not collective; it may plan the step twice. Errors: those of
 * tt_engine_new.
 */
int tt_job_choose_sync(enum tt_sync_choice sync, bool is_fast, struct tt_job *job, char **ret_why) TT_MUST_CHECK;

/**
 * The engine of a rank of the job without other ranks, for predictions only. Resolves gradient_sync auto as a new run
 * would (tt_job_choose_sync), and stores the result in the configuration and why in the job.
 */
int tt_job_engine_alone(struct tt_config *cfg, struct tt_job *job, int rank,
                        struct tt_engine **ret_engine) TT_MUST_CHECK;

#endif
