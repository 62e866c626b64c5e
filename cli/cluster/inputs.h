/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_H
#define TT_CLI_CLUSTER_INPUTS_H

#include "cli/cluster/cluster.h"
#include "cli/cluster/recipe.h"
#include "cluster/hardware/machine_file.h"
#include "cluster/hardware/stack_file.h"

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

/** Whether titan itself can plan the job: the stack is titan's, and the model is the configuration's. */
bool tt_cluster_is_planned(const struct tt_cluster_inputs *in);

/**
 * The memory of the rank that needs most, as titan's own plan has it. TT_EUSAGE: titan cannot train with the
 * configuration on so many ranks.
 */
int tt_cluster_plan(const struct tt_cluster_inputs *in, const struct tt_cluster_job *job,
                    struct tt_cluster_memory *ret_memory) TT_MUST_CHECK;

/**
 * Appends a layout as a configuration: form is titan (YAML), torchtitan (TOML) or megatron (flags). The model is that
 * of the inputs. TT_EUSAGE: no such form, one of a trainer that does not work as the stack does, or a model that it
 * does not have.
 */
int tt_cluster_emit(const char *form, const struct tt_cluster_inputs *in, const struct tt_cluster_layout *layout,
                    struct tt_text *out) TT_MUST_CHECK;

#endif
