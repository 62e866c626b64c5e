/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_STEP_PEAK_H
#define TT_TRAINER_STEP_PEAK_H

#include <stdbool.h>

#include "core/comm/comm.h"
#include "core/graph/dtype.h"
#include "core/os/team.h"

/** The timing of one GEMM on a team. */
struct tt_peak_round {
    double flops;
    double wall_sec;      /* wall-clock seconds */
    double processor_sec; /* seconds in the GEMM, summed over the threads; waits do not count */
    bool is_preempted;    /* whether the kernel took a processor away from a thread of this process */
};

/**
 * The peak of a team, in flop/s. If all threads computed all the time, a round's rate is by the wall clock; the best
 * such round gives the peak. If there is none, because others use the machine or the number of threads does not divide
 * the number of tiles, the peak is the best rate in processor time.
 */
double tt_peak_of(const struct tt_peak_round *rounds, int n, int threads);

/**
 * Measures the peak with GEMMs of type TT_F32 or TT_BF16, in rounds that take 0.03 seconds together, or up to 0.15 if
 * other programs disturb them. All ranks measure at the same time, since they share the machine when they train.
 */
double tt_peak_measure(struct tt_team *team, enum tt_dtype dtype);

/** The peak of the slowest rank, the same on every rank. Collective. */
int tt_peak_measure_slowest(struct tt_comm *comm, struct tt_team *team, enum tt_dtype dtype,
                            double *ret_flops) TT_MUST_CHECK;

#endif
