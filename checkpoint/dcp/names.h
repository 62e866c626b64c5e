/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_NAMES_H
#define TT_CHECKPOINT_DCP_NAMES_H

#include "checkpoint/save/plan.h"

/**
 * What a key of a PyTorch checkpoint is to titan. torchtitan stores the model's parameters under their own names, and
 * optimizer.state.NAME.exp_avg; torchtune and others store model.NAME.
 */
enum tt_dcp_role {
    TT_DCP_TENSOR,         /* of the model or the optimizer, by the name that titan gives it */
    TT_DCP_STEP,           /* the number of steps done */
    TT_DCP_TOKENS,         /* the number of tokens seen */
    TT_DCP_OPTIMIZER_STEP, /* the number of updates of a parameter's moments */
    TT_DCP_LR_STEP,        /* the number of steps of the schedule */
    TT_DCP_OTHER,          /* data loader, parameter groups, buffers, … */
};

struct tt_dcp_name {
    enum tt_dcp_role role;
    enum tt_ckpt_group group; /* of a tensor, with its name in the group; the caller frees name */
    char *name;
};

/**
 * root: the first name of the key's path in the state dictionary, NULL if it is the only one. Names of other versions
 * of torchtitan and of torchtune become titan's; unknown ones stay.
 */
struct tt_dcp_name tt_dcp_name_of(const char *key, const char *root);

#endif
