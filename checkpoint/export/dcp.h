/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_DCP_H
#define TT_CHECKPOINT_EXPORT_DCP_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/pickle.h"
#include "checkpoint/durable/durable.h"
#include "checkpoint/export/weights_file.h"
#include "checkpoint/read/source.h"
#include "core/base/error.h"
#include "core/models/model.h"

/**
 * A checkpoint as a folder of PyTorch's, with torchtitan's keys. With the state it has all that torchtitan asks for
 * when it resumes, except the position of its data loader:
 *
 *     NAME                                parameters; a tied one under both names
 *     optimizer.state.NAME.*              exp_avg, exp_avg_sq, step
 *     optimizer.param_groups.NAME.*       lr, betas, eps, weight_decay, ..., if the checkpoint says them
 *     lr_scheduler.*                      last_epoch, and with the optimizer's options the rates
 *     train_state.*                       step, ntokens_seen
 */
struct tt_dcp_export {
    const char *folder;
    struct tt_source *source;
    struct tt_model *model;       /* of the source, NULL if that is not known; parameters get their own options */
    struct tt_weights_file *file; /* the weights; its total includes the state */
    bool with_state;              /* the optimizer's state and the step, if the source has them */
};

/**
 * Opens the weights of a source in titan's names, which are torchtitan's. ret_model, which the caller frees also after
 * an error, is NULL if it is not known. TT_EDATA if the model has adapters.
 */
int tt_dcp_export_open(struct tt_source *source, struct tt_model **ret_model,
                       struct tt_weights *ret_weights) TT_MUST_CHECK;

/** Writes the folder, with the bytes and the number of its files. Local. */
int tt_dcp_export(const struct tt_dcp_export *export, int64_t *ret_bytes, int *ret_files) TT_MUST_CHECK;

#endif
