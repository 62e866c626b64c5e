/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_HELP_MESH_H
#define TT_TESTS_HELP_MESH_H

/** Meshes by their degrees, for tests of every suite. */

#include "parallel/layout/mesh.h"

/** The argument of tt_mesh_init, with every degree named. dp_shard -1: all ranks that remain. */
#define DEGREES(pp, dp_replicate, dp_shard, cp, tp, ep)                    \
    ((const int[TT_MESH_DEGREES]){[TT_MESH_PP] = (pp),                     \
                                  [TT_MESH_DP_REPLICATE] = (dp_replicate), \
                                  [TT_MESH_DP_SHARD] = (dp_shard),         \
                                  [TT_MESH_CP] = (cp),                     \
                                  [TT_MESH_TP] = (tp),                     \
                                  [TT_MESH_EP] = (ep)})

/** Data parallelism only. */
#define DP_DEGREES(dp_replicate, dp_shard) DEGREES(1, dp_replicate, dp_shard, 1, 1, 1)

#endif
