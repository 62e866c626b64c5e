/* SPDX-License-Identifier: MIT */
#ifndef TT_HEAD_HEAD_H
#define TT_HEAD_HEAD_H

#include "core/kernels/matmul.h"
#include "core/ops/rule.h"

/**
 * The products of the output projection, of a chunk of rows: the logits, and from the logits' gradient, which takes
 * their place, dx and dw.
 *
 * The product for dx has few elements and a long sum over the vocabulary: it is cut into slices of the vocabulary,
 * which are added in order. So both products of the gradient keep a whole team busy, and dx can take x's memory
 * although dw's product reads x at the same time. In bfloat16 the gradient fills half of each row of logits, and the
 * other half holds the slices of the row if it is long enough. If V has grains, each grain has its own slices, and dx
 * is a tree over the grains.
 */
enum { TT_HEAD_CHUNK = 512, TT_HEAD_TILE_ROWS = 8 };

/* How the work is cut. It depends on the grains of N and V, not on the local part. */
struct tt_head {
    bool bf16;
    int64_t rows; /* of a chunk, at most */
    int64_t width, vocab;
    int64_t vocab_grain;
    int64_t slices;               /* of a grain of the vocabulary, in which dx is summed */
    int64_t grad_stride;          /* elements from one row of the logits' gradient to the next */
    bool in_rows;                 /* the slices are in the halves of the rows of logits that the gradient leaves free */
    int64_t slice_step, row_step; /* floats from one slice of dx to the next, and from a row to the next */
};

/* A chunk of at most tt_head.rows rows. */
struct tt_head_chunk {
    const struct tt_head *head;
    struct tt_team *team;
    int64_t n;
    const void *x, *w; /* this chunk's rows of x */
    float *logits;     /* (n, V); then their gradient, in the type of x */
    float *slices;     /* tt_head_slice_floats */
    float *workers;    /* tt_head_worker_floats for each */
    void *dx;          /* may be x */
    bool dx_bf16;
    const float *acc; /* of dw, or NULL */
    float *dw;        /* [acc +] the gradient; NULL: none */
};

/** The cuts of a node's chunks of at most `rows` rows, with or without the products of the gradient. x: (…, width). */
struct tt_head tt_head_of(const struct tt_graph *graph, const struct tt_node *node, int x, int w, int64_t rows,
                          bool grad);

/** The rows of a chunk of HEAD_LOSS or HEAD_LOSS_GRAD: chunks do not reach from one grain of rows into the next. */
int64_t tt_head_chunk_rows(const struct tt_graph *graph, const struct tt_node *node);

/** Floats of the slices of a chunk; 0 if they are in the rows of logits. */
int64_t tt_head_slice_floats(const struct tt_head *head);

/** What each worker needs for the largest of the products, with the gradient or without. */
int64_t tt_head_worker_floats(const struct tt_head *head);

/** logits = x w^T */
void tt_head_logits(const struct tt_head_chunk *chunk);

/** dx and dw from the gradient of the logits. */
void tt_head_grads(const struct tt_head_chunk *chunk);

#endif
