/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_TRANSFER_AHEAD_H
#define TT_PARALLEL_ENGINE_TRANSFER_AHEAD_H

#include "parallel/engine/engine.h"
#include "parallel/fsdp/usage.h"

/**
 * Replaces the eager program by the planned one of the same step, and sets which units of the layout are resharded.
 *   step_limit  of the step region in bytes; INT64_MAX: none
 * Errors: those of tt_planner_run.
 */
int tt_plan_ahead(const struct tt_engine_options *options, struct tt_layout *layout, const struct tt_lowering *lowering,
                  const struct tt_usage *usage, int64_t step_limit, struct tt_program **program) TT_MUST_CHECK;

#endif
