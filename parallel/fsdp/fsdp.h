/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_FSDP_FSDP_H
#define TT_PARALLEL_FSDP_FSDP_H

#include "core/program/program.h"
#include "parallel/fsdp/usage.h"

/**
 * The eager scheduler: it places the collectives of each unit around its uses, as PyTorch's FSDP2 does.
 *   forward of a unit    unshard, prefetch the next `prefetch` units, compute, reshard if its policy says so
 *   backward of a unit   the same, then reshard and begin the reduce-scatter of its gradients; only one is under way
 *                        at a time, and it overlaps the next unit's backward
 * The prefetch continues from one turn of the order to the next. In a pipeline, a unit that is not freed after forward
 * stays gathered until its last use in the run, since other microbatches are then between forward and backward.
 *
 * To add a scheduler:
 *   1. A function from tt_usage to tt_schedule. It keeps the positions of the order as they are and puts collectives
 *   between them. Lowering, memory plan and executor accept any schedule, and tt_program_check verifies its memory.
 *   2. Its word for fsdp_engine (core/keys/choices.h), and its call in parallel/engine/engine.c.
 */
struct tt_fsdp {
    const struct tt_usage *usage;
    const bool *reshard; /* [unit] whether to free it between forward and backward; NULL: according to its policy */
    int prefetch;        /* number of units gathered ahead of the one that computes */
};

/**
 * Appends the schedule for the order of the usage, then the end of the step: in training the all-reduces over replicas,
 * norm, clip and update; otherwise the sum of the losses.
 */
void tt_fsdp_schedule(const struct tt_fsdp *fsdp, struct tt_schedule *ret_schedule);

/**
 * Appends the end of a training step: the decision, and the updates of all units. The all-gather of a Muon unit's
 * updates overlaps the work on the previous unit, so two units are whole at a time.
 */
void tt_fsdp_update(const struct tt_layout *layout, struct tt_schedule *schedule);

#endif
