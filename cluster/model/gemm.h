/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_MODEL_GEMM_H
#define TT_CLUSTER_MODEL_GEMM_H

#include "cluster/model/job.h"

/**
 * Seconds of one bfloat16 product, m x k times k x n, alone on the machine: the best of several tile sizes, with whole
 * waves of tiles over the device's units, and no faster than its operands can be read and written.
 */
double tt_cluster_gemm_sec(const struct tt_cluster_machine *machine, double m, double n, double k);

/**
 * The products of linear layers with m rows each: forward, or both of backward. Several of them (`groups`), as of
 * experts, are one kernel, whose tiles share the waves.
 */
double tt_cluster_linear_sec(const struct tt_cluster_machine *machine, double groups, double m, double n, double k,
                             bool backward);

#endif
