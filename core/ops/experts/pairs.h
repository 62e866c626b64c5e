/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_EXPERTS_PAIRS_H
#define TT_OPS_EXPERTS_PAIRS_H

#include "core/ops/experts/experts.h"
#include "core/ops/op.h"

/**
 * Products of experts with rows that come from one or several sources: the ranks that share the experts. A pair is an
 * expert and a source. Its rows are one product, of the shape that it has on the source alone, so the bits do not
 * depend on the number of ranks. Pairs are sorted by expert and within an expert by source; with one source they are
 * the experts. For the ops of this folder.
 */

/* Which pairs the rows at hand are of. */
struct tt_pairs {
    const int32_t *ends; /* [pair] the end of its rows, which begin at the end of the pair before it */
    int64_t first, end;  /* the pairs whose rows these are; the rows of `first` begin at 0 */
    int sources;         /* pairs of an expert */
};

/**
 * Those of a call that has `ends` (X) as an input. If ranks share the experts (tt_attr.peers), two integers follow
 * these: the first pair, and the end of the pairs.
 */
struct tt_pairs tt_pairs_of(const struct tt_call *call, int ends);

/** All rows of the pairs. */
static inline int64_t tt_pairs_rows(const struct tt_pairs *pairs)
{
    return pairs->end > pairs->first ? pairs->ends[pairs->end - 1] : 0;
}

/*
 * One product of every pair, as in experts.h, with the first rows of each operand that has rows, and otherwise what the
 * first expert has. `scratch` is used by one call at a time.
 */
struct tt_pair_products {
    enum tt_op_id op;
    bool bf16;
    int64_t m, k;
    const void *in[2], *acc; /* acc may be NULL */
    void *out;
    void *scratch;
    int64_t rows; /* the most of a pair */
};

/** Bytes of scratch for that many pairs; reads op, bf16, m, k and rows. */
int64_t tt_pairs_scratch(const struct tt_pair_products *products, int64_t pairs, int threads);

/* What the products of a node with rows and weights share. */
struct tt_pairs_work {
    const struct tt_call *call;
    struct tt_pairs pairs;
    int64_t most; /* rows of a pair */
    bool bf16;
    void *scratch; /* tt_pairs_scratch */
};

/**
 * Runs one product of every pair on the team of the call: TT_OP_EXPERTS or TT_OP_EXPERTS_BWD_X of `in` with weights
 * (Y, m, k). acc: what the latter is added to, or NULL.
 */
void tt_pairs_multiply(const struct tt_pairs_work *work, enum tt_op_id op, int64_t m, int64_t k, const void *in,
                       const void *weights, const void *acc, void *out);

/**
 * The gradients of weights: n kinds of products of TT_OP_EXPERTS_BWD_W. Those of an expert's sources are added in the
 * order of core/math/tree.h, since the sources are neighbours in the tree over microbatches. Experts have sums of their
 * own, so the team gets the products of several experts with one source at once. The pairs may come in several calls,
 * in their order; `sums` keeps what is not complete. An expert without rows gets acc or zeros.
 *   sums    tt_pairs_sums_floats; not needed with one source
 *   rounds  the gradient of each pair is rounded to bfloat16 before it is added
 */
void tt_pairs_gradients(const struct tt_call *call, const struct tt_pairs *pairs,
                        const struct tt_pair_products *products, int n, float *sums, bool rounds);

/** experts: of this rank. */
int64_t tt_pairs_sums_floats(const struct tt_pair_products *products, int n, int sources, int64_t experts, int threads);

#endif
