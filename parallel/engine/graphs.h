/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_GRAPHS_H
#define TT_PARALLEL_ENGINE_GRAPHS_H

#include "parallel/engine/engine.h"

/**
 * The graphs of one microbatch on a rank: that of the model, or its forward graph cut into stages, of which a rank of a
 * pipeline gets its own, in ascending order. If the mesh has grains, the forward graph is first divided among the ranks
 * that share a layer or a sequence. For training they are differentiated, have a z-loss if options->z_loss is not 0,
 * have the copies of recomputation and, with TT_REDUCE_LAST, carry gradients.
 *   ret_stages  [*ret_n] the caller's (tt_stages_release, tt_free)
 */
int tt_engine_graphs(const struct tt_engine_options *options, int rank, enum tt_graph_mode mode, int64_t batch,
                     int64_t seq_len, struct tt_stage **ret_stages, int *ret_n) TT_MUST_CHECK;

#endif
