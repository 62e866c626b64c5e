/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_MODEL_GEMM_H
#define TT_CLUSTER_MODEL_GEMM_H

#include "cluster/model/job.h"

/**
 * Seconds of one bfloat16 product, m x k times k x n, alone on the machine: the best of several tile sizes, with whole
 * waves of tiles over the device's units, and no faster than its operands can be read and written.
 */
double tt_cluster_gemm_sec(const struct tt_cluster_machine *machine, double m, double n, double k);

/* Linear layers with m rows each, n outputs and k inputs. Several of them (groups), as of experts, run at once, and
 * their tiles share the waves: all of them if they are one kernel, or one for each of so many streams (together). */
struct tt_cluster_product {
    double groups, m, n, k;
    double together;       /* 0: all */
    double gain;           /* against bfloat16 */
    double in_bytes;       /* of a number of an operand */
    double gradient_bytes; /* moved for each gradient of a weight: 2 if it is written, more if it is added to others */
};

/** The products of such layers: forward, or both of backward. */
double tt_cluster_linear_sec(const struct tt_cluster_machine *machine, const struct tt_cluster_product *product,
                             bool backward);

#endif
