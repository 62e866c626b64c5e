/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAD_INTERP_H
#define TT_GRAD_INTERP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/graph/graph.h"
#include "core/math/rng.h"
#include "core/ops/op.h"

/* Random numbers, one after the other. */
struct interp_draw {
    struct tt_rng rng;
    uint64_t drawn;
};

/**
 * The simplest executor: every value has memory of its own and nodes run in order. If aliased, outputs take the memory
 * of inputs wherever their rows allow it, as in a memory plan.
 */
struct interp {
    struct tt_graph *graph;
    void **data; /* by value */
    bool *owned; /* data[v] is v's own memory */
    bool *gone;  /* another value now uses its memory */
    struct tt_scalars scalars;
    double perturbation; /* relative error that results in the nodes' compute type get, up or down */
    struct interp_draw signs;
    double op_seconds[TT_OPS]; /* time spent, by op */
    double op_flops[TT_OPS];
};

/**
 * Makes a forward graph compute in bfloat16. A leaf that represents an activation in cases.c (its name begins with x)
 * becomes an activation without a producer, so that its gradient is bfloat16 too; a table of embeddings stays a
 * parameter, and leaves that are always float32 (f) stay float32.
 */
void interp_use_bf16(struct tt_graph *graph);

/** Element i of a value of either type. */
double interp_element(const struct interp *interp, int value, int64_t i);

/** Memory for all values, filled with NaN. The graph stays the caller's. */
struct interp *interp_new(struct tt_graph *graph, bool aliased);
void interp_free(struct interp *interp);

/** Copies the values that nodes do not make (parameters, tokens, tables) from another interpreter of the same graph. */
void interp_copy_leaves(struct interp *to, const struct interp *from);

/** A normal deviate within 3 standard deviations. */
double interp_normal(struct interp_draw *draw);

/** Draws parameters, tokens and labels, and fills the table of angles. The graph has a head, or begins with an
 * embedding. */
void interp_fill(struct interp *interp, struct interp_draw *draw);

/* The nodes to run. */
enum interp_pass { INTERP_ALL, INTERP_FORWARD, INTERP_BACKWARD };

/** Runs nodes in order. Scratch has exactly the size that the op asks for, with guards around it, and is filled with
 * NaN. Returns false if an op wrote outside its scratch. */
bool interp_run(struct interp *interp, struct tt_team *team, enum interp_pass pass);

/** Runs one node, which must be one that computes. */
bool interp_run_node(struct interp *interp, struct tt_team *team, int node);

/** inv_valid_tokens * the sum of graph->token_loss. */
double interp_loss(const struct interp *interp);

/** The first value whose bits differ between two runs of one graph, or TT_NONE. Overwritten values are left out. */
int interp_first_difference(const struct interp *a, const struct interp *b);

#endif
