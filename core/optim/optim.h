/* SPDX-License-Identifier: MIT */
#ifndef TT_OPTIM_OPTIM_H
#define TT_OPTIM_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/math/exact.h"
#include "core/ops/op.h"
#include "core/os/team.h"

/**
 * The optimizer works on flat shards: segments of rows of parameters. Every element is updated by the same operations,
 * wherever it is stored, so the result does not depend on the sharding.
 */

/* A run of whole rows of one parameter inside flat arrays. */
struct tt_rows {
    int64_t begin; /* first element */
    int64_t rows;
    int64_t width; /* elements per row; 1 for vectors */
};

/**
 * AdamW (decoupled == true) or Adam (weight decay added to the gradient) on the elements of `rows`:
 *   param, grad, exp_avg, exp_avg_sq   flat arrays that rows index; grad is multiplied by scalars->clip first.
 */
void tt_adamw(struct tt_team *team, const struct tt_scalars *scalars, bool decoupled, const struct tt_rows *rows, int n,
              float *param, const float *grad, float *exp_avg, float *exp_avg_sq);

/** Adds the sum of squares of the rows to *sum: per row in double, rows summed exactly. */
void tt_sum_squares(struct tt_team *team, const struct tt_rows *rows, int n, const float *grad, struct tt_exact *sum);

/** Adds n floats to *sum exactly. */
void tt_sum_floats(const float *values, int64_t n, struct tt_exact *sum);

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

#endif
