/* SPDX-License-Identifier: MIT
 *
 * The learning rate: linear warm-up, a stable phase, decay. The phases span one step more than the run has, so that the
 * rate of the last step is not 0. Steps beyond the last keep its rate.
 */
#include "core/optim/optim.h"

#include <math.h>

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The factor of the rate at `progress` in (0, 1] of the decay. */
static double decayed(enum tt_decay decay, double progress)
{
    static const double pi = 3.14159265358979323846;

    switch (decay) {
    case TT_LR_SQRT:
        return 1.0 - sqrt(progress);
    case TT_LR_COSINE:
        return 0.5 * (1.0 + cos(pi * progress));
    case TT_LR_LINEAR:
        break;
    }
    return 1.0 - progress;
}

double tt_lr_at(const struct tt_lr_schedule *schedule, int64_t step)
{
    int64_t total = schedule->total_steps, warmup = min64(schedule->warmup_steps, total);
    int64_t decay = total - warmup, stable, s = min64(step, total) - 1;
    double left;

    if (!isnan(schedule->decay_ratio)) /* rounds half to even, as Python does */
        decay = min64((int64_t)nearbyint((double)total * schedule->decay_ratio), decay);
    stable = total + 1 - warmup - decay;
    if (s < warmup)
        return schedule->base * (double)(s + 1) / (double)warmup;
    if (s < warmup + stable)
        return schedule->base;
    left = decayed(schedule->decay, (double)(s + 1 - warmup - stable) / (double)decay);
    return schedule->base * (schedule->min_factor + (1.0 - schedule->min_factor) * left);
}
