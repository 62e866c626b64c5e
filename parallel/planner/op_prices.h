/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_OP_PRICES_H
#define TT_PARALLEL_PLANNER_OP_PRICES_H

#include "core/base/json.h"
#include "core/graph/dtype.h"
#include "core/ops/op.h"

/**
 * What ops cost on a measured machine. A roofline of peaks is too fast: products reach a part of the peak that depends
 * on the length of their sums, attention another one, and small ops find their data in the caches. So `titan bench`
 * times the ops of small models, and fits three prices for each op in each type:
 *
 *     seconds of one thread = flop_sec x flops + byte_sec x bytes + sum_sec x flops / (length of the sums)
 *
 * The last term is what a product does once per sum, such as storing it. No price is negative, so that work of other
 * sizes, which is priced too, never takes less time for being more.
 */
struct tt_op_price {
    char op[24];         /* tt_instr_op_name */
    enum tt_dtype dtype; /* TT_F32 or TT_BF16: in which the step computes, though the op may not */
    double flop_sec, byte_sec, sum_sec;
};

enum { TT_MOST_OP_PRICES = 96 };

/* n is 0 on machines whose ops were not measured. */
struct tt_op_prices {
    int n;
    struct tt_op_price of[TT_MOST_OP_PRICES];
};

/* One instruction of a measured step. */
struct tt_op_sample {
    const char *op;
    enum tt_dtype dtype;
    struct tt_cost work;
    double sec; /* of one thread: on a team, the time multiplied by its threads */
};

/**
 * Fits the prices of the ops in the samples. Every sample counts as much as it takes time, and by its relative error.
 * Ops without work or time get no price. Ops beyond TT_MOST_OP_PRICES get none either.
 */
void tt_op_prices_fit(const struct tt_op_sample *samples, int n, struct tt_op_prices *ret_prices);

/** NULL: the op was not measured in this type. */
const struct tt_op_price *tt_op_prices_find(const struct tt_op_prices *prices, const char *op, enum tt_dtype dtype);

/** Seconds of one thread. */
double tt_op_price_sec(const struct tt_op_price *price, const struct tt_cost *work);

/** "float32" or "bfloat16", as in configurations. */
const char *tt_op_price_dtype(enum tt_dtype dtype);

/** The prices in a machine file: [{"op", "dtype", "flop_s", "byte_s", "sum_s"}, ...]. The caller's (json_decref). */
json_t *tt_op_prices_to_json(const struct tt_op_prices *prices);

/** Reads that array; path is for messages. Errors: TT_EDATA. */
int tt_op_prices_read(const json_t *array, const char *path, struct tt_op_prices *ret_prices) TT_MUST_CHECK;

#endif
