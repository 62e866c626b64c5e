/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_PLAN_H
#define TT_CHECKPOINT_SAVE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/state.h"
#include "core/base/box.h"
#include "core/base/error.h"

/**
 * Which rank writes what. A plan is a pure function of the tensors, the layout and the save policy, so every rank
 * computes all of it and no message is needed. A piece is a run of rows of one tensor that one rank writes. A rank
 * writes one file per group, with at most one piece per tensor, and no file if it has no piece.
 */
enum tt_ckpt_group { TT_CKPT_MODEL, TT_CKPT_OPTIM, TT_CKPT_GROUPS };

/** "model", "optim": the folder in a step, and the word in file names. */
const char *tt_ckpt_group_name(enum tt_ckpt_group group);

struct tt_ckpt_piece {
    enum tt_ckpt_group group;
    int tensor; /* index in the group's list of struct tt_ckpt_state */
    int64_t row_begin, row_count;
    int writer; /* rank */
};

struct tt_ckpt_plan {
    int n, cap;
    struct tt_ckpt_piece *piece; /* ordered by group, tensor, rows */
    int64_t bytes;               /* of all tensors */
};

/** Rows of dim 0 of shard `shard` of S, as torch.chunk cuts them. rows: of the whole tensor (1 for a scalar). */
void tt_ckpt_rows(int64_t rows, int n_shards, int shard, int64_t *ret_begin, int64_t *ret_count);

/** Rows of a tensor's dim 0; 1 for a scalar. */
int64_t tt_ckpt_row_number(const struct tt_ckpt_chunk *tensor);

/** Bytes of one row. */
int64_t tt_ckpt_row_bytes(const struct tt_ckpt_chunk *tensor);

/**
 * A save policy: which rank writes which rows. `assign` adds the pieces for one shard; for all shards they tile every
 * tensor. A writer may be given rows that it does not hold: the ranks of its own replica send them while it writes, so
 * a policy need not say how the data gets there.
 */
struct tt_ckpt_policy {
    const char *name;   /* checkpoint.save_policy */
    const char *filter; /* checkpoint.filter; NULL: the policy has none */
    void (*assign)(const struct tt_ckpt_state *state, const struct tt_ckpt_layout *layout, int shard,
                   struct tt_ckpt_plan *plan);
};

/** The policy of that name and filter, or TT_EUSAGE with a list of all. filter may be NULL for a policy without one. */
int tt_ckpt_policy_find(const char *name, const char *filter, const struct tt_ckpt_policy **ret_policy) TT_MUST_CHECK;

/** Policy i of the table; NULL after the last. */
const struct tt_ckpt_policy *tt_ckpt_policy_row(int i);

/** The rank of the writer's replica that holds a row of a tensor. */
int tt_ckpt_holder(const struct tt_ckpt_chunk *tensor, const struct tt_ckpt_layout *layout, int writer, int64_t row);

/** Whether the writer holds all rows of its piece. */
bool tt_ckpt_piece_is_local(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                            const struct tt_ckpt_layout *layout);

/**
 * The tensors' names, dtypes and shapes are read from state, not its rows or data. Release with tt_ckpt_plan_release.
 */
void tt_ckpt_plan_make(const struct tt_ckpt_state *state, const struct tt_ckpt_layout *layout,
                       const struct tt_ckpt_policy *policy, struct tt_ckpt_plan *ret_plan);
void tt_ckpt_plan_release(struct tt_ckpt_plan *plan);

/**
 * The pieces of each file of n_ranks ranks, in the plan's order: those of group g and writer w are the indices
 *   ret_piece[ret_begin[g * n_ranks + w]] .. ret_piece[ret_begin[g * n_ranks + w + 1] - 1]
 * The caller frees both arrays (tt_free).
 */
void tt_ckpt_plan_files(const struct tt_ckpt_plan *plan, int n_ranks, int **ret_begin, int **ret_piece);

/** A hash of the plan, names, dtypes and shapes, which ranks compare before they write. */
uint64_t tt_ckpt_plan_hash(const struct tt_ckpt_state *state, const struct tt_ckpt_plan *plan);

/** "model/shard-00001-model-00001-of-00001.safetensors" for rank 0; the caller frees. */
char *tt_ckpt_shard_path(enum tt_ckpt_group group, int rank);

/** The chunks of a group, and their number. */
struct tt_ckpt_chunk *tt_ckpt_state_group(const struct tt_ckpt_state *state, enum tt_ckpt_group group, int *ret_n);

#endif
