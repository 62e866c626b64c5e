/* SPDX-License-Identifier: MIT */
#ifndef TT_PASSES_PHASES_H
#define TT_PASSES_PHASES_H

#include "core/graph/graph.h"

/**
 * Replaces the head of a graph by its phases (core/ops/head.c) if its vocabulary is in grains (tt_attr.out). So ranks
 * with parts of the vocabulary can exchange the sums of the softmax. The tokens go through the phases in chunks, so
 * only one chunk has logits at a time:
 *
 *     HEAD_LOGITS   this rank's part of the logits, the largest one, and the sums of the exponentials
 *     GATHER_ROWS   the same for all peers, if there are any
 *     HEAD_CHUNK, HEAD_CHUNK_GRAD   the losses and the gradients
 *
 * token_loss, dx and dw pass from chunk to chunk and end in the values that the head produced before; dx overwrites x
 * row by row if both have the same type. If rows are in grains, no chunk crosses a grain, and dw is a tree over the
 * grains. The bits depend on the grains, but not on the number of peers. This is the last pass: it comes after
 * recomputation, and after gradients are carried over microbatches.
 */
int tt_graph_phase_head(struct tt_graph *graph) TT_MUST_CHECK;

#endif
