/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_MEGATRON_H
#define TT_CLI_CLUSTER_INPUTS_MEGATRON_H

#include "cli/cluster/inputs/megatron_flags.h"
#include "cli/cluster/inputs/notes.h"
#include "cluster/model/job.h"
#include "core/base/error.h"

/* What flags of Megatron-LM say about a job. Zero-initialise; tt_cluster_megatron_release. */
struct tt_cluster_megatron {
    struct tt_cluster_shape shape;
    char **override; /* batch and layout in titan's keys: "--training.seq_len=8192" */
    int n, cap;
    enum tt_cluster_again again;
    double again_layers;    /* of TT_AGAIN_LAYERS */
    unsigned again_modules; /* of TT_AGAIN_MODULES */
    double gradient_bytes;  /* see tt_cluster_job */
    bool float8, async_tp;
    bool sequence_parallel;
    bool balanced, expert_overlap; /* see tt_cluster_job */
    bool distributed_optimizer;    /* else every rank has the whole state of its parameters */
    double stages_of_a_rank;       /* of a pipeline; 0: there is none */
    double expert_tp;              /* see tt_cluster_job */
    double exposed;                /* share of data parallelism's traffic that no flag overlaps: 0, a half, or 1 */
    int kernel;                    /* of attention; -1: not said */
};

/**
 * Reads flags from a file (NULL: none), which may be a shell script, and then from given->words, which win. Flags that
 * have nothing to do with the cost are skipped; what changes it and is not counted is added to the notes.
 * TT_EUSAGE: a flag that is needed is missing, has a value that is not a number, depends on what the script does not
 * say, or might change the cost and is not modelled.
 */
int tt_cluster_megatron_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                             struct tt_cluster_megatron *ret_megatron) TT_MUST_CHECK;
void tt_cluster_megatron_release(struct tt_cluster_megatron *megatron);

/** Whether words after "--" are flags of Megatron-LM: none of them has a dot, as torchtitan's have. */
bool tt_cluster_is_megatron(int n_words, const char *const *words);

#endif
