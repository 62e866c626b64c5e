/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_PEAK_H
#define TT_TRAINER_STEP_PEAK_H

#include "core/comm/comm.h"
#include "core/graph/dtype.h"
#include "core/os/team.h"

/**
 * The peak of a team in GEMMs of TT_F32 or TT_BF16, in flop/s: the best of a few large GEMMs within about a tenth of a
 * second. All ranks measure at the same time, since they share the machine when they train.
 */
double tt_peak_measure(struct tt_team *team, enum tt_dtype dtype);

/** The peak of the slowest rank, the same on every rank. Collective. */
int tt_peak_measure_slowest(struct tt_comm *comm, struct tt_team *team, enum tt_dtype dtype,
                            double *ret_flops) TT_MUST_CHECK;

#endif
