/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_DIVIDE_SEQUENCES_H
#define TT_GRAPH_DIVIDE_SEQUENCES_H

#include "core/graph/divide.h"

/**
 * The part of tt_graph_divide that divides sequences (context parallelism): a new graph, which the caller frees. Grains
 * are pieces of the sequences of equal length, or pairs of them. Rows are in the order of pieces.h, so the rows of a
 * rank are consecutive in the graph of one rank. tokens, labels and positions are (B * pieces of this rank, T / pieces)
 * in this order. graph->positions is always there, and has the place of each token in its sequence, or in its document
 * if `whole` has documents. Around attention the ranks exchange parts of sequences for heads (Ulysses), or the keys and
 * values of all parts are gathered.
 * Errors: TT_EINTERNAL if T does not divide into pieces, if the key/value heads do not divide among the ranks that
 * exchange them, and for other ops.
 */
int tt_graph_divide_sequences(const struct tt_graph *whole, const struct tt_divisions *divisions,
                              struct tt_graph **ret_graph) TT_MUST_CHECK;

#endif
