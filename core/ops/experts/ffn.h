/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_EXPERTS_FFN_H
#define TT_OPS_EXPERTS_FFN_H

#include "core/graph/graph.h"

/**
 * The feed-forwards of experts whose rows ranks exchange (ffn.c, ffn_bwd.c). A program does not run such a node as
 * others: it takes the rows of all ranks for this rank's experts a window at a time, runs the node on each, and gives
 * the rows of its output back (core/program/instr/experts.c).
 */

/* The rows that a node takes to the ranks of the experts and back, as the numbers of its inputs and of its output. */
struct tt_routed {
    int n_in, in[2];
    int ends, out;
    int n_whole; /* the first outputs, which are written whole; of the others only the elements that backward reads */
};

/** Whether ranks share the experts of a node, and what it exchanges with them. */
bool tt_node_routes(const struct tt_graph *graph, int node, struct tt_routed *ret_routed);

#endif
