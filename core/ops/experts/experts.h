/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_EXPERTS_EXPERTS_H
#define TT_OPS_EXPERTS_EXPERTS_H

#include "core/graph/graph.h"
#include "core/os/team.h"

/**
 * The products of experts: each is that of some rows with one expert's weight (M, K). The op EXPERTS has one for each
 * expert. A rank that computes rows of other ranks has one for each expert and rank; with the same rows, a product has
 * the same bits there.
 */

/** The rows of one product, and where its operands begin. */
struct tt_expert_rows {
    int64_t rows; /* may be 0: then operands may be NULL, but for EXPERTS_BWD_W's out, which gets acc or zeros */
    /* EXPERTS: x (rows, K), w (M, K); EXPERTS_BWD_X: dy (rows, M), w; EXPERTS_BWD_W: dy (rows, M), x (rows, K) */
    const void *in[2];
    const void *acc; /* of out's type, or NULL; may be out. Not read by EXPERTS */
    void *out;       /* EXPERTS: y (rows, M); EXPERTS_BWD_X: dx (rows, K); EXPERTS_BWD_W: dw (M, K) in float32 */
    /* written by tt_experts_run: which product has this one's place in the order; the tiles up to that place */
    int64_t order, tiles;
};

/** Products that the team runs at once. */
struct tt_experts_products {
    enum tt_op_id op; /* TT_OP_EXPERTS, TT_OP_EXPERTS_BWD_X or TT_OP_EXPERTS_BWD_W */
    bool bf16;        /* operands are bfloat16, but those in float32 above; else all are floats */
    int64_t m, k;     /* of an expert's weight */
    struct tt_expert_rows *of;
    int64_t n;              /* products */
    float *scratch;         /* of the first worker of the team, aligned to 64 bytes; the others' follow */
    int64_t scratch_floats; /* of each worker: tt_experts_scratch_floats for the most rows of a product */
};

/**
 * Runs all products. Each is cut into tiles by its own shape only, so its bits depend neither on the other products nor
 * on the number of threads. A product with few rows reads its weight once and does not copy it. The weight of a product
 * without rows is not read. Not collective; cannot fail.
 */
void tt_experts_run(struct tt_team *team, const struct tt_experts_products *products);

/** The tiles of a product with that many rows, at least 1. Reads op, bf16, m and k. */
int64_t tt_experts_tiles(const struct tt_experts_products *products, int64_t rows);

/** Floats of scratch of a worker, whole cache lines, if no product has more than `rows` rows. Reads op, bf16, m, k. */
int64_t tt_experts_scratch_floats(const struct tt_experts_products *products, int64_t rows);

#endif
