/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_WIDENED_H
#define TT_OPS_WIDENED_H

#include "core/ops/op.h"

/**
 * Runs a node that computes in bfloat16 by arithmetic in float: what it reads is widened in scratch, and what it makes
 * there is rounded once. `run` sees a call whose operands are floats and whose scratch lies after them.
 */
void tt_run_widened(const struct tt_call *call, void (*run)(const struct tt_call *call));

/** Bytes of scratch that this takes, whole cache lines; 0 for a node that computes in float. */
int64_t tt_widened_bytes(const struct tt_graph *graph, const struct tt_node *node);

#endif
