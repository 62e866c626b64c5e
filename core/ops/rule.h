/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_RULE_H
#define TT_OPS_RULE_H

#include "core/math/round.h"
#include "core/ops/op.h"

/**
 * What the rows of the op table share: shape checks, the nodes that backward rules append, costs.
 */

/**
 * Output k of a node under inference: a new activation called `name`, or `name.suffix` when suffix is not NULL, of the
 * type that the op's row says. Where a backward rule has chosen the output already, its type and shape are compared
 * instead. 0 or TT_EINTERNAL.
 */
int tt_op_output(struct tt_graph *graph, struct tt_node *node, int k, const char *name, const char *suffix, int ndim,
                 const int64_t *shape) TT_MUST_CHECK;

/** TT_EINTERNAL with what the op wants and the shapes of its inputs. */
int tt_op_mismatch(const struct tt_graph *graph, const struct tt_node *node, const char *wanted);

/** Is input i, the position of every row in its document, absent or of as many rows? */
bool tt_op_positions_fit(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t rows);

/** Is input i absent (an optional accumulator), or a matrix (or vector, rows 1) of this shape? */
bool tt_op_acc_fits(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t rows, int64_t width);

/**
 * Appends a backward node of `forward`, with its attributes. Output k is a new gradient of value of[k]. If that is a
 * parameter that all peers of forward have whole, the output is this rank's term, and a SUM_ALL follows, which adds to
 * the earlier gradient in the node's place. ret_out[k]: the id of output k, or of the sum.
 */
int tt_rule_node(struct tt_graph *graph, enum tt_op_id op, const struct tt_node *forward, const int *in, int n_in,
                 const int *of, int n_of, int *ret_out) TT_MUST_CHECK;

/** Moves the last node to place `to`; its inputs are made before that. */
void tt_rule_move_last(struct tt_graph *graph, int to);

/** `grad` is now the whole gradient of forward's input i (also where the op reads the same value twice). */
void tt_rule_set(const struct tt_node *forward, int i, int grad, int *grad_in);

/** Adds `grad` to the gradient of forward's input i: appends an ADD if there is a sum already. */
int tt_rule_add(struct tt_graph *graph, const struct tt_node *forward, int i, int grad, int *grad_in) TT_MUST_CHECK;

/** Is a gradient of this value of any use? Not for tokens, tables and frozen parameters. */
bool tt_rule_wanted(const struct tt_graph *graph, int value);

/**
 * A value for the gradient of `of`: of its type, or for a parameter a TT_VALUE_PARAM_GRAD in F32, since that is the
 * type in which gradients are summed. For a frozen parameter it is a TT_VALUE_GRAD, which nothing reads: some ops
 * compute the gradients of all their inputs at once. The gradient of what was gathered is partial, and that of a
 * partial value is not. Used by backward rules.
 */
int tt_graph_grad_value(struct tt_graph *graph, int of);

/** Bytes of all inputs and outputs of a node. */
double tt_op_bytes(const struct tt_graph *graph, const struct tt_node *node);

/** Elements of a node's first output, as a flop count. */
double tt_op_elements(const struct tt_graph *graph, const struct tt_node *node);

/** Does a node compute in bfloat16? */
bool tt_op_is_bf16(const struct tt_graph *graph, const struct tt_node *node);

/** Element `at` of input i of a call, which is NULL if it is absent, and of output k. */
const void *tt_call_in_at(const struct tt_call *call, int i, int64_t at);
void *tt_call_out_at(const struct tt_call *call, int k, int64_t at);

/* Runs the kernel of that name for the type that the call's node computes in. */
#define TT_RUN_KERNEL(call, name, ...)                  \
    do {                                                \
        if (tt_op_is_bf16((call)->graph, (call)->node)) \
            tt_kernels()->name##_bf16(__VA_ARGS__);     \
        else                                            \
            tt_kernels()->name(__VA_ARGS__);            \
    } while (0)

/* A run of a team over items [0, n) in tiles of `size`: the tile's range. */
struct tt_range {
    int64_t begin, n;
};

static inline int64_t tt_tiles(int64_t n, int64_t size)
{
    return tt_div_up(n, size);
}

static inline struct tt_range tt_tile_range(int64_t n, int64_t size, int64_t tile)
{
    struct tt_range range = {tile * size, size};

    if (range.begin + range.n > n)
        range.n = n - range.begin;
    return range;
}

#endif
