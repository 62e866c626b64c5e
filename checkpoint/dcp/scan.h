/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_SCAN_H
#define TT_CHECKPOINT_DCP_SCAN_H

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"
#include "core/base/error.h"

/** The file by which titan recognizes a PyTorch checkpoint. */
#define TT_DCP_METADATA ".metadata"

/**
 * Describes a folder of PyTorch's torch.distributed.checkpoint as a manifest: tensors of the model and the optimizer
 * under titan's names, with the bytes of the files that hold each piece, and their CRC-32 where PyTorch computed it.
 * The manifest's meta holds the known facts about the run:
 *
 *     {"step", "ntokens_seen", "optimizer_step", "lr_step",   if the checkpoint contains the step
 *      "torch": {"other": ["dataloader.dp_rank_0", …],        keys that titan does not use
 *                "beside": ["ema.norm.weight", …],            names of tensors outside the model
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
    TT_DCP_BESIDE,         /* a tensor outside the model, such as an average of it or the state of a generator */
    TT_DCP_OTHER,          /* data loader, parameter groups, buffers, … */
};

struct tt_dcp_name {
    enum tt_dcp_role role;
    enum tt_ckpt_group group; /* of a tensor */
    char *name;
    const char *key; /* of the entry */
};

/**
 * The meaning of every entry, [metadata->n]; release with tt_dcp_names_free.
 *
 * Programs wrap model and optimizer in different ways: torchtitan has the parameters at the top level, and
 * optimizer.state.NAME.x; others have {"model", "optim"}, {"app": {"model", "optim"}}, {"state_dict", "optimizer_0"},
 * lists of them, and more. So an optimizer is recognized by its param_groups and by a state with moments. The model is
 * the dictionary `model` or `state_dict`; or the one whose tensors have the names of the optimizer's parameters; or the
 * only dictionary that holds all tensors. A tensor's name is the part of its key inside that dictionary; if two names
 * would be equal, both become the whole keys. Names of other versions of torchtitan and of torchtune are translated;
 * unknown names stay.
 */
struct tt_dcp_name *tt_dcp_names_of(const struct tt_dcp_metadata *metadata);
void tt_dcp_names_free(struct tt_dcp_name *names, int n);

#endif
