/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_PREDICT_H
#define TT_TRAINER_JOB_PREDICT_H

#include "parallel/pipeline/schedule.h"
#include "trainer/job/job.h"

/**
 * The memory, traffic and time of a job on all of its ranks. The ranks at one place of a pipeline (without a pipeline:
 * all ranks) run equal programs, with one exception: if the number of ranks that share layers does not divide the
 * vocabulary, the last of these ranks has fewer rows.
 */
struct tt_job_prediction {
    int rank;                          /* the lowest of the ranks that need the most memory */
    struct tt_engine_memory memory;    /* that rank's memory */
    int64_t init_bytes[TT_INIT_MODES]; /* largest of any rank while it initialises the weights, by training.init */
    int sender;                        /* the lowest of the ranks that send the most in a step */
    int64_t payload_bytes;             /* bytes that this rank sends */
    int64_t payload_sum;               /* bytes that all ranks send together */
    /* Rows for experts that are spread over ranks; the payload does not include them. The most bytes that a rank sends
     * in a step, if all experts get the same number of rows, and in the worst case. 0: no such experts. */
    int64_t routed_bytes, routed_most;
    /* step_sec: seconds of a step; exposed_sec: exposed communication at the place that waits longest for gathers and
     * sums */
    double step_sec, exposed_sec;
    double step_most_sec;       /* seconds of a step whose tokens all choose the experts of one rank */
    struct tt_pipeline_run run; /* one run through the pipeline, with the times of the cost table; else all 0 */
};

/**
 * Predicts a step; it assumes, unless stated otherwise, that all experts get the same number of rows. With a pipeline a
 * step takes the time of its runs plus the other work of the slowest place: gathers, reductions, norm and update.
 *   machine   the cost table
 *   engine    the engine of `rank`, which is not planned again; NULL: plan all places
 * The caller frees the prediction with tt_job_prediction_release. Not collective. Errors: as tt_engine_new.
 */
int tt_job_predict(const struct tt_job *job, const struct tt_machine *machine, const struct tt_engine *engine, int rank,
                   struct tt_job_prediction *ret_prediction) TT_MUST_CHECK;

/**
 * The same, computed once on rank 0 and sent to all ranks (collective): if each rank of a host planned all places, the
 * time would grow with their number. Only makespan and bubble_share of the run are set.
 *   engine  of this rank
 */
int tt_job_predict_once(const struct tt_job *job, struct tt_comm *comm, const struct tt_machine *machine,
                        const struct tt_engine *engine, struct tt_job_prediction *ret_prediction) TT_MUST_CHECK;
void tt_job_prediction_release(struct tt_job_prediction *prediction);

/** Appends "rank 3 (stage 1)", or "rank 3" if there is no pipeline. */
void tt_job_rank_text(const struct tt_job *job, int rank, struct tt_text *out);

/* --- gradient_sync --- */

/**
 * Sets job->engine.reduce from a configured gradient_sync. `auto` in a new run: with reduction_order fast, one
 * reduction at the end of the step, if it fits and backward takes the microbatches in order. Otherwise one reduction
 * for each run, if that fits into the memory limit, is predicted to be faster, and gives the same bits as
 * every_microbatch (with reduction_order fast, bits do not matter). *ret_why, which the caller frees, describes the
 * choice and its reason; NULL if the configuration itself made the choice. Not collective; it may plan the step twice.
 * Errors: those of tt_engine_new.
 */
int tt_job_choose_sync(enum tt_sync_choice sync, bool is_fast, struct tt_job *job, char **ret_why) TT_MUST_CHECK;

/**
 * The engine of a rank of the job without other ranks, for predictions only. Resolves gradient_sync auto as a new run
 * would (tt_job_choose_sync), and stores the result in the configuration and the reason in the job.
 */
int tt_job_engine_alone(struct tt_config *cfg, struct tt_job *job, int rank,
                        struct tt_engine **ret_engine) TT_MUST_CHECK;

#endif
