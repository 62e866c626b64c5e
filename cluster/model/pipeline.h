/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_MODEL_PIPELINE_H
#define TT_CLUSTER_MODEL_PIPELINE_H

#include "cluster/model/job.h"
#include "parallel/pipeline/simulate.h"

/**
 * The schedules of pipelines: how long ranks wait and how much they hold. Everything is that of the orders that
 * parallel/pipeline makes, by formulas or by its simulator.
 */

/* Seconds that one microbatch takes in all stages of a rank together. */
struct tt_cluster_passes {
    double forward;
    double input;  /* the part of backward that other stages wait for, recomputation included */
    double weight; /* the weight part */
};

/** The schedule of the job by torchtitan's name. */
enum tt_pipeline_schedule tt_cluster_schedule(const struct tt_cluster_job *job);
const char *tt_cluster_schedule_name(const struct tt_cluster_job *job);

/** Whether backward is two turns, so that gradients of weights fill gaps. */
bool tt_cluster_splits(const struct tt_cluster_job *job);

/**
 * Whether the stages go down the ranks and come back, so that the first rank has both ends of the model. There is no
 * formula for the bubble of such a schedule: tt_cluster_bubble runs the simulator.
 */
bool tt_cluster_is_v(const struct tt_cluster_job *job);

/**
 * Whether a configuration of the job's trainer can say its stages. Those of Megatron's kind divide the layers, or these
 * and one for each end of the model; others have a number of layers of a stage, *ret_each, in which the ends of the
 * model count as *ret_ends layers: as many as the job says, else 2, 1 or 0.
 */
bool tt_cluster_layers_per_stage(const struct tt_cluster_job *job, double *ret_each, double *ret_ends);

/** Layers, and what embeddings and output count as: what the stages share. For jobs with split_known. */
double tt_cluster_split_units(const struct tt_cluster_job *job);

/** Layers of a stage, over those of a stage on average; 1 if the split is not known. */
double tt_cluster_stage_share(const struct tt_cluster_job *job, int stage);

/** Layers of all stages of a rank; if the split is not known, those of the rank that has most. */
double tt_cluster_rank_layers(const struct tt_cluster_job *job, int rank);

/** Whether a rank has the output: the last, or the first if stages come back to it. */
bool tt_cluster_has_output(const struct tt_cluster_job *job, int rank);

/** Seconds in which a rank waits in a step, if all ranks have equal work. */
double tt_cluster_bubble(const struct tt_cluster_job *job, const struct tt_cluster_passes *pass);

/* What a rank holds for backward, in microbatches of all of its layers. */
struct tt_cluster_held {
    double most;    /* at most */
    double now;     /* of them, between the two parts of its backward */
    double pending; /* when most weight parts are still to come: of so many, whose recomputation is done */
    double beside;  /* and at that time, of so many others */
};

struct tt_cluster_held tt_cluster_held(const struct tt_cluster_job *job, int rank);

/* The lanes of a step. */
struct tt_cluster_lanes {
    struct tt_pipeline *pipeline;
    struct tt_pipeline_run run;
    struct tt_cluster_passes pass; /* of the mean stage's rank */
    int microbatches;              /* that were simulated, so that there are at most so many turns as was asked for */
};

/**
 * Simulates the pipeline of a job with more than one stage. TT_EUSAGE: the schedule cannot have these numbers. The
 * caller releases the result.
 */
int tt_cluster_lanes_make(const struct tt_cluster_job *job, int most_turns,
                          struct tt_cluster_lanes *ret_lanes) TT_MUST_CHECK;
void tt_cluster_lanes_release(struct tt_cluster_lanes *lanes);

#endif
