/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_START_MAGNITUDES_H
#define TT_TRAINER_START_MAGNITUDES_H

#include "trainer/job/setup.h"
#include "trainer/job/tensors.h"

/**
 * Sets the magnitudes of DoRA (core/models/lora.h) that are still TT_LORA_NO_MAGNITUDE, because nothing was loaded, to
 * the norms of the rows of the frozen weights. Call it after the weights are loaded. Collective. The values do not
 * depend on the layout.
 */
int tt_magnitudes_start(const struct tt_setup *setup, const struct tt_job_tensors *tensors) TT_MUST_CHECK;

#endif
