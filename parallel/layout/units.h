/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_UNITS_H
#define TT_PARALLEL_LAYOUT_UNITS_H

#include "core/config/config.h"
#include "core/models/model.h"
#include "core/program/layout.h"
#include "parallel/layout/mesh.h"
#include "parallel/layout/stage_places.h"

/**
 * Units: which parameters are sharded and gathered together (the wrap policy, parallel/layout/wrap.h), and which units
 * stay gathered between forward and backward (the reshard policy). The layout is a pure function of model, mesh and
 * rank.
 */

/* When a unit's gathered parameters are freed after its forward. */
enum tt_reshard {
    TT_RESHARD_AFTER_FORWARD_DEFAULT, /* reshard all but the unit of norm and output, where backward begins */
    TT_RESHARD_AFTER_FORWARD_ALWAYS,
    TT_RESHARD_AFTER_FORWARD_NEVER,
    TT_RESHARD_AFTER_FORWARD_LAST_LAYER, /* reshard all but the units of the last block and of norm and output */
    TT_RESHARD_AFTER_FORWARD_PATTERNS,   /* reshard all but the units that regular expressions select */
    TT_RESHARD_AFTER_FORWARD_PART,       /* reshard, but keep 1/n on each of n neighbouring ranks */
};

/* The policies of sharding, with their values. */
struct tt_sharding {
    const char *wrap;              /* see parallel/layout/wrap.h; not read if there are wrap_patterns */
    struct tt_words wrap_patterns; /* searched for in names of parameters; n 0: none */
    enum tt_reshard reshard;
    struct tt_words
        keep;         /* TT_RESHARD_AFTER_FORWARD_PATTERNS: searched for in names of units and of their parameters */
    int reshard_part; /* TT_RESHARD_AFTER_FORWARD_PART: n, which divides the shard ranks; each keeps 1/n.
                             1 is the same as never, all the shard ranks the same as always, as in FSDP2 */
};

/**
 * The policies from the configuration's fsdp_wrap_policy and fsdp_reshard_after_forward, into which the result points.
 * 'auto' gives TT_RESHARD_AFTER_FORWARD_DEFAULT; the planned engine chooses later.
 */
struct tt_sharding tt_sharding_of(struct tt_words wrap, struct tt_words reshard);

/**
 * How a parameter is cut over the ranks: the dimension that tensor parallelism divides (tt_param.tp) over the ranks
 * that share a layer, then the first dimension over the ranks that share a copy of its stage. places: of the pipeline;
 * NULL: there is none.
 */
struct tt_placement tt_param_placement(const struct tt_mesh *mesh, const struct tt_stage_places *places,
                                       const struct tt_model *model, int param);

/**
 * The layout of `rank` on the mesh. places: of the pipeline; NULL: there is none. The units are those of the rank's own
 * stages, and no unit has parameters of two stages. TT_EUSAGE, with the key of the policy, for a policy that does not
 * exist or does not fit the model or the mesh. The layout is the caller's (tt_layout_free).
 */
int tt_layout_new(const struct tt_model *model, const struct tt_mesh *mesh, int rank,
                  const struct tt_sharding *sharding, const struct tt_stage_places *places,
                  struct tt_layout **ret_layout) TT_MUST_CHECK;
void tt_layout_free(struct tt_layout *layout);

#endif
