/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ESTIMATE_INPUTS_H
#define TT_CLI_ESTIMATE_INPUTS_H

#include "core/config/args.h"
#include "core/config/config.h"
#include "estimate/formats/formats.h"
#include "estimate/hardware/machine.h"

/* A job on a cluster as far as titan's configuration does not say it. */
struct tt_cluster_beyond {
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;
    const struct tt_cluster_shape *shape; /* of --model; NULL: the configuration's */
    double ep;                            /* with a shape: ranks that share its experts */
    bool float8, async_tp, whole_logits;
    double loss_chunks;
    bool whole_rows;                            /* no sequence parallelism beside tensor parallelism */
    double stages_of_a_rank;                    /* of a pipeline; 0: the configuration's */
    double *stage_layers;                       /* if the configuration lists modules; else NULL */
    int n_stages;                               /* of them */
    const struct tt_cluster_megatron *megatron; /* if the job is given as its flags; else NULL */
};

/**
 * The job of a configuration on `ranks` ranks. TT_EUSAGE: degrees that do not divide the ranks, or ranks that do not
 * divide the batch.
 */
int tt_cluster_job_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                      struct tt_cluster_job *ret_job) TT_MUST_CHECK;

/** The part of it that all layouts share: model, sequence length, sequences of a step. */
int tt_cluster_batch_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                        struct tt_cluster_job *ret_job) TT_MUST_CHECK;

/* A job on a cluster, from a command line. Zero-initialise; tt_cluster_inputs_release. */
struct tt_cluster_inputs {
    struct tt_cluster_beyond beyond; /* points into the members below */
    struct tt_config *cfg;
    char *model; /* for people: "llama3 8B", "deepseek-v3-671b" */
    struct tt_cluster_machine_file machine;
    struct tt_cluster_stack_file stack;
    struct tt_cluster_shape shape;
    struct tt_cluster_recipe recipe;
    struct tt_cluster_megatron megatron;
    struct tt_cluster_notes notes; /* settings that the prediction leaves out */
    struct tt_args with;           /* the command line, with overrides from the recipe and the model */
    char **own;                    /* overrides that were made here */
    int n_own, cap_own, cap_override;
};

/** Reads --machine with --nccl, and --stack: a name that is built in, or a file (with a slash, or .json at the end). */
int tt_cluster_inputs_hardware(struct tt_cluster_inputs *in, const struct tt_args *args) TT_MUST_CHECK;

/** Reads the job: --model, --torchtitan, --megatron, flags after "--", titan's configuration. After the hardware. */
int tt_cluster_inputs_job(struct tt_cluster_inputs *in, const struct tt_args *args) TT_MUST_CHECK;
void tt_cluster_inputs_release(struct tt_cluster_inputs *in);

#endif
