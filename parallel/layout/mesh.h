/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_MESH_H
#define TT_PARALLEL_LAYOUT_MESH_H

#include <stdint.h>

#include "core/base/error.h"

/**
 * The ranks of a job as a grid of named dimensions, outer to inner: neighbouring ranks (on one host) are neighbours in
 * the last dimension first. Today only dp_replicate and dp_shard may be larger than 1.
 *
 * Pure arithmetic: every rank computes the same, nothing here communicates.
 */
enum tt_mesh_dim {
    TT_MESH_PP,
    TT_MESH_DP_REPLICATE,
    TT_MESH_DP_SHARD,
    TT_MESH_CP,
    TT_MESH_TP,
    TT_MESH_DIMS,
};

struct tt_mesh {
    int size[TT_MESH_DIMS]; /* ranks along each dimension, each >= 1 */
    int n_ranks;            /* their product */
};

/** "pp", "dp_replicate", "dp_shard", "cp", "tp". */
const char *tt_mesh_dim_name(enum tt_mesh_dim dim);

/**
 * The mesh of n_ranks ranks.
 *   degrees  the degree of each dimension as configured; that of dp_shard may be -1: all the ranks that remain
 * Errors: TT_EUSAGE when the degrees do not multiply to n_ranks, with the change that would make them.
 */
int tt_mesh_init(const int degrees[TT_MESH_DIMS], int n_ranks, struct tt_mesh *ret_mesh) TT_MUST_CHECK;

/** Ranks that see different samples: dp_replicate x dp_shard. */
int tt_mesh_dp(const struct tt_mesh *mesh);

/** This rank's coordinate along a dimension. */
int tt_mesh_coordinate(const struct tt_mesh *mesh, int rank, enum tt_mesh_dim dim);

/** The rank at these coordinates. */
int tt_mesh_rank(const struct tt_mesh *mesh, const int coordinates[TT_MESH_DIMS]);

/** Ranks that communicate with each other in collectives, in the order of their coordinate. */
struct tt_group {
    int n;
    int index;  /* this rank's place: ranks[index] */
    int *ranks; /* ranks of the job */
};

/** The ranks that differ from `rank` in this dimension only, itself included. The caller's (tt_group_release). */
struct tt_group tt_mesh_group(const struct tt_mesh *mesh, int rank, enum tt_mesh_dim dim);
void tt_group_release(struct tt_group *group);

/**
 * Microbatches that each rank does per step: global_batch / (local_batch x dp).
 *   global_batch  samples per step; -1: one microbatch, that is local_batch x dp
 * Errors: TT_EUSAGE when it is not a whole number, listing the rank counts that would do.
 */
int tt_mesh_microbatches(const struct tt_mesh *mesh, int64_t local_batch, int64_t global_batch,
                         int64_t *ret_microbatches) TT_MUST_CHECK;

/**
 * The counts of data-parallel ranks that divide global_batch into whole microbatches of local_batch, nearest to `near`
 * first, then put in increasing order.
 *   ret_counts  room for `most`; returns how many were written, 0 when global_batch is no multiple of local_batch
 */
int tt_mesh_rank_counts(int64_t local_batch, int64_t global_batch, int near, int most, int *ret_counts);

#endif
