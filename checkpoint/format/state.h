/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_STATE_H
#define TT_CHECKPOINT_FORMAT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/graph/dtype.h"
#include "core/math/box.h"
#include "core/math/packing.h"
#include "core/program/layout.h"

enum tt_ckpt_group { TT_CKPT_MODEL, TT_CKPT_OPTIM, TT_CKPT_GROUPS };

/** "model", "optim": the folder in a step, and the word in file names. */
const char *tt_ckpt_group_name(enum tt_ckpt_group group);

/**
 * A rank's part of every tensor, to save or to fill by a load.
 *
 * Every rank lists the same tensors, in the same order, with the same name, dtype, shape and placement; only
 * the parts differ.
 *
 * In a pipeline, a rank holds parts of the tensors of its own stages; its parts of all other tensors are empty. If two
 * stages use a weight, the stage that its placement names saves it. A rank of the other stage also holds a part, whose
 * number is tt_placement_part; a load fills it, and a save ignores it.
 */
enum { TT_CKPT_DIMS = 4 };

struct tt_ckpt_chunk {
    const char *name;
    enum tt_dtype dtype;
    int ndim;                      /* 0: a scalar */
    int64_t shape[TT_CKPT_DIMS];   /* shape of the whole tensor */
    struct tt_placement placement; /* which rank holds which part */
    struct tt_box part;            /* held by this rank; may be empty */
    /* a checkpoint (for weights: one that the user names) may lack all the optional tensors of a group; they then keep
     * their values */
    bool optional;
    enum tt_packing_choice
        packing; /* `data` holds packed rows of the part, whatever dtype says; only a load fills it */
    void *data;  /* the part, packed, owned by the trainer; may be NULL when it is empty */
};

struct tt_ckpt_state {
    int n_model;
    struct tt_ckpt_chunk *model;
    int n_optim; /* "state.<parameter>.<moment>", perhaps "state.<parameter>.ema"; only for trained parameters */
    struct tt_ckpt_chunk *optim;
};

/** Whether a tensor of the optimizer's group is a parameter's average: "state.<parameter>.ema". */
bool tt_ckpt_is_average(const char *name);

/** A file that belongs to the checkpoint (tokenizer.json, …) and is written into step-N/assets/. */
struct tt_ckpt_asset {
    const char *name;
    const void *bytes;
    size_t size;
};

/** Tensor i of a state; the model's tensors come first, then the optimizer's. */
static inline const struct tt_ckpt_chunk *tt_ckpt_state_tensor(const struct tt_ckpt_state *state, int i)
{
    return i < state->n_model ? &state->model[i] : &state->optim[i - state->n_model];
}

/** Bytes of a box of a tensor, in memory. */
int64_t tt_ckpt_box_bytes(const struct tt_ckpt_chunk *tensor, const struct tt_box *box);

#endif
