/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_DIVIDE_EXPERTS_H
#define TT_GRAPH_DIVIDE_EXPERTS_H

#include "core/graph/graph.h"

/**
 * Expert parallelism: divides the experts of every layer among ranks that have different tokens, of which those that
 * share a layer have blocks of the same ones (struct tt_token_parts). A rank's part of the weights is that of its own
 * experts, and one node (EXPERTS_FFN) stands for their feed-forwards. Its inputs and its output are still the rows of
 * this rank's tokens; what it exchanges with the others is its own affair
 * (core/program/instr/experts.c). The bits are those of one rank with all experts.
 */
struct tt_experts_division {
    struct tt_axis_peers peers; /* n 0 or 1: experts are not divided */
    double window; /* rows that a rank takes from all ranks at once, as a multiple of the rows that it sends; at least
                    * those that an expert can get of a grain of tokens */
    bool round_leaves; /* tt_attr.round_leaves */
};

/**
 * Changes a forward graph in place, after its layers and sequences are divided, before it is cut into stages and
 * differentiated.
 * Errors: TT_EUSAGE if the number of experts does not divide, or if experts are not SwiGLU feed-forwards.
 */
int tt_graph_divide_experts(struct tt_graph *graph, const struct tt_experts_division *division) TT_MUST_CHECK;

#endif
