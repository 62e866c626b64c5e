/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_LAYOUT_H
#define TT_PROGRAM_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/math/box.h"
#include "core/optim/optim.h"

/** Groups of ranks; parallel/layout/mesh.h decides their members. */
enum tt_group_id {
#define TT_GROUP(id, name, dims, part) TT_GROUP_##id,
#include "core/program/groups.def"
#undef TT_GROUP
    TT_GROUPS
};

/** "dp_shard", "dp_replicate", …, for plans and traces. */
const char *tt_group_name(enum tt_group_id id);

/* A rank's place in a group: number `index` of `n`. */
struct tt_place {
    int n;
    int index;
};

/*
 * The sharding of a tensor over the ranks: one cut after another, each along a dimension and over the ranks of a group.
 * A cut splits the part that the previous cut left, so a rank's part is one box. parallel/layout/placement.h has the
 * arithmetic.
 */
enum { TT_PLACEMENT_CUTS = 2 };

struct tt_placement {
    int n_cuts;
    struct {
        enum tt_group_id group;
        int dim;
        int grains; /* the cut is on borders of this many equal grains, a multiple of the ranks; 0: one for each */
    } cut[TT_PLACEMENT_CUTS];
    enum tt_group_id copies; /* ranks that have the same part */
    int pp;                  /* only ranks at this place of TT_GROUP_PP have parts */
};

/**
 * The sharding of the parameters, seen from one rank. A unit is a set of parameters that are gathered together, for
 * instance a transformer block. Its flat shard holds this rank's parts of its parameters, one after the other. Parts
 * are padded to one size in messages and in memory, but not on disk.
 *
 * parallel/layout/units.c builds it from the wrap policy; core only reads it.
 */
struct tt_unit_param {
    int param;         /* index in the model */
    int64_t offset;    /* of its part in the unit's flat shard, in elements */
    int64_t chunk;     /* elements of a padded part */
    struct tt_box box; /* this rank's part; its elements are packed at the beginning of the chunk; may be empty */
    int64_t rows;      /* of the gathered parameter; its columns are those of box */
    int64_t width;     /* elements in a row of the whole parameter */
    int64_t height;    /* its rows */
    /* Of a matrix that is updated as a whole, with tensor parallelism: the block of each place of TT_GROUP_TP, which is
     * then sharded over TT_GROUP_FSDP like all blocks; empty if an earlier place has the same block. */
    struct tt_box *blocks;
    int64_t grain;              /* columns whose squares are one term of the norm */
    bool adds_squares;          /* no rank before this one has the same gradient */
    uint64_t stream;            /* of the parameter's random numbers (core/math/rng.h) */
    enum tt_optim_choice optim; /* which trains it */
    double lr_factor;           /* of the parameter, for the optimizer */
    bool no_decay;              /* the same */
    int block;                  /* of a buffer: its transformer block, whose loads move it */
};

/*
 * A gradient that a unit's ranks reduce. A tied weight has two, one for each of its uses. Each is summed over all
 * microbatches and ranks, and the two sums are added once, at the end of a step, so the uses may be in different stages
 * of a pipeline. If these stages are on different ranks, each rank has the weight, in a unit with only the gradient of
 * its own use. The ranks exchange their sums, and both update the weight.
 */
struct tt_unit_grad {
    int param;
    int part;       /* tt_value.part */
    int64_t offset; /* in the unit's flat gradient shard, in elements; for part 0 the parameter's own offset */
    int64_t chunk;
};

struct tt_unit {
    char *name; /* "layers.0", "norm+output"; nothing depends on it */
    /* The trained ones by the number of their moments, those updated as whole matrices last; then the frozen ones. */
    struct tt_unit_param *params;
    int n_params, n_trained;
    int first_matrix;                          /* the trained ones from it on are updated as whole matrices (Muon) */
    enum tt_group_id shard_group;              /* its ranks share one copy */
    enum tt_group_id replicate_group;          /* its ranks have the same shard */
    int64_t shard_elements;                    /* sum of the chunks */
    int64_t trained_elements;                  /* of the n_trained */
    int64_t matrices_begin;                    /* where the first of the matrices is in the shard */
    int64_t moment_elements[TT_OPTIM_MOMENTS]; /* of the parameters that have a first moment, a second one */
    struct tt_unit_grad *grads;                /* one per trained parameter, in their order, then second parts */
    int n_grads;
    int shared_grad;            /* the gradient of a tied weight whose other use is on another rank; -1: none */
    int shared_pp;              /* the place of that rank in TT_GROUP_PP */
    int64_t grad_elements;      /* sum of the gradients' chunks */
    bool reshard_after_forward; /* free the unsharded parameters between forward and backward */
    bool buffers;    /* its parameters are tt_param.buffer: in F32, whole on this rank, never gathered or trained */
    int keep_degree; /* with reshard_after_forward: n > 1 neighbouring shard ranks keep 1/n each; 0: nothing is kept */
};

struct tt_layout {
    struct tt_place groups[TT_GROUPS]; /* this rank's places */
    bool counts_tokens;  /* this rank counts the tokens of its samples: no rank before it has the same ones */
    bool adds_losses;    /* this rank adds the losses of its tokens; ranks with the same losses do not */
    int blocks, experts; /* of the model; 0: it has no experts */
    struct tt_unit *units;
    int n_units;
    int *unit_of; /* model parameter -> unit; -1: this rank's stages do not have it */
    int *slot_of; /* model parameter -> index in its unit's params */
    int n_params;
};

/** Whether this rank's stages have a parameter. */
static inline bool tt_layout_has(const struct tt_layout *layout, int param)
{
    return layout->unit_of[param] >= 0;
}

/** The place of a parameter that this rank's stages have. */
static inline const struct tt_unit_param *tt_layout_param(const struct tt_layout *layout, int param)
{
    return &layout->units[layout->unit_of[param]].params[layout->slot_of[param]];
}

/** The index in its unit of part `part` of a parameter's gradient. */
static inline int tt_layout_grad(const struct tt_layout *layout, int param, int part)
{
    const struct tt_unit *unit = &layout->units[layout->unit_of[param]];
    int k = layout->slot_of[param];

    while (unit->grads[k].param != param || unit->grads[k].part != part)
        k++;
    return k;
}

/** This rank's place among the ranks that share a unit, and among the ranks with the same shard of it. */
static inline struct tt_place tt_unit_shard(const struct tt_layout *layout, int unit)
{
    return layout->groups[layout->units[unit].shard_group];
}

static inline struct tt_place tt_unit_replica(const struct tt_layout *layout, int unit)
{
    return layout->groups[layout->units[unit].replicate_group];
}

/** Elements of a whole gradient, or of a gathered parameter, with parts of `chunk` elements. */
static inline int64_t tt_unit_whole(const struct tt_layout *layout, int unit, int64_t chunk)
{
    return chunk * tt_unit_shard(layout, unit).n;
}

/** The first unit from `unit` on that has a parameter that is trained, or n_units. */
static inline int tt_layout_trained(const struct tt_layout *layout, int unit)
{
    while (unit < layout->n_units && layout->units[unit].n_trained == 0)
        unit++;
    return unit;
}

#endif
