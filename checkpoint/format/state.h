/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_STATE_H
#define TT_CHECKPOINT_FORMAT_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "core/graph/dtype.h"

/**
 * What a rank hands over to be saved, or to be filled by a load: its rows of every tensor.
 *
 * Every rank lists the same tensors, in the same order, with the same name, dtype and shape; only the rows differ.
 * Rows are cut as torch.chunk does (tt_ckpt_rows in plan.h): ceil(rows / S) each, later ranks short or empty.
 */
enum { TT_CKPT_DIMS = 4 };

struct tt_ckpt_chunk {
    const char *name;
    enum tt_dtype dtype;
    int ndim;                     /* 0: a scalar, one row, held by shard 0 */
    int64_t shape[TT_CKPT_DIMS];  /* of the whole tensor */
    int64_t row_begin, row_count; /* this rank's rows of dim 0; row_count may be 0 */
    void *data;                   /* row_count packed rows, owned by the trainer; may be NULL when there are none */
};

struct tt_ckpt_state {
    int n_model;
    struct tt_ckpt_chunk *model;
    int n_optim; /* names "state.<parameter>.exp_avg", "state.<parameter>.exp_avg_sq" */
    struct tt_ckpt_chunk *optim;
};

/** How the ranks of the communicator share the tensors: rank = replica * dp_shard + shard. */
struct tt_ckpt_layout {
    int dp_shard, dp_replicate;
    int shard, replica; /* this rank's */
};

/** A file that travels with the checkpoint (tokenizer.json, …), written into step-N/assets/. */
struct tt_ckpt_asset {
    const char *name;
    const void *bytes;
    size_t size;
};

#endif
