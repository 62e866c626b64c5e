/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_MODEL_LAYER_H
#define TT_CLUSTER_MODEL_LAYER_H

#include "cluster/model/pipeline.h"

/* Device seconds of a microbatch on one rank, by kind of work; host seconds beside them. Of the device's sum so much is
 * the forward pass, and so much makes gradients of weights. */
struct tt_cluster_work {
    double gemm, attention, memory, tensor, context, expert, host;
    double stall; /* in which the device waits for the host in any case */
    double forward, weight;
};

/** Forward, backward and recomputation of one layer, the recomputation averaged over the layers. */
void tt_cluster_layer(const struct tt_cluster_job *job, bool experts, struct tt_cluster_work *ret_work);

/** All behind the layers: the output layer with the loss, and layers that predict further tokens, each of which joins
 * two rows, is a layer like the last one, and has a loss of its own. */
void tt_cluster_output(const struct tt_cluster_job *job, struct tt_cluster_work *ret_work);

/** work += factor x more */
void tt_cluster_add(struct tt_cluster_work *work, double factor, const struct tt_cluster_work *more);

/**
 * Seconds of a microbatch in all stages of a rank of a pipeline with more than one rank, and what the output layer adds
 * on the rank that has it. If it is not known how layers are split, half of its time counts, since layers are usually
 * moved away from it.
 */
void tt_cluster_stage_passes(const struct tt_cluster_job *job, struct tt_cluster_passes *ret_pass,
                             struct tt_cluster_passes *ret_output);

/** Seconds of the work when the host keeps ahead, or does not. */
double tt_cluster_device_sec(const struct tt_cluster_work *work);
double tt_cluster_work_sec(const struct tt_cluster_work *work);

#endif
