/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_MODEL_INTERNAL_H
#define TT_ESTIMATE_MODEL_INTERNAL_H

#include <math.h>

#include "estimate/model/job.h"

/* Linear layers with m rows, n outputs and k inputs each. Several such layers (groups), such as those of experts, run
 * at once and share waves of tiles: all of them in one kernel, or `together` of them in parallel streams. */
struct tt_cluster_product {
    double groups, m, n, k;
    double together; /* layers that run at once; 0: all */
    double gain;     /* rate, relative to bfloat16 */
    double in_bytes; /* bytes per element of an operand */
    /* bytes moved for each gradient of a weight: 2 if it is written, more if it is added to others */
    double gradient_bytes;
    bool frozen; /* backward does not compute gradients of weights */
};

/**
 * Seconds of the GEMM of such layers in forward, or of both GEMMs in backward, alone on the machine: the best of
 * several tile sizes, with whole waves of tiles over the device's units, and no faster than operands can be read and
 * written.
 */
double tt_cluster_linear_sec(const struct tt_cluster_machine *machine, const struct tt_cluster_product *product,
                             bool backward);

/* A group of ranks: n members, `near` of them in each node. Two neighbours in the group are `stride` ranks apart, so
 * near * stride devices of a node share its network. */
struct tt_cluster_group {
    double n, near, stride;
};

/** The group of n ranks that are `stride` devices apart in the order of ranks. */
struct tt_cluster_group tt_cluster_group(const struct tt_cluster_job *job, double n, double stride);

/**
 * Seconds of a collective over the group, if its links carry nothing else but the same collective of neighbouring
 * groups. bytes: of the whole tensor; in a message, what one rank sends.
 */
double tt_cluster_gather_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes);
double tt_cluster_reduce_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes);
double tt_cluster_message_sec(const struct tt_cluster_job *job, double stride, double bytes);

/**
 * Seconds of an all-to-all in which each token (`bytes` in all) goes to `copies` members at random. A token travels
 * once to each node, and inside a node once to each member.
 */
double tt_cluster_exchange_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes,
                               double copies);

/* Seconds of the device for a microbatch on one rank, by kind of work, and seconds of the host. `forward` and `weight`
 * are the parts of the device's sum for the forward pass and for the gradients of weights. */
struct tt_cluster_work {
    double gemm, attention, memory, tensor, context, expert, host;
    double stall; /* seconds in which the device waits for the host in any case */
    double forward, weight;
};

/** The width of activations, relative to that in the stack's type: 2 if a stack for bfloat16 computes in float32. */
double tt_cluster_widened(const struct tt_cluster_job *job);

/**
 * The kernel of attention, 0 to 3 as in struct tt_cluster_job. Fused kernels want heads of a multiple of 8 elements;
 * Megatron computes other heads without them, and PyTorch fills them up.
 */
int tt_cluster_kernel(const struct tt_cluster_job *job);

/** Bytes that a layer saves for the backward of a microbatch. */
double tt_cluster_saved_bytes(const struct tt_cluster_job *job);

/** Bytes of the moments of a parameter, on average over the model. */
double tt_cluster_moment_bytes(const struct tt_cluster_job *job);

/**
 * The number of ranks that share a copy of the optimizer's state, out of `copies` ranks that hold the same parameters.
 */
static inline double tt_cluster_state_ranks(const struct tt_cluster_job *job, double copies)
{
    return job->state_copies > 1 ? fmax(1, copies / job->state_copies) : copies;
}

/**
 * For a pipeline with more than one rank: seconds of a microbatch in all stages of a rank, and the seconds that the
 * output layer adds on its rank. If it is not known how layers are split, only half of these count, since layers are
 * usually moved away from that rank.
 */
void tt_cluster_stage_passes(const struct tt_cluster_job *job, struct tt_cluster_passes *ret_pass,
                             struct tt_cluster_passes *ret_output);

#endif
