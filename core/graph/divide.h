/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_DIVIDE_H
#define TT_GRAPH_DIVIDE_H

#include "core/graph/graph.h"

/**
 * Divides a graph among the ranks that share a layer (tensor and sequence parallelism) or a sequence (context
 * parallelism). The result is one rank's graph: smaller shapes, the logical extents that keep the bits (tt_extent), and
 * exchanges (core/ops/ranks/exchange.c).
 *
 * It is a pass over the forward graph, before the graph is cut into stages and differentiated. The exchanges have
 * backward rules of their own, so nothing else knows about it.
 */

/* One way of dividing: over `peers.n` ranks; sums and tiles are those of `grains` parts, a multiple of n. */
struct tt_division {
    struct tt_axis_peers peers;
    int grains;
};

/*
 * Nothing is divided and nothing has grains: {0}. With n 1 and grains more than 1 the graph has the bits of the ranks
 * that would share it. Both ways to compute attention of divided sequences have the same bits.
 */
struct tt_divisions {
    struct tt_division tp, cp;
    bool mirrored; /* a grain of a sequence is a piece of it and that piece's mirror image (tt_pieces) */
    bool gathers;  /* in attention a rank has its queries and all keys and values, not all of some heads */
};

/**
 * A new graph (the caller frees it), one rank's part of the forward graph `whole`, which is not changed. How parameters
 * are divided over tp is in their values. Sequences are divided first (divide_sequences.h has the order of the tokens),
 * then layers, within each part of the sequences.
 * Errors: TT_EINTERNAL if a dimension does not divide into grains; the configuration has been checked before.
 */
int tt_graph_divide(const struct tt_graph *whole, const struct tt_divisions *divisions,
                    struct tt_graph **ret_graph) TT_MUST_CHECK;

#endif
