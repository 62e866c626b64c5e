/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_STATE_H
#define TT_CHECKPOINT_FORMAT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/graph/dtype.h"
#include "core/math/box.h"
#include "core/program/layout.h"

enum tt_ckpt_group { TT_CKPT_MODEL, TT_CKPT_OPTIM, TT_CKPT_GROUPS };

/** "model", "optim": the folder in a step, and the word in file names. */
const char *tt_ckpt_group_name(enum tt_ckpt_group group);

/**
 * A rank's part of every tensor, to be saved, or to be filled by a load.
 *
 * Every rank lists the same tensors, in the same order, with the same name, dtype, shape and placement; only
 * the parts differ.
 *
 * In a pipeline, a rank has parts of the tensors of its own stages, and its parts of all others are empty. A weight
 * that two stages use is saved by the stage that its placement names. A rank of the other stage has a part too: the one
 * with the number of tt_placement_part. A load fills it, and a save leaves it out.
 */
enum { TT_CKPT_DIMS = 4 };

struct tt_ckpt_chunk {
    const char *name;
    enum tt_dtype dtype;
    int ndim;                      /* 0: a scalar */
    int64_t shape[TT_CKPT_DIMS];   /* of the whole tensor */
    struct tt_placement placement; /* which rank has which part */
    struct tt_box part;            /* held by this rank; may be empty */
    bool optional; /* a checkpoint, for weights a user's, may lack all of these tensors, which then keep their values */
    void *data;    /* the part, packed, owned by the trainer; may be NULL when it is empty */
};

struct tt_ckpt_state {
    int n_model;
    struct tt_ckpt_chunk *model;
    int n_optim; /* "state.<parameter>.<moment>", and perhaps ".ema", of trained parameters */
    struct tt_ckpt_chunk *optim;
};

/** Whether a tensor of the optimizer's group is the average of a parameter: "state.<parameter>.ema". */
bool tt_ckpt_is_average(const char *name);

/** A file that belongs to the checkpoint (tokenizer.json, …) and is written into step-N/assets/. */
struct tt_ckpt_asset {
    const char *name;
    const void *bytes;
    size_t size;
};

/** The chunks of a group, and their number. */
struct tt_ckpt_chunk *tt_ckpt_state_group(const struct tt_ckpt_state *state, enum tt_ckpt_group group, int *ret_n);

/** Tensor i of a state: of the model, then of the optimizer. */
const struct tt_ckpt_chunk *tt_ckpt_state_tensor(const struct tt_ckpt_state *state, int i);

/** Bytes of a box of a tensor. */
int64_t tt_ckpt_box_bytes(const struct tt_ckpt_chunk *tensor, const struct tt_box *box);

#endif
