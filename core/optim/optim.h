/* SPDX-License-Identifier: MIT */
#ifndef TT_OPTIM_OPTIM_H
#define TT_OPTIM_OPTIM_H

#include <stdint.h>

enum tt_decay { TT_LR_LINEAR, TT_LR_SQRT, TT_LR_COSINE };

/* torchtitan's warm-up, stable, decay schedule. */
struct tt_lr_schedule {
    double base;
    int64_t warmup_steps;
    int64_t total_steps;
    double decay_ratio; /* NaN: all steps after the warm-up decay */
    enum tt_decay decay;
    double min_factor;
};

/** The learning rate of train step `step` (1 for the first); clamped to the last value beyond total_steps. */
double tt_lr_at(const struct tt_lr_schedule *schedule, int64_t step);

/** The scratch memory that TT_STEP_ORTHOGONALIZE needs for a matrix, with a team of so many threads. */
int64_t tt_orthogonalize_scratch_bytes(int64_t rows, int64_t columns, int threads);

#endif
