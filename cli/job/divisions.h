/* SPDX-License-Identifier: MIT */
#ifndef TT_JOB_DIVISIONS_H
#define TT_JOB_DIVISIONS_H

#include "core/config/config.h"
#include "core/models/model.h"

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

#endif
