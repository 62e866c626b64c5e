/* SPDX-License-Identifier: MIT */
#ifndef TT_PASSES_PHASES_H
#define TT_PASSES_PHASES_H

#include "core/graph/graph.h"

/**
 * Replaces the head of a graph by its phases (core/ops/head.c) if its vocabulary has grains (tt_attr.out). So ranks
 * with parts of the vocabulary can exchange the sums of the softmax. The tokens go through the phases in chunks, so
 * only one chunk has logits at a time:
 *
 *     HEAD_LOGITS   this rank's part of the logits, the largest one, and the sums of the exponentials
 *     GATHER_ROWS   the same for all peers, if there are any
 *     HEAD_CHUNK, HEAD_CHUNK_GRAD   the losses and the gradients
 *
 * token_loss, dx and dw pass from chunk to chunk and end in the values that the head produced before; dx takes the
 * place of x row by row if both are of the same type. If rows have grains, chunks end with them, and dw is a tree over
 * them. The bits depend on the grains, but not on the number of peers. This is the last pass: it comes after
 * recomputation, and after gradients are carried over microbatches.
 */
int tt_graph_phase_head(struct tt_graph *graph) TT_MUST_CHECK;

#endif
