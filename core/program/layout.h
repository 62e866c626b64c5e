/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_LAYOUT_H
#define TT_PROGRAM_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/math/box.h"
#include "core/math/packing.h"
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
 * A cut splits the part left by the previous cut, so a rank's part is one box. The arithmetic is in
 * parallel/layout/placement.h.
 */
enum { TT_PLACEMENT_CUTS = 2 };

struct tt_placement {
    int n_cuts;
    struct {
        enum tt_group_id group;
        int dim;
        /* number of equal grains, which are never split; a multiple of the number of ranks; 0: one grain per rank */
        int grains;
        int64_t step; /* grains are multiples of this many rows; 0: of one */
    } cut[TT_PLACEMENT_CUTS];
    enum tt_group_id copies; /* the ranks that hold the same part */
    int pp;                  /* only ranks at this place of TT_GROUP_PP hold parts */
};

/**
 * The sharding of the parameters, seen from one rank. A unit is a set of parameters that are gathered together, for
 * instance a transformer block. Its flat shard holds this rank's parts of its parameters, one after the other. In
 * messages and in memory, parts are padded to the same size, but not on disk.
 *
 * parallel/layout/units.c builds it from the wrap policy; core only reads it.
 */
struct tt_unit_param {
    int param;         /* index in the model */
    int64_t offset;    /* place of its part in the unit's flat shard, in elements; in bytes if the unit is packed */
    int64_t chunk;     /* elements of a padded part; bytes if the unit is packed */
    struct tt_box box; /* this rank's part, stored without gaps at the beginning of the chunk; may be empty */
    int64_t rows;      /* rows of the gathered parameter; its columns are those of box */
    int64_t width;     /* elements in a row of the whole parameter */
    int64_t height;    /* rows of the whole parameter */
    /* For a matrix that is updated as a whole under tensor parallelism: the block at each place of TT_GROUP_TP; empty
     * if an earlier place holds the same block. TT_GROUP_FSDP shards these blocks as usual. */
    struct tt_box *blocks;
    int64_t grain;              /* number of columns whose squares form one term of the norm */
    bool adds_squares;          /* no rank before this one holds the same gradient */
    uint64_t stream;            /* stream of the parameter's random numbers (core/math/rng.h) */
    enum tt_optim_choice optim; /* the optimizer that trains it */
    double lr_factor;           /* the parameter's factor of the learning rate */
    bool no_decay;              /* the parameter has no weight decay */
    int block;                  /* for a buffer: the transformer block whose loads change it */
    /* for moments in blocks: their place among the blocks of the unit, and tt_rows.run */
    int64_t first_block, run;
};

/*
 * A gradient that the ranks of a unit reduce. A tied weight has two gradients, one for each of its uses. Each is summed
 * over all microbatches and ranks, and the two sums are added once, at the end of a step, so the uses may be in
 * different stages of a pipeline. If these stages are on different ranks, both ranks hold the weight, each in a unit
 * with only the gradient of its own use. The ranks exchange their sums, and both update the weight.
 */
struct tt_unit_grad {
    int param;
    int part;       /* tt_value.part */
    int64_t offset; /* place in the unit's flat gradient shard, in elements; for part 0 the parameter's own offset */
    int64_t chunk;
};

struct tt_unit {
    char *name; /* "layers.0", "norm+output"; only for display */
    /* First the trained ones, sorted by their number of moments, with whole-matrix ones (Muon) and those with moments
     * in blocks last; then the frozen ones. */
    struct tt_unit_param *params;
    int n_params, n_trained;
    /* trained parameters from here on are updated as whole matrices (Muon) */
    int first_matrix;
    enum tt_group_id shard_group;              /* its ranks share one copy */
    enum tt_group_id replicate_group;          /* its ranks hold the same shard */
    int64_t shard_elements;                    /* sum of the chunks */
    int64_t trained_elements;                  /* elements of the first n_trained parameters */
    int64_t matrices_begin;                    /* where the first of the matrices begins in the shard */
    int64_t moment_elements[TT_OPTIM_MOMENTS]; /* of the parameters with a first moment; with a second moment */
    /* the trained parameters from this element on have their moments in blocks, so many blocks */
    int64_t codes_begin, n_blocks;
    struct tt_unit_grad *grads; /* one per trained parameter, in their order, then second parts */
    int n_grads;
    int shared_grad;                /* the gradient of a tied weight whose other use is on another rank; -1: none */
    int shared_pp;                  /* the place of that rank in TT_GROUP_PP */
    int64_t grad_elements;          /* sum of the gradients' chunks */
    bool reshard_after_forward;     /* whether to free the unsharded parameters between forward and backward */
    enum tt_packing_choice packing; /* of its frozen parameters; a shard is an array of bytes, of whole rows */
    bool buffers; /* it consists of tt_param.buffer: in F32, whole on this rank, never gathered or trained */
    /* with reshard_after_forward: n > 1 neighbouring shard ranks each keep 1/n; 0: no rank keeps a part */
    int keep_degree;
};

struct tt_layout {
    struct tt_place groups[TT_GROUPS]; /* this rank's places */
    bool counts_tokens;  /* this rank counts the tokens of its samples: no rank before it has the same samples */
    bool adds_losses;    /* this rank adds the losses of its tokens; other ranks with the same losses do not */
    int blocks, experts; /* of the model; 0: it has no experts */
    struct tt_unit *units;
    int n_units;
    int *unit_of; /* model parameter -> unit; -1: it is not in this rank's stages */
    int *slot_of; /* model parameter -> index in its unit's params */
    int n_params;
};

/** Whether a parameter is in this rank's stages. */
static inline bool tt_layout_has(const struct tt_layout *layout, int param)
{
    return layout->unit_of[param] >= 0;
}

/** The place of a parameter of this rank's stages. */
static inline const struct tt_unit_param *tt_layout_param(const struct tt_layout *layout, int param)
{
    return &layout->units[layout->unit_of[param]].params[layout->slot_of[param]];
}

/** The index, within its unit, of part `part` of a parameter's gradient. */
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

/** Elements of a whole gradient, or of a gathered parameter, if each part has `chunk` elements. */
static inline int64_t tt_unit_whole(const struct tt_layout *layout, int unit, int64_t chunk)
{
    return chunk * tt_unit_shard(layout, unit).n;
}

/** The first unit from `unit` on with a trained parameter, or n_units. */
static inline int tt_layout_trained(const struct tt_layout *layout, int unit)
{
    while (unit < layout->n_units && layout->units[unit].n_trained == 0)
        unit++;
    return unit;
}

#endif
