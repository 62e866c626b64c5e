/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_STEP_STEP_H
#define TT_OPS_STEP_STEP_H

#include <stdint.h>

#include "core/ops/op.h"

/**
 * Step ops: the computations of a step outside its graph. They add gradients, convert gradients and parameters around
 * collectives, compute the norm, update the parameters, and fill tables. They work on flat arrays, so they have no
 * shapes and no backward. Instructions assemble their operands (core/program/instr), and a device runs them
 * (core/device/device.h). step.def says how to add one.
 */
enum tt_step_op_id {
#define TT_STEP_OP(id, row) TT_STEP_##id,
#include "core/ops/step/step.def"
#undef TT_STEP_OP
    TT_STEP_OPS
};

/* Rows of one parameter inside flat arrays, or the same columns of them. */
struct tt_rows {
    int64_t begin; /* first element */
    int64_t rows;
    int64_t width;    /* elements per row; 1 for vectors */
    int64_t stride;   /* elements from one row to the next in the whole parameter */
    int64_t grain;    /* number of columns whose squares form one term of a sum */
    bool adds;        /* whether they count in the sum of squares */
    uint64_t stream;  /* stream of the parameter's random numbers (core/math/rng.h) */
    int64_t index;    /* index of the first element in the whole parameter */
    double lr_factor; /* factor of the learning rate */
    bool no_decay;    /* without weight decay */
    /* of moments in blocks: the first of its numbers in their array, the first of its blocks, and the elements after
     * which a new block begins in any case (0: only blocks that are full end) */
    int64_t code, block, run;
};

/*
 * One execution of a step op, which uses the members that its file names. The op of an optimizer gets the gradient in
 * `in` and, if it replaces it, in out[3], the parameter in out[0] and its moments in out[1] and out[2]; if
 * these are in blocks, `largest` has the largest magnitudes of the blocks.
 */
struct tt_step_call {
    enum tt_step_op_id op;
    const void *in;
    void *out[4];
    tt_real *largest[2];
    void *const *sums;          /* arrays that are added */
    int64_t parts;              /* the number of arrays, in sums or in `in` */
    int64_t n;                  /* elements of an array */
    int64_t stride;             /* elements from one part of `in` to the next */
    const struct tt_rows *rows; /* the part of the arrays that is data: the rest is padding */
    int n_rows;
    const struct tt_rope *rope;
    const struct tt_scalars *scalars;
    enum tt_dtype dtype; /* type of weights and moments: TT_F32 or TT_BF16; TT_F64: everything is in float64 */
    struct tt_team *team;
};

/* Elements that a thread updates. */
struct tt_update_part {
    const struct tt_rows *rows;
    int64_t first; /* first of the rows' elements */
    int64_t begin; /* first element in the flat arrays */
    int64_t index; /* first element in the whole parameter; tt_update_next sets it */
    int64_t n;
};

struct tt_step_row {
    const char *name;
    /* Cuts the work into tiles that depend on sizes only. Cannot fail. */
    void (*run)(const struct tt_step_call *call);
    /* The cost, from sizes alone: call may lack addresses. NULL: the cost does not count, since collectives hide it. */
    void (*cost)(const struct tt_step_call *call, struct tt_cost *ret_cost);
    /* The cost of each of n elements, for tt_step_cost: how many numbers of type `dtype`, and how many floats, are read
     * and written. */
    double numbers, floats;
    /* For tt_update_run (core/optim/optim.h): updates a part of the rows. */
    void (*update)(const struct tt_step_call *call, struct tt_update_part part);
};

#define TT_STEP_OP(id, row) extern const struct tt_step_row TT_OF_TYPE(tt_step_op_##row);
#include "core/ops/step/step.def"
#undef TT_STEP_OP

/** The row of a step op; the second function: in the copy for double. */
const struct tt_step_row *tt_step_row(enum tt_step_op_id op);
const struct tt_step_row *tt_step_row_f64(enum tt_step_op_id op);

/** The row whose functions compute in the call's type: those compiled for double if that is TT_F64. */
const struct tt_step_row *tt_step_row_of(const struct tt_step_call *call);

/** `cost` of a row that has `numbers` or `floats`. */
void tt_step_cost(const struct tt_step_call *call, struct tt_cost *ret_cost);

/**
 * Mixed precision: the conversions around a collective whose payload is bfloat16. The rows of purposes
 * (core/program/instr/params.c) make the device run them.
 *
 *   parameters   The shards stay float32. Gathered parameters are the shards rounded to bfloat16 (to nearest, ties to
 *                even), on one rank too, and the graph computes in bfloat16. Activations and their gradients are
 *                bfloat16; statistics, sums and the gradients of parameters are float32. Shards that are bfloat16
 *                themselves (tt_lowering.shard_dtype) are gathered as they are; a rank that has all of a unit uses them
 *                in place.
 *   gradients    Every microbatch's gradient on every rank is rounded, then all of them are added in float32 in the
 *                order of the tree. A sum is never rounded, so the bits do not depend on the layout: partial sums
 *                cannot travel, and ranks exchange their blocks directly (the same bytes, more messages). The
 *                all-reduce over replicas adds such sums, so it travels as float32.
 *
 * A buffer of n floats holds n gradients of bfloat16 in its upper half while they travel, and is converted in place, so
 * it takes no more memory than float32 does.
 */

/** The place of the n bfloat16 of a buffer of n floats. */
static inline char *tt_mixed_half(void *whole, int64_t n)
{
    return (char *)whole + n * (int64_t)sizeof(uint16_t);
}

#endif
