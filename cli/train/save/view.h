/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_SAVE_VIEW_H
#define TT_CLI_TRAIN_SAVE_VIEW_H

#include "checkpoint/save/plan.h"
#include "cli/job/tensors.h"
#include "parallel/engine/engine.h"

/** The engine's weights and moments as a checkpoint sees them: the parts of this rank. The engine must outlive it. */
struct tt_state_view {
    struct tt_job_tensors tensors;
};

/** After tt_engine_allocate. */
void tt_state_view_init(const struct tt_model *model, struct tt_engine *engine, struct tt_state_view *ret_view);
void tt_state_view_release(struct tt_state_view *view);

#endif
