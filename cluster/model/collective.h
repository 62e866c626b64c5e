/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_MODEL_COLLECTIVE_H
#define TT_CLUSTER_MODEL_COLLECTIVE_H

#include "cluster/model/job.h"

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

#endif
