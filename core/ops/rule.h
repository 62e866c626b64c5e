/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_RULE_H
#define TT_OPS_RULE_H

#include "core/ops/op.h"

/** Code that the rows of the op table share: shape checks, the nodes that backward rules append, costs. */

/**
 * Adds output k of a node: a new activation called `name`, or `name.suffix` if suffix is not NULL, of the type given in
 * the op's row. If a backward rule has already chosen the output, compares its type and shape instead. 0 or
 * TT_EINTERNAL.
 */
int tt_op_output(struct tt_graph *graph, struct tt_node *node, int k, const char *name, const char *suffix, int ndim,
                 const int64_t *shape) TT_MUST_CHECK;

/** TT_EINTERNAL, with the inputs that the op expects and the actual shapes. */
int tt_op_mismatch(const struct tt_graph *graph, const struct tt_node *node, const char *wanted);

/** Whether input i (the position of every row in its document) is absent, or has this number of rows. */
bool tt_op_positions_fit(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t rows);

/** Whether input i is absent (an optional accumulator), or is a matrix of this shape (a vector if rows is 1). */
bool tt_op_acc_fits(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t rows, int64_t width);

/**
 * Appends a backward node of `forward`, with its attributes. Output k is a new gradient of value of[k]. If all peers of
 * `forward` hold the whole of parameter of[k], the output is this rank's term, and a SUM_ALL follows; the SUM_ALL, not
 * the node, adds the earlier gradient. ret_out[k]: the id of output k, or of the sum.
 */
int tt_rule_node(struct tt_graph *graph, enum tt_op_id op, const struct tt_node *forward, const int *in, int n_in,
                 const int *of, int n_of, int *ret_out) TT_MUST_CHECK;

/**
 * The first function adds a new gradient called `of`.suffix; if it is partial, it is one term of a sum over ranks. The
 * second function checks and appends a node whose outputs were added in this way.
 */
int tt_rule_value(struct tt_graph *graph, int of, const char *suffix, enum tt_dtype dtype, int ndim,
                  const int64_t *shape, bool partial);
int tt_rule_push(struct tt_graph *graph, const struct tt_node *node) TT_MUST_CHECK;

/** The `backward` of a row that has `passes` and `gradients`. */
int tt_rule_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in) TT_MUST_CHECK;

/** Appends the node of one of `gradients`, if an input of `forward` needs it, and adds its outputs to grad_in. */
int tt_rule_gradient(struct tt_graph *graph, const struct tt_node *forward, const struct tt_gradient *gradient,
                     const int *grad_out, int *grad_in) TT_MUST_CHECK;

/** Moves the last node to place `to`. Its inputs must come from nodes before that place. */
void tt_rule_move_last(struct tt_graph *graph, int to);

/** `grad` is now the whole gradient of forward's input i (even if the op reads the same value twice). */
void tt_rule_set(const struct tt_node *forward, int i, int grad, int *grad_in);

/** Adds `grad` to the gradient of forward's input i: appends an ADD if there is a sum already. */
int tt_rule_add(struct tt_graph *graph, const struct tt_node *forward, int i, int grad, int *grad_in) TT_MUST_CHECK;

/** Whether anything needs a gradient of this value. False for tokens, tables and frozen parameters. */
bool tt_rule_wanted(const struct tt_graph *graph, int value);

/**
 * A value for the gradient of `of`: of the same type or, for a parameter, a TT_VALUE_PARAM_GRAD in F32, the type in
 * which gradients are summed. For a frozen parameter it is a TT_VALUE_GRAD, which nothing reads; it exists because some
 * ops compute the gradients of all their inputs at once. The gradient of a gathered value is partial; the gradient of a
 * partial value is not. For backward rules.
 */
int tt_graph_grad_value(struct tt_graph *graph, int of);

/** Elements of a node's first output, as a flop count. */
double tt_op_elements(const struct tt_graph *graph, const struct tt_node *node);

/** Whether a node computes in bfloat16. */
bool tt_op_is_bf16(const struct tt_graph *graph, const struct tt_node *node);

/** Element `at` of input i of a call (NULL if the input is absent), and of output k. */
const void *tt_call_in_at(const struct tt_call *call, int i, int64_t at);
void *tt_call_out_at(const struct tt_call *call, int k, int64_t at);

/** Calls fn on the team for ranges of `size` out of n items. */
void tt_op_run_tiles(const struct tt_call *call, int64_t n, int64_t size,
                     void (*fn)(const struct tt_call *call, struct tt_range part));

/** `run` of a row that has `tile`. */
void tt_op_run_rows(const struct tt_call *call);

/* Runs the kernel of the given name, in the variant for the type in which the call's node computes. */
#define TT_RUN_KERNEL(call, name, ...)                  \
    do {                                                \
        if (tt_op_is_bf16((call)->graph, (call)->node)) \
            tt_kernels()->name##_bf16(__VA_ARGS__);     \
        else                                            \
            tt_kernels()->name(__VA_ARGS__);            \
    } while (0)

/**
 * Grains: the parts into which ranks may cut a dimension (tt_extent in core/graph/graph.h). Ops derive tiles, ranges
 * and slices from a grain of the whole dimension, and add the results of grains as a tree (core/math/tree.h). So a rank
 * with some of the grains runs the same calls on them as a rank with all of them.
 */

/** The size of a grain; 0 if the dimension is not cut. The last grain may be shorter. */
int64_t tt_grain_size(const struct tt_extent *extent);

/** Whether `local` is the whole dimension, or a whole number of its grains. */
bool tt_grain_fits(const struct tt_extent *extent, int64_t local);

/** The extent from which tiles are derived: tt_grain_size, or the local extent if that is 0. */
int64_t tt_grain_or(const struct tt_extent *extent, int64_t local);

/** The rows of a chunk of HEAD_LOSS or HEAD_LOSS_GRAD: a chunk lies within one grain of rows. */
int64_t tt_head_chunk_rows(const struct tt_graph *graph, const struct tt_node *node);

/**
 * Rows in blocks, for sums over rows. Each block is one call of a kernel; the blocks of a grain are added in order,
 * then the grains as a tree.
 */
struct tt_row_blocks {
    int64_t grains, per_grain; /* the number of blocks is their product */
    int64_t grain_step;        /* rows from one grain to the next */
    int64_t block_step;        /* rows from one block of a grain to the next */
    int64_t most;              /* rows of every block except the last of a grain */
    int64_t grain_rows;        /* rows of a grain whose blocks are consecutive */
};

/** Cuts the `rows` local rows into blocks of at most `most` rows; each row of the extent stands for `groups` rows. */
struct tt_row_blocks tt_row_blocks_of(const struct tt_extent *extent, int64_t rows, int64_t groups, int64_t most);

/**
 * The sums of a node over rows, in float32. Each of the outputs out, out + 1, ... has `columns` elements: [its acc +]
 * the sum of the results of all blocks.
 */
struct tt_row_sums {
    struct tt_row_blocks blocks;
    int64_t columns;
    int n, out, acc; /* outputs; the first output, and the input that is its acc */
    int64_t sums;    /* number of sums per output, which follow each other and have their own blocks; 0: one */
    /* Computes the results of a block of rows for all outputs, side by side. NULL: input 0 contains them. */
    void (*block)(const struct tt_call *call, struct tt_range rows, tt_real *to);
};

/** `run` and `scratch_bytes` of a row that has `sums`. */
void tt_op_run_sums(const struct tt_call *call);
int64_t tt_op_sums_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads);

/**
 * y[0, n) = [acc +] a sum over grains, for arrays that are too large to sum by blocks. fn computes the grains one by
 * one; they are added as a tree. stack: tt_tree_stack_depth(grains) arrays of n floats.
 */
void tt_op_sum_grains(struct tt_team *team, int64_t grains, int64_t n, tt_real *stack, const tt_real *acc, tt_real *y,
                      void (*fn)(void *arg, int64_t grain, tt_real *to), void *arg);

#endif
