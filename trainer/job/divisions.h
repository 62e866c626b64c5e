/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_DIVISIONS_H
#define TT_TRAINER_JOB_DIVISIONS_H

#include "core/config/config.h"
#include "core/models/model.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/split.h"

/**
 * Whether layers of the model and sequences can be divided as the degrees of tensor and context parallelism, and the
 * exact ones, say. A layer, or a sequence, has as many grains as the larger of its two degrees. Heads, key/value heads,
 * the feed-forward width and the tokens of a microbatch must be multiples of a layer's grains; of the vocabulary each
 * grain must have a row. The length of a sequence must be a multiple of a sequence's grains, or of twice as many with
 * context_parallel_load_balancer headtail, and what is divided in both ways of their product. With
 * context_parallel_method ulysses key/value heads must be a multiple of the degree of context parallelism times a
 * layer's grains. Layers of experts cannot be divided in these ways. The degree of expert parallelism must divide the
 * experts of a layer. Needs no ranks.
 * Errors: TT_EUSAGE, about the key of the larger degree, with the degrees that work.
 */
int tt_job_check_divisions(const struct tt_config *cfg, const struct tt_model *model) TT_MUST_CHECK;

/** Whether the ranks of a sequence gather keys and values, and do not exchange heads: context_parallel_method. */
bool tt_job_gathers(const struct tt_config *cfg, const struct tt_model *model);

/* --- the pipeline --- */

/**
 * The pipeline that a configuration asks for, with pipeline_parallel_degree ranks. No function needs ranks. All errors
 * are TT_EUSAGE with a key, unless a function says otherwise.
 */

/** The microbatches of a run: local_batch_size / pipeline_parallel_microbatch_size. */
int tt_job_pipeline_microbatches(const struct tt_config *cfg, int *ret_microbatches) TT_MUST_CHECK;

/** The stages of a model, as listed or by torchtitan's rule. ret_split is the caller's (tt_stage_split_release). */
int tt_job_pipeline_split(const struct tt_config *cfg, int n_layers, struct tt_stage_split *ret_split) TT_MUST_CHECK;

/**
 * The orders of a run. *ret_pipeline is the caller's (tt_pipeline_free). It reads the file of schedules that have one;
 * then tt_pipeline_new's other errors may come too.
 */
int tt_job_pipeline_new(const struct tt_config *cfg, int n_stages, int microbatches,
                        struct tt_pipeline **ret_pipeline) TT_MUST_CHECK;

#endif
