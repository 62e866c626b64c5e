/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_JOB_H
#define TT_CLI_CLUSTER_INPUTS_JOB_H

#include "cli/cluster/inputs/megatron.h"
#include "core/config/config.h"

/* What a job needs beyond a configuration of titan. */
struct tt_cluster_beyond {
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;
    const struct tt_cluster_shape *shape; /* of --model; NULL: the configuration's */
    double ep;                            /* with a shape: ranks that share its experts */
    bool float8, async_tp, whole_logits;
    double loss_chunks;
    bool whole_rows;                            /* no sequence parallelism beside tensor parallelism */
    double stages_of_a_rank;                    /* of a pipeline; 0: the configuration's */
    double *stage_layers;                       /* of a configuration that lists modules; NULL: it does not */
    int n_stages;                               /* of them */
    const struct tt_cluster_megatron *megatron; /* its flags are the job; NULL: they are not */
};

/**
 * The job of a configuration on so many ranks. A degree that does not divide the ranks, or a batch that the ranks do
 * not divide: TT_EUSAGE.
 */
int tt_cluster_job_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                      struct tt_cluster_job *ret_job) TT_MUST_CHECK;

/** Sets the layers of the stages of a configuration that lists their modules. The caller frees them. */
int tt_cluster_stages_of(const struct tt_config *cfg, struct tt_cluster_beyond *beyond) TT_MUST_CHECK;

/** The same, but only what every layout of it has: model, sequence length, sequences of a step. */
int tt_cluster_batch_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                        struct tt_cluster_job *ret_job) TT_MUST_CHECK;

#endif
