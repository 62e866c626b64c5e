/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_PLAN_H
#define TT_CHECKPOINT_SAVE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/state.h"
#include "core/base/error.h"
#include "core/math/box.h"
#include "parallel/layout/mesh.h"

/**
 * Which rank writes what. A plan is a pure function of the tensors, the mesh and the save policy, so every rank
 * computes all of it and no message is needed. A piece is a run of rows of one part of a tensor, or of the whole
 * tensor, that one rank writes. A rank writes one file per group, with at most one piece per tensor, and no file if
 * it has no piece.
 */
enum tt_ckpt_group { TT_CKPT_MODEL, TT_CKPT_OPTIM, TT_CKPT_GROUPS };

/** "model", "optim": the folder in a step, and the word in file names. */
const char *tt_ckpt_group_name(enum tt_ckpt_group group);

struct tt_ckpt_piece {
    enum tt_ckpt_group group;
    int tensor;                   /* index in the group's list of struct tt_ckpt_state */
    int part;                     /* of the tensor's placement; TT_NONE: the whole tensor */
    int64_t row_begin, row_count; /* of the tensor's first dimension; 0 and 1 for a scalar */
    int writer;                   /* rank */
};

struct tt_ckpt_plan {
    int n, cap;
    struct tt_ckpt_piece *piece; /* ordered by group, tensor, rows */
    int64_t bytes;               /* of all tensors */
};

/** The elements of a piece. */
struct tt_box tt_ckpt_piece_box(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                                const struct tt_mesh *mesh);

/** Bytes of a box of a tensor. */
int64_t tt_ckpt_box_bytes(const struct tt_ckpt_chunk *tensor, const struct tt_box *box);

/**
 * A save policy: which rank writes what. `assign` adds the pieces for part number `part` of every tensor that has so
 * many parts; for all numbers they tile every tensor. load [n_ranks] counts the bytes that each rank has been given,
 * for a policy that balances them. A writer may be given rows that it does not hold: the ranks of its own copy send
 * them while it writes, so a policy need not say how the data gets there.
 */
struct tt_ckpt_policy {
    const char *name;   /* checkpoint.save_policy */
    const char *filter; /* checkpoint.filter; NULL: the policy has none */
    void (*assign)(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, int part, int64_t *load,
                   struct tt_ckpt_plan *plan);
};

/** The policy of that name and filter, or TT_EUSAGE with a list of all. filter may be NULL for a policy without one. */
int tt_ckpt_policy_find(const char *name, const char *filter, const struct tt_ckpt_policy **ret_policy) TT_MUST_CHECK;

/** Policy i of the table; NULL after the last. */
const struct tt_ckpt_policy *tt_ckpt_policy_row(int i);

/** Whether the writer holds all of its piece. */
bool tt_ckpt_piece_is_local(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                            const struct tt_mesh *mesh);

/**
 * The tensors' names, dtypes, shapes and placements are read from state, not its parts or data. Release with
 * tt_ckpt_plan_release.
 */
void tt_ckpt_plan_make(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                       const struct tt_ckpt_policy *policy, struct tt_ckpt_plan *ret_plan);

/** The same for the parts of the ranks that are at the place of `rank` among those that share a copy: all that these
 * ranks write. */
void tt_ckpt_plan_shard(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                        const struct tt_ckpt_policy *policy, int rank, struct tt_ckpt_plan *ret_plan);
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
