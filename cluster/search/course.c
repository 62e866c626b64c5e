/* SPDX-License-Identifier: MIT
 *
 * A whole run: failures, the interval of checkpoints, and how long it takes.
 */
#include <math.h>

#include "cluster/search/search.h"

/* A checkpoint in the background blocks at least so long: ranks agree, and host memory is taken. */
static const double least_blocked_sec = 1;

/* The interval with the least loss (Daly 2006), for checkpoints that block `delta` and failures every `mean`. */
static double daly(double delta, double mean)
{
    double x = sqrt(delta / (2 * mean));

    if (delta > 2 * mean)
        return mean;
    return sqrt(2 * delta * mean) * (1 + x / 3 + x * x / 9) - delta;
}

struct tt_cluster_course tt_cluster_course(const struct tt_cluster_layout *layout, double tokens)
{
    const struct tt_cluster_job *job = &layout->job;
    const struct tt_cluster_number *v = job->machine->number;
    double devices = tt_cluster_devices(job), params = tt_cluster_params(&job->shape), mean, lost;
    struct tt_cluster_course c = {.tokens = tokens, .steps = ceil(tokens / tt_cluster_tokens(job))};

    c.failure_hours = v[TT_M_FAILURE_HOURS].value / devices;
    mean = c.failure_hours * 3600;
    c.checkpoint_bytes = 12 * params;
    c.blocked_sec = least_blocked_sec + c.checkpoint_bytes / devices / v[TT_M_HOST_RATE].value;
    c.write_sec = c.checkpoint_bytes / v[TT_M_STORAGE].value;
    c.interval_sec = fmax(daly(c.blocked_sec, mean), c.write_sec);
    c.interval_steps = fmax(1, round(c.interval_sec / layout->time.total));
    c.interval_sec = c.interval_steps * layout->time.total;
    lost = c.blocked_sec / c.interval_sec + (c.interval_sec / 2 + c.write_sec + v[TT_M_RESTART].value) / mean;
    c.goodput = 1 / (1 + lost);
    c.days = c.steps * layout->time.total / c.goodput / 86400;
    c.device_hours = c.days * 24 * devices;
    c.failures = c.days * 24 / c.failure_hours;
    return c;
}
