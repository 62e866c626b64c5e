/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_MODEL_INTERNAL_H
#define TT_ESTIMATE_MODEL_INTERNAL_H

#include "estimate/model/job.h"

/* Linear layers with m rows, n outputs and k inputs each. Several of them (groups), as of experts, run at once and
 * share waves of tiles: all of them in one kernel, or one in each of some streams (together). */
struct tt_cluster_product {
    double groups, m, n, k;
    double together;       /* 0: all */
    double gain;           /* against bfloat16 */
    double in_bytes;       /* of a number of an operand */
    double gradient_bytes; /* moved for each gradient of a weight: 2 if it is written, more if it is added to others */
};

/**
 * Seconds of the products of such layers, forward, or both of backward, alone on the machine: the best of several tile
 * sizes, with whole waves of tiles over the device's units, and no faster than operands can be read and written.
 */
double tt_cluster_linear_sec(const struct tt_cluster_machine *machine, const struct tt_cluster_product *product,
                             bool backward);

/* A group of ranks: n members, `near` of them in each node. `stride` ranks of other groups lie between two of them, so
 * near * stride devices of a node share its network. */
struct tt_cluster_group {
    double n, near, stride;
};

/** The group of n ranks that are `stride` devices apart in the order of ranks. */
struct tt_cluster_group tt_cluster_group(const struct tt_cluster_job *job, double n, double stride);

/**
 * Seconds of a collective over the group when nothing else runs on its links but the same in the groups beside it.
 * bytes: of the whole tensor; in a message, what one rank sends.
 */
double tt_cluster_gather_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes);
double tt_cluster_reduce_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes);
double tt_cluster_message_sec(const struct tt_cluster_job *job, double stride, double bytes);

/**
 * Seconds of an all-to-all in which each token of `bytes` in all goes to `copies` members at random. A token crosses to
 * a node once, and inside a node once to each member.
 */
double tt_cluster_exchange_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes,
                               double copies);

/* Device seconds of a microbatch on one rank, by kind of work; host seconds beside them. Of the device's sum so much is
 * the forward pass, and so much makes gradients of weights. */
struct tt_cluster_work {
    double gemm, attention, memory, tensor, context, expert, host;
    double stall; /* in which the device waits for the host in any case */
    double forward, weight;
};

/**
 * Seconds of a microbatch in all stages of a rank of a pipeline with more than one rank, and what the output layer adds
 * on the rank that has it. If it is not known how layers are split, half of its time counts, since layers are usually
 * moved away from it.
 */
void tt_cluster_stage_passes(const struct tt_cluster_job *job, struct tt_cluster_passes *ret_pass,
                             struct tt_cluster_passes *ret_output);

#endif
