/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_MESH_H
#define TT_PARALLEL_LAYOUT_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/config/config.h"
#include "core/program/layout.h"

/**
 * The ranks of a job as a grid of named dimensions, outer to inner: neighbouring ranks (on one host) are neighbours in
 * the last dimension first. Today only dp_replicate and dp_shard may be larger than 1. Expert parallelism has a degree
 * but no dimension of the grid: its groups are cut out of the lines of dp_shard, cp and tp, neighbours first.
 *
 * Who communicates with whom is a table of groups (core/program/groups.def), each a set of dimensions.
 * Pure arithmetic: every rank computes the same, nothing here communicates.
 */
enum tt_mesh_dim {
    TT_MESH_PP,
    TT_MESH_DP_REPLICATE,
    TT_MESH_DP_SHARD,
    TT_MESH_CP,
    TT_MESH_TP,
    TT_MESH_DIMS, /* of the grid */
    TT_MESH_EP = TT_MESH_DIMS,
    TT_MESH_DEGREES,
};

struct tt_mesh {
    int size[TT_MESH_DEGREES]; /* ranks along each dimension, at least 1; TT_MESH_EP: ranks that share experts */
    int n_ranks;               /* the product of the dimensions */
};

/** "pp", "dp_replicate", "dp_shard", "cp", "tp", "ep". */
const char *tt_mesh_dim_name(enum tt_mesh_dim dim);

/**
 * The mesh of n_ranks ranks.
 *   degrees  the degree of each dimension as configured; that of dp_shard may be -1: all the ranks that remain
 * Errors: TT_EUSAGE when the degrees do not multiply to n_ranks, with the change that would make them.
 */
int tt_mesh_init(const int degrees[TT_MESH_DEGREES], int n_ranks, struct tt_mesh *ret_mesh) TT_MUST_CHECK;

/** The same with the degrees of the configuration. */
int tt_mesh_configure(const struct tt_config *cfg, int n_ranks, struct tt_mesh *ret_mesh) TT_MUST_CHECK;

/** The mesh of a job with one rank. */
struct tt_mesh tt_mesh_single(void);

/** Ranks of a group. */
int tt_mesh_size(const struct tt_mesh *mesh, enum tt_group_id id);

/** The place of `rank` in its group of that kind. */
struct tt_place tt_mesh_place(const struct tt_mesh *mesh, int rank, enum tt_group_id id);

/** The rank that has place `index` in the group of that kind that `rank` is in. */
int tt_mesh_member(const struct tt_mesh *mesh, int rank, enum tt_group_id id, int index);

/**
 * Whether a rank adds to a sum over a group, of terms that ranks outside of the group have too: of all ranks with the
 * same place in the group the first one does.
 */
bool tt_mesh_owns(const struct tt_mesh *mesh, int rank, enum tt_group_id group);

/** Ranks that see different samples: the size of TT_GROUP_BATCH. */
int tt_mesh_dp(const struct tt_mesh *mesh);

/** This rank's coordinate along a dimension. */
int tt_mesh_coordinate(const struct tt_mesh *mesh, int rank, enum tt_mesh_dim dim);

/** The rank at these coordinates. */
int tt_mesh_rank(const struct tt_mesh *mesh, const int coordinates[TT_MESH_DIMS]);

/**
 * Ranks that communicate with each other in collectives, in the order of their coordinates, the inner dimension first.
 */
struct tt_group {
    int n;
    int index;  /* this rank's place: ranks[index] */
    int *ranks; /* ranks of the job */
};

/** The group of that kind that `rank` is in. The caller's (tt_group_release). */
struct tt_group tt_mesh_group(const struct tt_mesh *mesh, int rank, enum tt_group_id id);
void tt_group_release(struct tt_group *group);

/**
 * Microbatches that each rank does per step: global_batch / (local_batch x dp).
 *   global_batch  samples per step; -1: one microbatch, that is local_batch x dp
 * Errors: TT_EUSAGE when it is not a whole number, listing the rank counts that would do.
 */
int tt_mesh_microbatches(const struct tt_mesh *mesh, int64_t local_batch, int64_t global_batch,
                         int64_t *ret_microbatches) TT_MUST_CHECK;

/**
 * The global index (0 .. G/local - 1) of a rank's a-th microbatch of a step. Neighbours in the sum of gradients are
 * neighbours in this index: the a-th microbatches of the ranks in dp_shard, or with reduce_last the
 * microbatches of a rank.
 */
int64_t tt_mesh_microbatch(const struct tt_mesh *mesh, int rank, int64_t microbatches, bool reduce_last, int64_t a);

/**
 * Whether losses and weights are the bits of every other mesh for which this holds, given one global batch and sums
 * in the order of the tree: blocks of a power of two of neighbours are complete subtrees, so what is added first
 * must be such blocks.
 */
bool tt_mesh_is_exact(const struct tt_mesh *mesh, int64_t microbatches, bool reduce_last);

#endif
