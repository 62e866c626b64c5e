/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_SCAN_H
#define TT_CHECKPOINT_DCP_SCAN_H

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"
#include "core/base/error.h"

/** The file that makes a folder a PyTorch checkpoint. */
#define TT_DCP_METADATA ".metadata"

/**
 * Describes a folder of PyTorch's torch.distributed.checkpoint as a manifest: tensors of the model and the optimizer
 * under titan's names, with the bytes of the files that hold each piece, and their CRC-32 where PyTorch has computed
 * it. The meta of the manifest says what is known of the run:
 *
 *     {"step", "ntokens_seen", "optimizer_step", "lr_step",   if it says the step
 *      "torch": {"other": ["dataloader.dp_rank_0", …],        keys that titan does not use
 *                "beside": ["ema.norm.weight", …],            names of tensors outside of the model
 *                "unread": [{"key", "group", "why"}, …]}}     intact, but in a form that titan does not read
 *
 * Reads the metadata and the directory of every piece, but not the values. TT_EDATA says what is wrong; ret_kind (may
 * be NULL) gets the kind of fault, as in tt_source_check_file. Coverage is not checked.
 */
int tt_dcp_scan(const char *path, struct tt_manifest *ret_manifest, const char **ret_kind) TT_MUST_CHECK;

/** The meaning of a key of a PyTorch checkpoint. */
enum tt_dcp_role {
    TT_DCP_TENSOR,         /* of the model or the optimizer, by the name that titan gives it */
    TT_DCP_STEP,           /* the number of steps done */
    TT_DCP_TOKENS,         /* the number of tokens seen */
    TT_DCP_OPTIMIZER_STEP, /* the number of updates of a parameter's moments */
    TT_DCP_LR_STEP,        /* the number of steps of the schedule */
    TT_DCP_BESIDE,         /* a tensor outside of the model, such as a copy of it or a state of random numbers */
    TT_DCP_OTHER,          /* data loader, parameter groups, buffers, … */
};

struct tt_dcp_name {
    enum tt_dcp_role role;
    enum tt_ckpt_group group; /* of a tensor, with its name in the group */
    char *name;
    const char *key; /* the entry's */
};

/**
 * What the entries are, [metadata->n]; release with tt_dcp_names_free.
 *
 * Everyone wraps model and optimizer otherwise: torchtitan has the parameters at the top, and optimizer.state.NAME.x;
 * others have {"model", "optim"}, {"app": {"model", "optim"}}, {"state_dict", "optimizer_0"}, lists of them, and more.
 * So an optimizer is recognized by its param_groups and by a state with moments. The model is the dictionary `model`
 * or `state_dict`, or that whose tensors have the names that the optimizer has, or all tensors if one dictionary has
 * all of them. Names are those inside; where two would be the same, both are keys. Names of other versions of
 * torchtitan and of torchtune become titan's; unknown ones stay.
 */
struct tt_dcp_name *tt_dcp_names_of(const struct tt_dcp_metadata *metadata);
void tt_dcp_names_free(struct tt_dcp_name *names, int n);

#endif
