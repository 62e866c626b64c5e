/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_INPUTS_H
#define TT_CLI_CLUSTER_INPUTS_INPUTS_H

#include "cli/cluster/inputs/job.h"
#include "cli/cluster/inputs/recipe.h"
#include "cluster/hardware/machine_file.h"
#include "cluster/hardware/stack_file.h"
#include "core/config/args.h"

/* What a command line says about a job on a cluster. Zero-initialise; tt_cluster_inputs_release. */
struct tt_cluster_inputs {
    struct tt_cluster_beyond beyond; /* points into the members below */
    struct tt_config *cfg;
    char *model; /* for people: "llama3 8B", "deepseek-v3-671b" */
    struct tt_cluster_machine_file machine;
    struct tt_cluster_stack_file stack;
    struct tt_cluster_shape shape;
    struct tt_cluster_recipe recipe;
    struct tt_cluster_megatron megatron;
    struct tt_cluster_notes notes; /* what they say and a prediction leaves out */
    struct tt_args with;           /* the command line with what the recipe and the model set */
    char **own;                    /* of its overrides */
    int n_own, cap_own, cap_override;
};

/** Reads --machine with --nccl, and --stack: a name that is built in, or a file (with a slash, or .json at the end). */
int tt_cluster_inputs_hardware(struct tt_cluster_inputs *in, const struct tt_args *args) TT_MUST_CHECK;

/** Reads the job: --model, --torchtitan, --megatron, flags after "--", titan's configuration. After the hardware. */
int tt_cluster_inputs_job(struct tt_cluster_inputs *in, const struct tt_args *args) TT_MUST_CHECK;
void tt_cluster_inputs_release(struct tt_cluster_inputs *in);

#endif
