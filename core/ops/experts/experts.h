/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_EXPERTS_EXPERTS_H
#define TT_OPS_EXPERTS_EXPERTS_H

#include "core/graph/graph.h"
#include "core/ops/op.h"
#include "core/ops/rule.h"
#include "core/os/team.h"

/**
 * The products of experts: each multiplies some rows with one expert's weight (M, K). The op EXPERTS runs one product
 * per expert. A rank that computes rows of other ranks runs one per expert and rank; a product of the same rows has the
 * same bits there.
 */

/** The rows of one product, and the addresses of its operands. */
struct tt_expert_rows {
    int64_t rows; /* may be 0: then operands may be NULL, except `out` of EXPERTS_BWD_W, which gets acc or zeros */
    /* EXPERTS: x (rows, K), w (M, K); EXPERTS_BWD_X: dy (rows, M), w; EXPERTS_BWD_W: dy (rows, M), x (rows, K) */
    const void *in[2];
    const void *acc; /* of the type of `out`, or NULL; may be equal to `out`. EXPERTS does not read it */
    void *out;       /* EXPERTS: y (rows, M); EXPERTS_BWD_X: dx (rows, K); EXPERTS_BWD_W: dw (M, K) in float32 */
    /* written by tt_experts_run: the index of the product at this place in the order; the number of tiles up to it */
    int64_t order, tiles;
};

/** Products that the team runs together. */
struct tt_experts_products {
    enum tt_op_id op; /* TT_OP_EXPERTS, TT_OP_EXPERTS_BWD_X or TT_OP_EXPERTS_BWD_W */
    bool bf16;        /* operands are bfloat16, except the float32 ones above; else all are floats */
    bool alone;       /* every row of EXPERTS gets the bits that it has alone */
    int64_t m, k;     /* sizes of an expert's weight */
    struct tt_expert_rows *of;
    int64_t n;        /* products */
    tt_real *scratch; /* scratch of the team's first worker, aligned to 64 bytes; the scratch of the others follows */
    int64_t scratch_floats; /* floats of each worker: tt_experts_scratch_floats for the most rows of a product */
};

/**
 * Runs all products. Each is cut into tiles by its own shape only, so its bits depend neither on the other products nor
 * on the number of threads. A product with few rows reads its weight once and does not copy it. The weight of a product
 * without rows is not read. Not collective; cannot fail.
 */
void tt_experts_run(struct tt_team *team, const struct tt_experts_products *products);

/** Floats of scratch of a worker, whole cache lines, if no product has more than `rows` rows. Reads op, bf16, m, k. */
int64_t tt_experts_scratch_floats(const struct tt_experts_products *products, int64_t rows);

/**
 * Products of experts with rows from one or several sources. A source is a grain of tokens (struct tt_token_parts) of a
 * rank that shares the experts, or of the ranks that have blocks of the same tokens. A pair is an expert and a source.
 * The rows of a pair are one product, with the same shape as on a single rank, so the bits do not depend on the number
 * of ranks. Pairs are sorted by expert, and within an expert by source; with one source, the pairs are the experts. For
 * the ops of this folder.
 */

/* The pairs to which the current rows belong. */
struct tt_pairs {
    const int32_t *ends; /* [pair] the end of its rows, which begin at the end of the pair before it */
    int64_t first, end;  /* the range of pairs to which these rows belong */
    int64_t begin;       /* where the rows of `first` begin: 0, unless these are a part of the pairs */
    int64_t before;      /* the rows of the pairs before `first` */
    int sources;         /* number of pairs of an expert */
    int grains;          /* how many consecutive sources are grains of the same tokens */
};

/** The number of a node's pairs whose expert this rank holds. */
int64_t tt_pairs_count(const struct tt_attr *attr);

/**
 * The pairs of a call whose input gives the ends of all pairs. If ranks share the experts (tt_attr.peers), three more
 * integers follow: the first pair, the end of the pairs, and the rows of the pairs before them.
 */
struct tt_pairs tt_pairs_of(const struct tt_call *call, int ends);

/** The number of rows of all pairs. */
static inline int64_t tt_pairs_rows(const struct tt_pairs *pairs)
{
    return pairs->end > pairs->first ? pairs->ends[pairs->end - 1] - pairs->begin : 0;
}

/*
 * One product for every pair. Operands with rows begin at the first row; other operands belong to the first expert.
 * Only one call at a time uses `scratch`.
 */
struct tt_pair_products {
    enum tt_op_id op;
    bool bf16;
    int64_t m, k;
    const void *in[2], *acc; /* acc may be NULL */
    void *out;
    void *scratch;
    int64_t rows; /* the most rows of a pair */
};

/** Bytes of scratch for the given number of pairs; reads op, bf16, m, k and rows. */
int64_t tt_pairs_scratch(const struct tt_pair_products *products, int64_t pairs, int threads);

/* What the products of one node have in common. */
struct tt_pairs_work {
    const struct tt_call *call;
    struct tt_pairs pairs;
    int64_t most; /* rows of a pair */
    bool bf16;
    void *scratch; /* tt_pairs_scratch */
};

/**
 * Runs one product of every pair on the team of the call: TT_OP_EXPERTS or TT_OP_EXPERTS_BWD_X of `in` with weights (Y,
 * m, k). acc: the array to which the latter is added, or NULL.
 */
void tt_pairs_multiply(const struct tt_pairs_work *work, enum tt_op_id op, int64_t m, int64_t k, const void *in,
                       const void *weights, const void *acc, void *out);

/**
 * The gradients of a weight: products of TT_OP_EXPERTS_BWD_W. The gradients for an expert's sources are added in the
 * order of core/math/tree.h, because the sources are neighbours in the tree over microbatches. Each expert has its own
 * sum, so the team gets the products of several experts with one source at once. The pairs may come in several calls,
 * in order; `sums` keeps incomplete sums. An expert without rows gets acc or zeros. With tt_attr.round_leaves the sum
 * of the grains of the same tokens is rounded to bfloat16 before it is added to others.
 *   sums    tt_pairs_sums_floats floats for this weight alone; not needed if that is 0
 */
void tt_pairs_gradients(const struct tt_call *call, const struct tt_pairs *pairs,
                        const struct tt_pair_products *products, tt_real *sums);

/**
 * 0 if there is one source that is not rounded: then the products themselves are the gradients. Reads op, bf16, m and
 * k.
 */
int64_t tt_pairs_sums_floats(const struct tt_attr *attr, const struct tt_pair_products *products, int threads);

/**
 * The feed-forward op of experts that are spread over ranks, which exchange its rows (ffn.c). A program runs such a
 * node differently: it fetches the rows of all ranks for this rank's experts, one window at a time, runs the node on
 * each window, and returns the rows of its output (core/program/instr/nodes.c).
 */

/* The rows that a node sends to the ranks of the experts, and the rows that it gets back: indices of its inputs and of
 * its output. */
struct tt_routed {
    int n_in, in[2];
    int ends, out;
    int n_whole; /* outputs that are written whole; in the others, only the elements that backward reads */
};

/** Whether a node's experts are spread over ranks and, if so, what the node exchanges with them. */
bool tt_node_routes(const struct tt_graph *graph, int node, struct tt_routed *ret_routed);

#endif
