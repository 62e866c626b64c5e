/* SPDX-License-Identifier: MIT */
#ifndef TT_PASSES_RECOMPUTE_H
#define TT_PASSES_RECOMPUTE_H

#include "core/graph/graph.h"

/**
 * Activation checkpointing: a pass over a differentiated graph. Forward nodes of a transformer block are run a second
 * time in its backward part, and the backward nodes read those copies. So the first results have short lifetimes, and
 * the memory plan can reuse their space. A copy is the same op on the same values, so only memory and time change.
 *
 *     FULL       every block; only its input stays
 *     SELECTIVE  every n-th block (n - 1, 2 n - 1, …); its input, the output of attention and the results of exchanges
 *                inside it stay, so attention never runs twice and nothing is exchanged twice
 *     OP         every block; the outputs of attention, matrix products and exchanges stay, and the light ops (norms,
 *                SwiGLU, …) run again if all their inputs are available anyway. This never takes more memory, and
 *                hardly more time
 */
enum tt_recompute_mode { TT_RECOMPUTE_NONE, TT_RECOMPUTE_FULL, TT_RECOMPUTE_SELECTIVE, TT_RECOMPUTE_OP };

struct tt_recompute {
    enum tt_recompute_mode mode;
    int every; /* SELECTIVE: n >= 1 */
};

/**
 * Adds the copies, each just before the first backward node that needs it, marked `backward`, in the block of its
 * original. Only values that backward reads are copied. Node ids change, value ids do not. Once per graph, after
 * tt_graph_differentiate.
 */
void tt_graph_recompute(struct tt_graph *graph, const struct tt_recompute *recompute);

#endif
