/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_DIVIDE_SEQUENCES_H
#define TT_GRAPH_DIVIDE_SEQUENCES_H

#include "core/graph/divide.h"

/**
 * The part of tt_graph_divide that divides sequences (context parallelism by Ulysses): a new graph, which the caller
 * frees. Grains are pieces of the sequences of equal length. Rows are in the order [grain][sequence][position], so the
 * rows of a rank are consecutive in the graph of one rank. tokens, labels and positions are (B * grains of this rank,
 * T / grains) in this order; graph->positions is always there, and has the place of each token in its sequence.
 * Around attention the ranks exchange parts of sequences for heads.
 * Errors: TT_EINTERNAL if T or the key/value heads do not divide into grains, for documents, and for other ops.
 */
int tt_graph_divide_sequences(const struct tt_graph *whole, const struct tt_division *cp,
                              struct tt_graph **ret_graph) TT_MUST_CHECK;

#endif
