/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_PLANNED_H
#define TT_CLI_CLUSTER_PLANNED_H

#include "cli/cluster/inputs/inputs.h"

/** Whether titan itself can plan the job: the stack is titan's, and the model is the configuration's. */
bool tt_cluster_is_planned(const struct tt_cluster_inputs *in);

/**
 * The memory of the rank that needs most, as titan's own plan has it. TT_EUSAGE: titan cannot train with the
 * configuration on so many ranks.
 */
int tt_cluster_plan(const struct tt_cluster_inputs *in, const struct tt_cluster_job *job,
                    struct tt_cluster_memory *ret_memory) TT_MUST_CHECK;

#endif
