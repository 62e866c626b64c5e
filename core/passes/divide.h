/* SPDX-License-Identifier: MIT */
#ifndef TT_PASSES_DIVIDE_H
#define TT_PASSES_DIVIDE_H

#include "core/graph/graph.h"

/**
 * Splits a forward graph over the ranks that share a layer (tensor and sequence parallelism) or a sequence (context
 * parallelism), before it is cut into stages and differentiated. The result is one rank's graph: smaller shapes, the
 * logical extents that keep the bits (tt_extent), and exchanges (core/ops/exchange.c), which have their own backward
 * rules. So the rest of the program does not know of the split.
 */

/* A split over `peers.n` ranks. Sums and tiles are computed as for `grains` parts, where `grains` is a multiple of
 * n. */
struct tt_division {
    struct tt_axis_peers peers;
    int grains;
};

/*
 * {0}: no split and no grains. With n = 1 and several grains, one rank gives the same bits as ranks that share the
 * graph. Both ways to compute attention of split sequences have the same bits.
 */
struct tt_divisions {
    struct tt_division tp, cp;
    bool mirrored; /* a grain of a sequence is a piece of it and that piece's mirror image (tt_pieces) */
    /* attention: a rank gets its own queries, and all keys and values; otherwise whole sequences of some heads */
    bool gathers;
};

/**
 * A new graph (the caller frees it), one rank's part of the forward graph `whole`, which is not changed. tt_value.tp
 * says how each parameter is split over tp. Sequences are split first, then the layers within each part of the
 * sequences.
 *
 * With context parallelism, grains are pieces of the sequences of equal length, or pairs of them. Rows are in the order
 * of core/graph/pieces.h, so a rank's rows are consecutive in the graph of one rank. tokens, labels and positions are
 * (B * pieces of this rank, T / pieces) in this order. graph->positions always exists; it holds the position of each
 * token in its sequence, or in its document if `whole` uses documents. Around attention the ranks exchange parts of
 * sequences for heads (Ulysses), or all-gather keys and values.
 *
 * Errors: TT_EINTERNAL if a dimension does not divide into grains, or for an op that cannot be split; the configuration
 * has been checked before.
 */
int tt_graph_divide(const struct tt_graph *whole, const struct tt_divisions *divisions,
                    struct tt_graph **ret_graph) TT_MUST_CHECK;

/**
 * Expert parallelism: splits the experts of every layer over ranks with different tokens, or with blocks of the same
 * tokens (struct tt_token_parts). A rank holds the weights of its own experts. One node (EXPERTS_FFN) replaces the
 * feed-forwards; the instruction that runs it exchanges rows between ranks (core/program/instr/nodes.c). The bits are
 * those of one rank with all experts.
 */
struct tt_experts_division {
    struct tt_axis_peers peers; /* n 0 or 1: no split */
    /* how many rows a rank takes at once, relative to the rows that it sends; always enough for one GEMM */
    double window;
    bool round_leaves; /* tt_attr.round_leaves */
};

/**
 * Changes a forward graph in place, after the split of layers and sequences, before it is cut into stages and
 * differentiated. Errors: TT_EUSAGE if the number of experts does not divide, or if experts are not SwiGLU
 * feed-forwards.
 */
int tt_graph_divide_experts(struct tt_graph *graph, const struct tt_experts_division *division) TT_MUST_CHECK;

#endif
