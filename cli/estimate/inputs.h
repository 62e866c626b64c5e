/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ESTIMATE_INPUTS_H
#define TT_CLI_ESTIMATE_INPUTS_H

#include "cli/estimate/typed.h"
#include "core/config/args.h"
#include "core/config/config.h"
#include "estimate/formats/formats.h"
#include "estimate/hardware/machine.h"

/* A job on a cluster, from a command line. Zero-initialise; tt_cluster_inputs_release. */
struct tt_cluster_inputs {
    struct tt_cluster_typed typed;
    struct tt_config *cfg;
    char *model; /* the displayed name: "llama3 8B", "deepseek-v3-671b" */
    struct tt_cluster_machine machine;
    struct tt_cluster_stack stack;
    struct tt_cluster_foreign foreign; /* settings that cfg cannot express; the shape is also that of --model */
    double ep;                         /* with such a shape: the number of ranks that share its experts */
    double *stage_layers;              /* [n_stages], if the configuration lists modules; else NULL */
    int n_stages;
    bool is_laid_out;              /* the command line or a file defines the layout of the job */
    struct tt_cluster_notes notes; /* settings that the prediction leaves out */
    struct tt_args with;           /* the command line, with overrides from the recipe and the model */
    char **own;                    /* overrides that were allocated here */
    int n_own, cap_own, cap_override;
};

/**
 * Reads the machine (with --nccl and --network) and --stack: the name of a built-in one, of a file in
 * ~/.config/titan/machines, or the path of a file (with a slash, or .json at the end). Call it after
 * tt_cluster_typed_read has set in->typed.
 */
int tt_cluster_inputs_hardware(struct tt_cluster_inputs *in, const struct tt_args *args) TT_MUST_CHECK;

/** Reads the job: --model, --torchtitan, --megatron, flags after "--", titan's configuration. Call it after
 * tt_cluster_inputs_hardware. */
int tt_cluster_inputs_job(struct tt_cluster_inputs *in, const struct tt_args *args) TT_MUST_CHECK;
void tt_cluster_inputs_release(struct tt_cluster_inputs *in);

/** Whether a device of the machine is a socket with processors, not a GPU. */
bool tt_cluster_is_cpu(const struct tt_cluster_machine *machine);

/** The job on `ranks` ranks. TT_EUSAGE: the degrees do not divide the ranks, or the ranks do not divide the batch. */
int tt_cluster_job_of(const struct tt_cluster_inputs *in, int ranks, struct tt_cluster_job *ret_job) TT_MUST_CHECK;

/** The part of the job that all layouts share: model, sequence length, sequences of a step. */
int tt_cluster_batch_of(const struct tt_cluster_inputs *in, int ranks, struct tt_cluster_job *ret_job) TT_MUST_CHECK;

/** Sets the configuration's recomputation. */
void tt_cluster_own_recomputation(const struct tt_cluster_inputs *in, struct tt_cluster_job *job);

#endif
