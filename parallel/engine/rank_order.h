/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_RANK_ORDER_H
#define TT_PARALLEL_ENGINE_RANK_ORDER_H

#include "parallel/engine/engine.h"
#include "parallel/pipeline/crossings.h"

/** The microbatches of one run through the pipeline; 0: there is none. */
int tt_rank_order_run(const struct tt_engine_options *options, enum tt_graph_mode mode, int microbatches);

/**
 * The order of compute of a rank, and what it exchanges with the other ranks of the pipeline. Without a pipeline it is
 * options->order, or one microbatch after another.
 *   pp      the rank's place in TT_GROUP_PP
 *   stages  [n_stages] those of the rank; they must outlive the crossings
 * Both results are the caller's.
 */
void tt_rank_order(const struct tt_engine_options *options, int pp, enum tt_graph_mode mode,
                   const struct tt_stage *stages, int n_stages, int microbatches, struct tt_order *ret_order,
                   struct tt_crossings *ret_crossings);

#endif
