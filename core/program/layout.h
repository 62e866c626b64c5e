/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_LAYOUT_H
#define TT_PROGRAM_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/math/box.h"

/** Groups of ranks, by what they share. parallel/layout/mesh.h decides which ranks these are. */
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
 * How a tensor is cut over the ranks: one cut after another, each along a dimension and over the ranks of a group. A
 * cut divides the part that the previous one left, so a rank's part is one box. parallel/layout/placement.h has the
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
 * How the parameters are cut over the ranks, seen from one rank. A unit is the parameters that are gathered together,
 * for instance a transformer block. Its shard is a flat array of this rank's parts of its parameters, one after the
 * other. In messages and in memory every part has the padded size, but on disk it does not.
 *
 * parallel/layout/units.c builds it from the wrap policy; core only reads it.
 */
struct tt_unit_param {
    int param;         /* index in the model */
    int64_t offset;    /* of its part in the unit's flat shard, in elements */
    int64_t chunk;     /* elements of a padded part */
    struct tt_box box; /* this rank's part; its elements are packed at the beginning of the chunk; may be empty */
    int64_t rows;      /* of the gathered parameter, which has the columns of box and the rows of its whole group */
    int64_t width;     /* elements in a row of the whole parameter */
    int64_t height;    /* its rows */
    /* Of a matrix that Muon trains, if there are ranks that share layers: the block of each place of TT_GROUP_TP, which
     * is then cut over the ranks of TT_GROUP_FSDP as all blocks are; empty if an earlier place has the same. */
    struct tt_box *blocks;
    int64_t grain;     /* columns whose squares are one term of the norm */
    bool adds_squares; /* no rank before this one has the same gradient */
    uint64_t stream;   /* of the parameter's random numbers (core/math/rng.h) */
    double lr_factor;  /* of the parameter, for the optimizer */
    bool no_decay;     /* the same */
    int block;         /* of a buffer: its block, whose loads move it */
};

/*
 * A gradient that a unit's ranks reduce. A tied weight has two, one for each of its uses. Each is summed over all
 * microbatches and ranks, and the two sums are added once, at the end of a step. So the uses may be in different stages
 * of a pipeline. If these are on different ranks, each has the weight, in a unit of its own with only the gradient of
 * its own use. The ranks exchange their sums, and both update the weight.
 */
struct tt_unit_grad {
    int param;
    int part;       /* tt_value.part */
    int64_t offset; /* in the unit's flat gradient shard, in elements; a parameter's first one has its parameter's */
    int64_t chunk;
};

struct tt_unit {
    char *name;                   /* "layers.0", "norm+output"; nothing depends on it */
    struct tt_unit_param *params; /* first those that are trained, of which Muon's are last; then the frozen ones */
    int n_params, n_trained;
    int n_adam;                       /* those that AdamW or Adam trains: the first */
    enum tt_group_id shard_group;     /* its ranks share one copy */
    enum tt_group_id replicate_group; /* its ranks have the same shard */
    int64_t shard_elements;           /* sum of the chunks */
    int64_t trained_elements;         /* of those that are trained: the length of the first moment, or momentum */
    int64_t adam_elements;            /* of those that AdamW or Adam trains: the length of the second moment */
    struct tt_unit_grad *grads;       /* one of every trained parameter, in their order, then second parts */
    int n_grads;
    int shared_grad;            /* of these, that of a tied weight whose other use is on another rank; -1: none */
    int shared_pp;              /* the place of that rank in TT_GROUP_PP */
    int64_t grad_elements;      /* sum of their chunks */
    bool reshard_after_forward; /* free the unsharded parameters between forward and backward */
    bool buffers;    /* its parameters are tt_param.buffer: in F32, whole on this rank, never gathered or trained */
    int keep_degree; /* if they are freed: n > 1 neighbouring shard ranks keep 1/n each; 0: nothing is kept */
};

struct tt_layout {
    struct tt_place groups[TT_GROUPS]; /* this rank's places */
    bool counts_tokens;  /* this rank counts the tokens of its samples: no rank before it has the same ones */
    bool adds_losses;    /* the losses of tokens that this rank computes are of no other rank that adds them */
    int blocks, experts; /* of the model, each layer of experts of which has so many loads; 0: it has no experts */
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

/** This rank's place among the ranks that share a unit, and among those that have the same shard of it. */
static inline struct tt_place tt_unit_shard(const struct tt_layout *layout, int unit)
{
    return layout->groups[layout->units[unit].shard_group];
}

static inline struct tt_place tt_unit_replica(const struct tt_layout *layout, int unit)
{
    return layout->groups[layout->units[unit].replicate_group];
}

/** Elements of a whole gradient, or of a gathered parameter, with parts of `chunk` elements: those of all ranks. */
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
