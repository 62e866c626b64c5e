/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_TENSORS_H
#define TT_TRAINER_JOB_TENSORS_H

#include "checkpoint/format/state.h"
#include "parallel/engine/engine.h"

/**
 * The tensors of a run's checkpoint: names, dtypes, shapes and placements. Frozen parameters have neither moments nor
 * averages. Save plans are made from them.
 */
struct tt_job_tensors {
    struct tt_ckpt_state state;
    /* The parameters of the model, in its order, to be loaded. If frozen weights are packed, `state` leaves all of them
     * out: a run loads them again from its initial weights. */
    struct tt_ckpt_state whole;
    char **names; /* [n_optim] tensors of moments and averages */
};

/** Whether the checkpoints of a run leave its frozen weights out, because it keeps them packed. */
static inline bool tt_job_base_is_apart(const struct tt_model *model)
{
    return model->dims.lora.packing != TT_PACKING_NONE;
}

/**
 * Describes the tensors. With an engine that was made with these options and has been allocated (tt_engine_allocate),
 * they also point to this rank's parts in it, so that a checkpoint can be saved and loaded; the engine must outlive
 * them. With engine NULL they have neither parts nor data.
 */
void tt_job_tensors_init(const struct tt_engine_options *options, struct tt_engine *engine,
                         struct tt_job_tensors *ret_tensors);
void tt_job_tensors_release(struct tt_job_tensors *tensors);

#endif
