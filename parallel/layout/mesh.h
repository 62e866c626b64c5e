/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_MESH_H
#define TT_PARALLEL_LAYOUT_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/config.h"
#include "core/program/layout.h"

/**
 * The ranks of a job as a grid of named dimensions, from the outermost to the innermost, along which consecutive ranks
 * are neighbours. Expert parallelism has a degree but no dimension of the grid: its groups are cut out of the ranks of
 * dp_shard, cp and tp, neighbours first.
 *
 * A table of groups (core/program/groups.def), each a set of dimensions, says which ranks communicate. Everything here
 * is arithmetic: every rank computes the same, and nothing communicates.
 */
enum tt_mesh_dim {
    TT_MESH_PP,
    TT_MESH_DP_REPLICATE,
    TT_MESH_DP_SHARD,
    TT_MESH_CP,
    TT_MESH_TP,
    TT_MESH_DIMS, /* the number of dimensions of the grid */
    TT_MESH_EP = TT_MESH_DIMS,
    TT_MESH_DEGREES,
};

struct tt_mesh {
    int size[TT_MESH_DEGREES];    /* ranks along each dimension, at least 1; TT_MESH_EP: the ranks that share experts */
    int n_ranks;                  /* the product of the dimensions */
    int tp_grains, cp_grains;     /* grains of a layer, a multiple of tp; of a sequence, of cp */
    bool cp_mirrored, cp_gathers; /* the split of sequences: tt_divisions */
};

/** "pp", "dp_replicate", "dp_shard", "cp", "tp", "ep". */
const char *tt_mesh_dim_name(enum tt_mesh_dim dim);

/**
 * The mesh of n_ranks ranks.
 *   degrees  the configured degree of each dimension; dp_shard's may be -1: all remaining ranks
 * Errors: TT_EUSAGE if the degrees do not multiply to n_ranks, with a change that would make them fit.
 */
int tt_mesh_init(const int degrees[TT_MESH_DEGREES], int n_ranks, struct tt_mesh *ret_mesh) TT_MUST_CHECK;

/** The same, with the degrees of the configuration. If context_parallel_method is auto, the caller sets cp_gathers,
 * since only the caller knows the model. */
int tt_mesh_configure(const struct tt_config *cfg, int n_ranks, struct tt_mesh *ret_mesh) TT_MUST_CHECK;

/** The mesh of a job with one rank. */
struct tt_mesh tt_mesh_single(void);

/**
 * Appends the mesh of a stage: "dp_replicate 1 x dp_shard 2 x cp 2 x tp 4 (ep 4)". Dimensions after the first two are
 * left out if they have one rank; ep is a part of the product.
 */
void tt_mesh_stage_text(const struct tt_mesh *mesh, struct tt_text *out);

/** The same, with "pipeline 2 x " before it if there is one. */
void tt_mesh_text(const struct tt_mesh *mesh, struct tt_text *out);

/** The number of ranks in a group. */
int tt_mesh_size(const struct tt_mesh *mesh, enum tt_group_id id);

/** The place of `rank` in its group `id`. */
struct tt_place tt_mesh_place(const struct tt_mesh *mesh, int rank, enum tt_group_id id);

/** The rank at place `index` of the group `id` that contains `rank`. */
int tt_mesh_member(const struct tt_mesh *mesh, int rank, enum tt_group_id id, int index);

/** Whether a rank contributes to a sum over a group: among all ranks with the same place in the group, only the first
 * one does. */
bool tt_mesh_owns(const struct tt_mesh *mesh, int rank, enum tt_group_id group);

/** The coordinate of a rank along a dimension. */
int tt_mesh_coordinate(const struct tt_mesh *mesh, int rank, enum tt_mesh_dim dim);

/**
 * Ranks that take part in the same collectives, sorted by coordinates; the innermost coordinate changes fastest.
 */
struct tt_group {
    int n;
    int index;  /* this rank's place: ranks[index] */
    int *ranks; /* [n] their numbers in the job */
};

/** The group `id` that contains `rank`. Free it with tt_group_release. */
struct tt_group tt_mesh_group(const struct tt_mesh *mesh, int rank, enum tt_group_id id);
void tt_group_release(struct tt_group *group);

/**
 * The microbatches of each rank in a step: global_batch / (local_batch x dp).
 *   global_batch  samples per step; -1: local_batch x dp, that is, one microbatch
 * Errors: TT_EUSAGE if that is not a whole number, with the rank counts for which it is.
 */
int tt_mesh_microbatches(const struct tt_mesh *mesh, int64_t local_batch, int64_t global_batch,
                         int64_t *ret_microbatches) TT_MUST_CHECK;

/**
 * The global index (0 .. G/local - 1) of a rank's a-th microbatch of a step. Gradients of neighbours in this index are
 * added first: over the microbatches of one block of a rank, then over the ranks of dp_shard, block by block, then over
 * all blocks. A block is `block` consecutive microbatches of a rank; `block` divides the number of microbatches.
 */
int64_t tt_mesh_microbatch(const struct tt_mesh *mesh, int rank, int64_t microbatches, int64_t block, int64_t a);

/**
 * Whether losses and weights have the same bits on all meshes for which this is true, given the same grains and global
 * batch. Sums are added in the order of the tree (core/math/tree.h), in which a power of two of neighbours is a
 * complete subtree; so the sums that are added first must cover such subtrees. They must also cover whole microbatches,
 * so ranks must not compute parts of sequences or of experts. block number of microbatches that are added before their
 * gradients are reduced
 *   carries  gradients are added one after another, not in the order of the tree
 */
bool tt_mesh_is_exact(const struct tt_mesh *mesh, int64_t microbatches, int64_t block, bool carries);

#endif
